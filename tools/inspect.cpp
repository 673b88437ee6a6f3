// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/inspect.h"
#include "command_line.h"

namespace moesaic::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Returns a value out of a file as a line; JSON escapes only some of what a terminal obeys.
std::string text_of(const Json& value) {
  return escaped(value.dump());
}

/// Returns what turns bytes into the network's input, as a line; a value that is not known is null.
std::string input_text(const Json& input) {
  std::string text;
  for (const char* key :
       {"input_size", "interpolation", "antialias", "central_crop", "values", "mean", "std"}) {
    if (input.contains(key))
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, text_of(input[key]));
  }
  return text;
}

/// Returns the values of an object as a line, but for null and groups of them.
std::string plain_text(const Json& object) {
  std::string text;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || value.is_object()) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", escaped(key), text_of(value));
  }
  return text;
}

/// Prints a line for each group of a network's settings, such as "encoder.moe.router".
void print_groups(const Json& settings, const std::string& path) {
  for (const auto& [key, value] : settings.items()) {
    if (!value.is_object()) continue;
    const std::string name = path.empty() ? escaped(key) : path + "." + escaped(key);
    const std::string settings_text = plain_text(value);
    if (!settings_text.empty()) std::cout << fmt::format("  {}: {}\n", name, settings_text);
    print_groups(value, name);
  }
}

void print_summary(const Json& found) {
  std::cout << fmt::format("{} {}\n", escaped(found["kind"].get<std::string>()),
                           escaped(found["path"].get<std::string>()));
  if (found.contains("model") && found["model"].is_object()) {
    Json model = found["model"];
    const std::string family = escaped(model.value("name", ""));
    model.erase("name");
    std::cout << fmt::format("  network    {}, {}\n", family, plain_text(model));
    print_groups(model, "");
  }
  std::cout << fmt::format("  parameters {}, {} bytes\n", found["parameters"].get<int64_t>(),
                           found["bytes"].get<int64_t>());
  for (const char* key : {"files", "shards", "data", "classes"}) {
    if (found.contains(key)) std::cout << fmt::format("  {:<10} {}\n", key, text_of(found[key]));
  }
  if (found.contains("input"))
    std::cout << fmt::format("  input      {}\n", input_text(found["input"]));
  if (found.contains("state"))
    std::cout << fmt::format("  state      {}\n", plain_text(found["state"]));
  for (const auto& layer : found.value("moe", Json::array())) {
    std::cout << fmt::format(
        "  block {}: {}, {}\n", layer["layer"].get<int64_t>(),
        count_text(layer["experts"].get<int64_t>(), "expert"),
        layer["kept"].is_null() ? "none pruned" : "kept " + layer["kept"].dump());
  }
  for (const auto& tensor : found["tensors"]) {
    std::cout << fmt::format("  {:<44} {:<5} {}\n", escaped(tensor["name"].get<std::string>()),
                             tensor["dtype"].get<std::string>(), tensor["shape"].dump());
  }
}

/// Returns the text of a differing setting; `side` is "first" or "second".
std::string config_text(const Json& item, const char* side) {
  return item[side].is_null() ? item.value("absent", "absent") : text_of(item[side]);
}

void print_difference(const Json& difference) {
  for (const char* side : {"only_in_first", "only_in_second"}) {
    for (const auto& name : difference[side]) {
      std::cout << fmt::format("{:<15} {}\n", side, escaped(name.get<std::string>()));
    }
  }
  for (const auto& item : difference["different_shape"]) {
    std::cout << fmt::format("different_shape {}: {} and {}\n",
                             escaped(item["name"].get<std::string>()), item["first"].dump(),
                             item["second"].dump());
  }
  for (const auto& item : difference["changed"]) {
    std::cout << fmt::format("changed         {:<44} by {:.3g} of its norm\n",
                             escaped(item["name"].get<std::string>()),
                             item["relative_change"].get<double>());
  }
  for (const auto& item : difference["config"]) {
    std::cout << fmt::format("config          {}: {} and {}\n",
                             escaped(item["key"].get<std::string>()), config_text(item, "first"),
                             config_text(item, "second"));
  }
  std::cout << fmt::format("equal           {}\n",
                           count_text(difference["equal"].get<int64_t>(), "tensor"));
}

struct InspectOptions {
  std::string first, second;
  bool json = false, trust = false;
};

void inspect_verb(const InspectOptions& options) {
  const bool two = !options.second.empty();
  const Json found = two ? inspect_difference(options.first, options.second, options.trust)
                         : inspect(options.first, options.trust);
  if (options.json) {
    std::cout << found.dump(2) << '\n';
  } else if (two) {
    print_difference(found);
  } else {
    print_summary(found);
  }
}

}  // namespace

void add_inspect(CLI::App& app, int&) {
  auto* verb = add_verb(app, "inspect", "Show the content of a run, a checkpoint or a file.",
                        "inspect checkpoints/first");
  auto options = std::make_shared<InspectOptions>();
  add_text(*verb, "path", options->first, "PATH",
           "run, checkpoint, export (folder, .safetensors or TorchScript file), index of "
           ".safetensors files, or prefix of a vmoe checkpoint")
      ->required();
  add_text(*verb, "path2", options->second, "PATH",
           "second path of any of these kinds, to compare with the first");
  verb->add_flag("--json", options->json, "print one JSON document");
  add_trust(*verb, options->trust);
  verb->callback([options] { inspect_verb(*options); });
}

}  // namespace moesaic::tools
