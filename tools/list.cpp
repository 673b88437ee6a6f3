// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/resources.h"
#include "moesaic/base/text.h"
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

std::string meaning_of_criterion(const std::string& name) {
  const auto& all = criteria();
  const auto found = std::find_if(
      all.begin(), all.end(), [&](const Criterion& criterion) { return criterion.name == name; });
  const char* needs = found->needs_pretrained ? " (needs the pre-trained network)"
                      : found->needs_images   ? " (needs images)"
                                              : "";
  return found->meaning + needs;
}

/// Returns the first line of the comment that a recipe begins with.
std::string begin_of_recipe(const std::string& path) {
  const std::string text = read_text(path);
  if (!text.starts_with("// ")) return "";
  return text.substr(3, text.find('\n') - 3);
}

struct Kind {
  std::string meaning;
  std::function<Names()> names;
  std::function<std::string(const std::string& name)> describe = {};  ///< Empty: nothing is known.
};

const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> list = {
      {"models", {"families of networks and presets, for \"model\" of a recipe", models}},
      {"datasets",
       {"data, for \"data\" of a phase and --data", dataset_names,
        [](const std::string& name) { return load_dataset_spec(name).description; }}},
      {"experiments",
       {"what moesaic reproduce runs", experiment_names,
        [](const std::string& name) { return load_experiment(name, Scale::paper).description; }}},
      {"criteria",
       {"what moesaic prune ranks experts by; those with the largest numbers stay", criterion_names,
        meaning_of_criterion}},
      {"recipes", {"runs for moesaic train", recipe_paths, begin_of_recipe}},
      {"checkpoints",
       {"released networks of google-research/vmoe, for moesaic import", released_checkpoints}},
      {"formats",
       {"\"format\" of a dataset's description", [] { return dataset_formats().names(); }}},
      {"objectives",
       {"\"loss\" of a phase of the kind gradient", [] { return objectives().names(); }}},
      {"phases",
       {"\"kind\" of a phase", [] { return phase_kinds().names(); },
        [](const std::string& name) { return phase_kinds().at(name).meaning; }}},
      {"probes",
       {"what an experiment measures", [] { return probes().names(); },
        [](const std::string& name) { return probes().at(name).meaning; }}},
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

/// Prints names, each with a few words beside it where there are any.
void print_described(const std::vector<std::pair<std::string, std::string>>& lines) {
  size_t width = 0;
  for (const auto& [name, text] : lines) width = std::max(width, count_characters(name));
  for (const auto& [name, text] : lines) {
    const std::string room(width + 2 - count_characters(name), ' ');
    std::cout << name << (text.empty() ? "" : room + text) << '\n';
  }
}

void list_kinds() {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const auto& [name, kind] : kinds()) lines.emplace_back(name, kind.meaning);
  print_described(lines);
}

void list(const std::string& kind, bool json) {
  if (kind.empty()) {
    json ? void(std::cout << nlohmann::json(kind_names()).dump(2) << '\n') : list_kinds();
    return;
  }
  const auto found = kinds().find(kind);
  if (found == kinds().end()) {
    fail_usage("list: unknown kind '{}'; {}", kind, did_you_mean(kind, kind_names()));
  }
  const Names names = found->second.names();
  if (json) {
    std::cout << nlohmann::json(names).dump(2) << '\n';
    return;
  }
  if (kind == "models") return list_models();
  std::vector<std::pair<std::string, std::string>> lines;
  for (const auto& name : names) {
    lines.emplace_back(name, found->second.describe ? found->second.describe(name) : "");
  }
  print_described(lines);
}

}  // namespace

void add_list(CLI::App& app, int&) {
  auto* verb = app.add_subcommand(
      "list", "List what there is of a kind, such as models, datasets, recipes or experiments");
  auto kind = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  verb->add_option("KIND", *kind,
                   fmt::format("{}; without it, what these are", fmt::join(kind_names(), ", ")));
  verb->add_flag("--json", *json, "print one JSON document");
  verb->callback([kind, json] { list(*kind, *json); });
}

}  // namespace moesaic::tools
