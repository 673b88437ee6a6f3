// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/resources.h"
#include "moesaic/config/document.h"
#include "moesaic/data/catalog.h"
#include "moesaic/data/format.h"
#include "moesaic/models/preset.h"
#include "moesaic/models/registry.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/objective.h"
#include "moesaic/train/phase_kind.h"
#include "recipes.h"
#include "verbs.h"

namespace moesaic::tools {
namespace {

using Names = std::vector<std::string>;

/// Returns the URLs of released checkpoints, for `moesaic import`.
Names released_checkpoints() {
  Names prefixes;
  const auto document = Document::from_file(resource("checkpoints/released.json"));
  for (const Value& item : document.root().at("checkpoints").items()) {
    prefixes.push_back(item.at("prefix").as_string());
  }
  return prefixes;
}

/// Returns the families and the names of their networks.
Names models() {
  Names names = model_names();
  const Names presets = preset_names();
  names.insert(names.end(), presets.begin(), presets.end());
  return names;
}

const std::map<std::string, std::function<Names()>>& kinds() {
  static const std::map<std::string, std::function<Names()>> list = {
      {"models", models},
      {"datasets", dataset_names},
      {"experiments", experiment_names},
      {"criteria", criterion_names},
      {"recipes", recipe_paths},
      {"checkpoints", released_checkpoints},
      {"formats", [] { return dataset_formats().names(); }},
      {"objectives", [] { return objectives().names(); }},
      {"phases", [] { return phase_kinds().names(); }},
      {"probes", [] { return probes().names(); }},
  };
  return list;
}

Names kind_names() {
  Names names;
  for (const auto& [name, unused] : kinds()) names.push_back(name);
  return names;
}

void list_models() {
  std::cout << fmt::format("families, \"model\": {{\"name\": ...}}\n  {}\n",
                           fmt::join(model_names(), "\n  "));
  std::cout << fmt::format("presets, \"model\": {{\"preset\": ...}}\n  {}\n",
                           fmt::join(preset_names(), "\n  "));
}

void list(const std::string& kind, bool json) {
  const auto found = kinds().find(kind);
  if (found == kinds().end()) {
    fail_usage("list: unknown kind '{}'; {}", kind, did_you_mean(kind, kind_names()));
  }
  const Names names = found->second();
  if (json) {
    std::cout << nlohmann::json(names).dump(2) << '\n';
    return;
  }
  if (kind == "models") return list_models();
  for (const auto& name : names) std::cout << name << '\n';
}

}  // namespace

void add_list(CLI::App& app, int&) {
  auto* verb = app.add_subcommand(
      "list", "List what there is of a kind, such as models, datasets, recipes or experiments");
  auto kind = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  verb->add_option("KIND", *kind, fmt::format("{}", fmt::join(kind_names(), ", ")))->required();
  verb->add_flag("--json", *json, "print one JSON document");
  verb->callback([kind, json] { list(*kind, *json); });
}

}  // namespace moesaic::tools
