// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/process.h"
#include "moesaic/data/catalog.h"
#include "moesaic/ops/device.h"

namespace moesaic::tools {
namespace {

using Names = std::vector<std::string>;

std::string& program() {
  static std::string name = "moesaic";
  return name;
}

Names options_of(const CLI::App& app) {
  Names names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

Names verbs_of(const CLI::App& app) {
  Names names;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) names.push_back(verb->get_name());
  return names;
}

std::string message(const char* kind, const std::string& word, const Names& known) {
  const std::string hint = did_you_mean(word, known);
  return fmt::format("unknown {} '{}'{}{}", kind, word, hint.empty() ? "" : "; ", hint);
}

/// A value for which `check` throws no Error.
CLI::Validator accepted_by(void (*check)(const std::string& value)) {
  return CLI::Validator(
      [check](std::string& value) -> std::string {
        try {
          check(value);
          return "";
        } catch (const Error& error) {
          return error.what();
        }
      },
      "");
}

}  // namespace

CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& text) { return text.empty() ? std::string("must not be empty") : ""; }, "");
}

CLI::Validator whole_number(int64_t min, int64_t max) {
  return CLI::Validator(
      [min, max](std::string& text) -> std::string {
        int64_t number = 0;
        const char* end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, number);
        if (error == std::errc() && stop == end && number >= min && number <= max) return "";
        return fmt::format("must be a whole number between {} and {}, found '{}'", min, max, text);
      },
      "");
}

CLI::Validator batch_size() {
  constexpr int64_t kMax = 1 << 20;
  return whole_number(1, kMax);
}

CLI::Validator known_dataset() {
  return accepted_by([](const std::string& name) { load_dataset_spec(name); });
}

CLI::Option* add_device(CLI::App& verb, std::string& device) {
  return verb.add_option("--device", device, "where to compute: cpu | cuda")
      ->check(accepted_by(check_device))
      ->type_name("DEVICE")
      ->capture_default_str();
}

CLI::Option* add_precision(CLI::App& verb, std::string& precision) {
  return verb
      .add_option("--precision", precision, "of products in the network: float32 | bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
}

std::string unknown_word(const CLI::App& root, int argc, const char* const* argv) {
  const CLI::App* app = &root;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") return "";
    if (word.size() > 1 && word.front() == '-') {
      const size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      const CLI::Option* option = app->get_option_no_throw(name);
      if (option == nullptr) return message("option", name, options_of(*app));
      if (equals == std::string::npos && option->get_items_expected_max() > 0) ++i;  // Its value.
    } else if (const Names verbs = verbs_of(*app); !verbs.empty()) {
      if (std::find(verbs.begin(), verbs.end(), word) == verbs.end()) {
        return message("verb", word, verbs);
      }
      app = app->get_subcommand(word);
    }
  }
  return "";
}

void remember_call(const char* name) {
  if (name != nullptr && *name != '\0') program() = shell_quoted(name);
}

const std::string& called_as() {
  return program();
}

}  // namespace moesaic::tools
