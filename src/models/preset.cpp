// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/preset.h"

#include <algorithm>
#include <filesystem>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/resources.h"
#include "moesaic/config/document.h"
#include "moesaic/models/model.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKey = "preset";
constexpr int kMaxDepth = 8;  // Stops presets that name one another in a cycle.

Value read_preset(const std::string& name, const std::string& where) {
  const std::vector<std::string> names = preset_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    fail_usage("{}: no preset is called '{}'; {}", where, name, did_you_mean(name, names));
  }
  return Document::from_file(preset_path(name)).root();
}

Value without_key(const Value& config, std::string_view key) {
  Value::Object members = config.members();
  std::erase_if(members, [&](const Value::Member& member) { return member.key == key; });
  return Value(config.origin(), std::move(members));
}

Value filled(const Value& config, int depth) {
  const Value* name = config.find(kKey);
  if (name == nullptr) return config;
  if (depth == kMaxDepth) fail_usage("{}: presets name one another in a circle", name->where());
  const Value preset = read_preset(name->as_string(kKey), name->where());
  return filled(preset, depth + 1).merged(without_key(config, kKey));
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& family : fs::directory_iterator(resource("models"))) {
    const fs::path folder = family.path() / "presets";
    if (!fs::is_directory(folder)) continue;
    for (const auto& file : fs::directory_iterator(folder)) {
      if (file.path().extension() != ".json") continue;
      names.push_back(family.path().filename().string() + "/" + file.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

fs::path preset_path(const std::string& name) {
  const fs::path path(name);
  return resource("models") / path.parent_path() / "presets" / (path.filename().string() + ".json");
}

Value with_preset(const Value& config) {
  const Value all = filled(config, 0);
  return all.find(kConstantsKey) == nullptr ? all : without_key(all, kConstantsKey);
}

}  // namespace moesaic
