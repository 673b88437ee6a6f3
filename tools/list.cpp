// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>

#include "command_line.h"
#include "moesaic/base/file.h"
#include "moesaic/data/format.h"
#include "moesaic/data/source.h"
#include "moesaic/import/vmoe/import.h"
#include "moesaic/models/family.h"
#include "moesaic/models/registry.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/objective.h"
#include "moesaic/train/phase.h"
#include "train_help.h"

namespace moesaic::tools {
namespace {

/// Names, each with a line that says what it is.
using Described = std::vector<std::pair<std::string, std::string>>;
using Names = std::vector<std::string>;

template <class Entry>
Described of_registry(const Registry<Entry>& registry) {
  Described list;
  for (const auto& [name, entry] : registry.entries()) list.emplace_back(name, entry.description);
  return list;
}

Described each(const Names& names, auto describe) {
  Described list;
  for (const std::string& name : names) list.emplace_back(name, describe(name));
  return list;
}

/// Returns the names of released checkpoints, for `moesaic import vmoe`.
Described listed_checkpoints() {
  Described list;
  for (const ReleasedCheckpoint& one : released_checkpoints()) {
    list.emplace_back(one.name,
                      fmt::format("{:.2f} GB, {}; {}", static_cast<double>(one.bytes) / 1e9,
                                  one.licence, one.about));
  }
  return list;
}

/// Returns the first sentence of the comment that a recipe or a preset begins with.
std::string first_sentence(const fs::path& path) {
  std::istringstream lines(read_text(path));
  std::string text;
  for (std::string line; std::getline(lines, line) && line.starts_with("// ");) {
    text += (text.empty() ? "" : " ") + line.substr(3);
  }
  for (size_t dot = text.find(". "); dot != std::string::npos; dot = text.find(". ", dot + 1)) {
    const auto next = static_cast<unsigned char>(text[dot + 2]);
    // No sentence begins like what follows "eq. 1" or "i. e.".
    if (std::islower(next) == 0 && std::isdigit(next) == 0) return text.substr(0, dot + 1);
  }
  return text;
}

Described presets() {
  return each(preset_names(),
              [](const std::string& name) { return first_sentence(preset_path(name)); });
}

/// Returns the families and the names of their networks.
Described models() {
  Described list = of_registry(families());
  for (auto& preset : presets()) list.push_back(std::move(preset));
  return list;
}

Described listed_criteria() {
  Described list;
  for (const Criterion& criterion : criteria()) {
    const char* needs = criterion.needs_pretrained ? " (needs the pretrained network)"
                        : criterion.needs_images   ? " (needs images)"
                                                   : "";
    list.emplace_back(criterion.name, criterion.description + needs);
  }
  return list;
}

struct Kind {
  std::string description;
  std::function<Described()> list;
};

const Registry<Kind>& kinds() {
  static const Registry<Kind> list(
      "kind",
      {
          {"models", {"families of networks and presets, for \"model\" of a recipe", models}},
          {"datasets",
           {"datasets, for \"data\" of a phase and --data",
            [] {
              return each(dataset_names(), [](const std::string& name) {
                return load_dataset_spec(name).description;
              });
            }}},
          {"experiments",
           {"experiments for moesaic reproduce",
            [] {
              return each(experiment_names(), [](const std::string& name) {
                return load_experiment(name, Scale::paper).description;
              });
            }}},
          {"criteria",
           {"rankings of experts for moesaic prune; experts with the largest scores are kept",
            listed_criteria}},
          {"recipes",
           {"recipes of runs for moesaic train",
            [] {
              const std::vector<fs::path> files = model_files("recipes");
              return each({files.begin(), files.end()}, first_sentence);
            }}},
          {"checkpoints",
           {"released networks of google-research/vmoe, for moesaic import vmoe",
            listed_checkpoints}},
          {"formats",
           {"file formats, for \"format\" of a dataset's description",
            [] { return of_registry(dataset_formats()); }}},
          {"objectives",
           {"training objectives, for \"loss\" of a phase of the kind gradient",
            [] { return of_registry(objectives()); }}},
          {"phases",
           {"kinds of phases, for \"kind\" of a phase", [] { return of_registry(phase_kinds()); }}},
          {"probes", {"measurements of an experiment", [] { return of_registry(probes()); }}},
          {"settings",
           {"all settings of runs, networks, descriptions and experiments",
            [] { return Described(); }}},
      });
  return list;
}

Names names_of(const Described& list) {
  Names names;
  for (const auto& [name, unused] : list) names.push_back(name);
  return names;
}

/// Prints each name with its line beside it.
void print(const Described& list, const std::string& indent = "") {
  size_t width = 0;
  for (const auto& [name, text] : list) width = std::max(width, count_characters(name));
  for (const auto& [name, text] : list) {
    const std::string room(width + 2 - count_characters(name), ' ');
    std::cout << indent << escaped(name + (text.empty() ? "" : room + text)) << '\n';
  }
}

void print_models() {
  std::cout << "families, \"model\": {\"name\": ...}\n";
  print(of_registry(families()), "  ");
  std::cout << "presets, \"model\": {\"preset\": ...}\n";
  print(presets(), "  ");
}

void print_settings(bool json) {
  auto groups = nlohmann::ordered_json::array();
  for (const SettingsGroup& group : all_settings()) {
    if (!json) {
      std::cout << group.of << "\n\n" << help_text(group.rows) << '\n';
      continue;
    }
    auto settings = nlohmann::ordered_json::array();
    for (const auto& row : group.rows) {
      settings.push_back({{"key", row.key},
                          {"type", row.type},
                          {"default", row.default_value},
                          {"allowed", row.allowed},
                          {"meaning", row.description}});
    }
    groups.push_back({{"of", group.of}, {"settings", std::move(settings)}});
  }
  if (json) std::cout << groups.dump(2) << '\n';
}

void list(const std::string& kind, bool json) {
  if (kind == "models" && !json) return print_models();
  if (kind == "settings") return print_settings(json);
  const Described listed = kind.empty() ? of_registry(kinds()) : kinds().at(kind, "list").list();
  if (json) {
    std::cout << nlohmann::json(names_of(listed)).dump(2) << '\n';
  } else {
    print(listed);
  }
}

}  // namespace

void add_list(CLI::App& app, int&) {
  auto* verb = add_verb(app, "list", "List models, datasets, recipes, experiments and other names.",
                        "list recipes");
  auto kind = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  verb->add_option("kind", *kind,
                   fmt::format("kind of names to list: {} (a list of these kinds)",
                               fmt::join(kinds().names(), ", ")))
      ->type_name("KIND");
  verb->add_flag("--json", *json, "print one JSON document");
  verb->callback([kind, json] { list(*kind, *json); });
}

}  // namespace moesaic::tools
