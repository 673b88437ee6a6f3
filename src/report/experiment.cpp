// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/experiment.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/path.h"
#include "moesaic/base/resources.h"
#include "moesaic/base/text.h"
#include "moesaic/config/document.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

std::map<std::string, fs::path> shipped_experiments() {
  std::map<std::string, fs::path> found;
  std::error_code ignored;
  for (const auto& family : fs::directory_iterator(resource("models"), ignored)) {
    for (const auto& file : fs::directory_iterator(family.path() / "experiments", ignored)) {
      if (file.path().extension() != ".json") continue;
      const Document document = Document::from_file(file.path());
      found[document.root().at("name").as_string("name")] = file.path();
    }
  }
  return found;
}

fs::path find_experiment(const std::string& name_or_file) {
  if (name_or_file.ends_with(".json")) {
    check_input_file(name_or_file);
    return name_or_file;
  }
  const auto shipped = shipped_experiments();
  if (const auto found = shipped.find(name_or_file); found != shipped.end()) return found->second;
  fail_usage("no experiment '{}'; {}", name_or_file,
             did_you_mean(name_or_file, experiment_names()));
}

void shrink(Document& document) {
  const Value root = document.root();  // The root is a copy, since set() replaces it.
  const Value* quick = root.find("quick");
  if (quick == nullptr || quick->is_null()) {
    fail_usage("{}: the experiment has no quick scale", root.where());
  }
  for (const Value::Member& setting : quick->members("quick")) {
    document.set(setting.key, setting.value);
  }
}

/// Reads the former kind of experiments that prune as what it is now.
void rename_kind(Document& document) {
  const Value root = document.root();
  const Value* kind = root.find("kind");
  if (kind == nullptr || kind->kind() != Value::Kind::string) return;
  if (kind->as_string() != "prune-sweep") return;
  log_warning("{}: the kind 'prune-sweep' is 'runs' now, with \"runs\": 1 where it has no number",
              kind->where());
  document.set("kind", Value::from_json("runs", kind->where()));
  if (root.find("runs") == nullptr) document.set("runs", Value::from_json(1, kind->where()));
}

/// Throws Error (usage) for a name that cannot be that of a folder; '/' parts the family from it.
void check_name(const Value& value) {
  const std::string name = value.as_string("name");
  const size_t slash = std::min(name.find('/'), name.size());
  const bool plain = is_plain_name(name.substr(0, slash)) &&
                     (slash == name.size() || is_plain_name(name.substr(slash + 1)));
  if (plain) return;
  fail_usage("{}: name {} may hold letters, digits, '-', '_' and '.', and one '/' between them",
             value.where(), printable(name));
}

/// Throws Error (usage) for an override of the quick scale, since overrides apply after it.
void check_override(const std::string& assignment) {
  constexpr std::string_view kQuick = "quick.";
  if (assignment.starts_with(kQuick)) {
    fail_usage("argument '{}': overrides come after the quick scale; give '{}'", assignment,
               assignment.substr(kQuick.size()));
  }
}

}  // namespace

std::string_view scale_name(Scale scale) {
  return scale == Scale::quick ? "quick" : "paper";
}

Scale parse_scale(std::string_view name) {
  for (const Scale scale : {Scale::paper, Scale::quick}) {
    if (name == scale_name(scale)) return scale;
  }
  fail_usage("no scale '{}'; choose one of paper, quick", name);
}

std::vector<std::string> experiment_names() {
  std::vector<std::string> names;
  for (const auto& [name, path] : shipped_experiments()) names.push_back(name);
  return names;
}

Experiment load_experiment(const std::string& name_or_file, Scale scale,
                           const std::vector<std::string>& overrides) {
  Document document = Document::from_file(find_experiment(name_or_file));
  for (const std::string& assignment : overrides) check_override(assignment);
  rename_kind(document);
  if (scale == Scale::quick) shrink(document);
  for (const std::string& assignment : overrides) document.set(assignment);
  const Value& root = document.root();
  check_name(root.at("name"));
  return {.name = root.at("name").as_string("name"),
          .kind = root.at("kind").as_string("kind"),
          .description = root.at("description").as_string("description"),
          .scale = scale,
          .overrides = overrides,
          .config = root};
}

}  // namespace moesaic
