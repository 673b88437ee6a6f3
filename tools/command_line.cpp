// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"

#include <algorithm>

#include "moesaic/base/process.h"
#include "moesaic/data/source.h"
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

std::string message(const char* kind, const std::string& word, const Names& known,
                    const std::string& note = "") {
  const std::string hint = did_you_mean(word, known);
  return fmt::format("unknown {} '{}'{}{}{}", kind, word, note, hint.empty() ? "" : "; ", hint);
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

/// A number of this type, written out in full, within these.
template <class Number>
CLI::Validator in_range(const char* what, Number min, Number max) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        const std::optional<Number> number = parsed_number<Number>(text);
        if (number && *number >= min && *number <= max) return "";
        return fmt::format("must be a {} between {} and {}, found '{}'", what, min, max, text);
      },
      "");
}

}  // namespace

CLI::App* add_verb(CLI::App& app, const std::string& name, const std::string& does,
                   const std::string& example, const std::string& notes) {
  return app.add_subcommand(name, does)
      ->footer(fmt::format("{}{}Example: moesaic {}", notes, notes.empty() ? "" : "\n\n", example));
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& text) { return text.empty() ? std::string("must not be empty") : ""; }, "");
}

CLI::Validator whole_number(int64_t min, int64_t max) {
  return in_range("whole number", min, max);
}

CLI::Validator number(double min, double max) {
  return in_range("number", min, max);
}

CLI::Validator batch_size() {
  constexpr int64_t kMax = 1 << 20;
  return whole_number(1, kMax);
}

CLI::Validator known_dataset() {
  return accepted_by([](const std::string& name) { load_dataset_spec(name); });
}

CLI::Option* add_device(CLI::App& verb, std::string& device) {
  return verb.add_option("--device", device, "device to compute on: cpu | cuda")
      ->check(accepted_by(check_device))
      ->type_name("DEVICE")
      ->capture_default_str();
}

CLI::Option* add_precision(CLI::App& verb, std::string& precision, std::vector<std::string> names) {
  return verb
      .add_option("--precision", precision,
                  fmt::format("dtype of matmuls; int8: in the experts' MLPs alone, float32 "
                              "elsewhere, on the CPU: {}",
                              fmt::join(names, " | ")))
      ->type_name("DTYPE")
      ->check(one_of_words(std::move(names)))
      ->capture_default_str();
}

CLI::Option* add_trust(CLI::App& verb, bool& trust) {
  return verb.add_flag("--trust", trust,
                       "unpickle old TorchScript files too; a malicious one can run any code");
}

namespace {

/// Returns "unknown subcommand 'traim'; did you mean 'train'?" for the first word that no
/// subcommand or option has, "" if there is none.
std::string unknown_word(const CLI::App& root, int argc, const char* const* argv) {
  const CLI::App* app = &root;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") return "";
    if (word.size() > 1 && word.front() == '-') {
      const size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      const CLI::Option* option = app->get_option_no_throw(name);
      if (option == nullptr) {
        const bool setting = app->get_name() == "train" && name.starts_with("--");
        return message(
            "option", name, options_of(*app),
            setting ? fmt::format("; settings of a recipe have no dashes: {}=VALUE", name.substr(2))
                    : "");
      }
      if (equals == std::string::npos && option->get_items_expected_max() > 0) ++i;  // Its value.
    } else if (const Names verbs = verbs_of(*app); !verbs.empty()) {
      if (std::find(verbs.begin(), verbs.end(), word) == verbs.end()) {
        return message("subcommand", word, verbs);
      }
      app = app->get_subcommand(word);
    }
  }
  return "";
}

/// Returns the library's message in the words of all others.
std::string in_our_words(const CLI::App& verb, const CLI::Error& error) {
  const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());
  const std::string what = error.what();
  if (kind == CLI::ExitCodes::ExtrasError) {
    return fmt::format("unexpected argument '{}'", what.substr(what.find(": ") + 2));
  }
  if (kind == CLI::ExitCodes::RequiredError && what.find("subcommand") != std::string::npos) {
    return did_you_mean("", verbs_of(verb));
  }
  if (kind == CLI::ExitCodes::RequiredError) {
    const CLI::Option* option = verb.get_option_no_throw(what.substr(0, what.find(' ')));
    if (option == nullptr || !option->get_positional() || !option->nonpositional()) return what;
    return fmt::format("{} or {} is required", option->get_name(true), option->get_name());
  }
  if (kind == CLI::ExitCodes::ExcludesError) {
    constexpr std::string_view kVerb = " excludes ";
    const size_t at = what.find(kVerb);
    return fmt::format("'{}' and '{}' exclude one another", what.substr(0, at),
                       what.substr(at + kVerb.size()));
  }
  if (kind == CLI::ExitCodes::ArgumentMismatch) {
    const std::string option = what.substr(0, what.find(':'));
    const bool twice = what.find("At Most") != std::string::npos;
    return option + (twice ? " is given twice" : " needs a value");
  }
  return what;
}

}  // namespace

CLI::Validator one_of_words(std::vector<std::string> words) {
  return CLI::Validator(
      [words](std::string& text) -> std::string {
        if (std::find(words.begin(), words.end(), text) != words.end()) return "";
        return fmt::format("cannot be '{}'; {}", text, did_you_mean(text, words));
      },
      "");
}

constexpr size_t kColumns = 100;  // Of a line of help.

HelpFormatter::HelpFormatter() {
  label("INT", "N");
  label("UINT", "N");
  label("FLOAT", "X");
  label("Needs", "with");
  label("Excludes", "not with");
}

std::string HelpFormatter::make_group(std::string group, bool is_positional,
                                      std::vector<const CLI::Option*> options) const {
  const bool follows = !is_positional && group != "Options";  // An empty line is there already.
  return CLI::Formatter::make_group(std::move(group), is_positional, std::move(options))
      .substr(follows ? 1 : 0);
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  std::string text;  // Of a list each item begins a line.
  for (const std::string& line : split(CLI::Formatter::make_option_desc(option), '\n')) {
    text += (text.empty() ? "" : "\n") + wrapped(line, kColumns - get_column_width(), "");
  }
  return text;
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  std::string text = CLI::Formatter::make_option_opts(option);
  for (const std::string_view end : {" ", " not with:"}) {  // A hidden option's name is empty.
    if (text.ends_with(end)) text.resize(text.size() - end.size());
  }
  constexpr std::string_view kSeveral = " ...";
  const bool says_several = option->get_type_name().find("...") != std::string::npos;
  if (const size_t at = text.find(kSeveral); says_several && at != std::string::npos) {
    text.erase(at, kSeveral.size());
  }
  const std::string name(2 + make_option_name(option, false).size(), '-');
  return wrapped(name + text, kColumns, "      ").substr(name.size());
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  if (is_positional || !option->get_positional()) {
    return CLI::Formatter::make_option(option, is_positional);
  }
  std::stringstream text;
  CLI::detail::format_help(text, make_option_name(option, false) + " " + option->get_type_name(),
                           "another name of the positional " + option->get_name(true),
                           get_column_width());
  return text.str();
}

std::vector<const char*> without_help_verb(const CLI::App& root, int argc,
                                           const char* const* argv) {
  std::vector<const char*> words(argv, argv + argc);
  if (argc < 2 || words[1] != std::string_view("help")) return words;
  words.erase(words.begin() + 1);
  size_t end = 1;  // Of the names of subcommands, behind which --help may take words.
  for (const CLI::App* app = &root; end < words.size(); ++end) {
    const Names verbs = verbs_of(*app);
    if (std::find(verbs.begin(), verbs.end(), words[end]) == verbs.end()) break;
    app = app->get_subcommand(std::string(words[end]));
  }
  if (end == 1 && words.size() > 1 && words[1][0] != '-') return words;  // It is no subcommand.
  words.insert(end == 1 ? words.end() : words.begin() + static_cast<std::ptrdiff_t>(end), "--help");
  return words;
}

std::string command_line_problem(const CLI::App& root, const CLI::Error& error, int argc,
                                 const char* const* argv) {
  const CLI::App* verb = &root;
  std::string name;
  while (!verb->get_subcommands().empty()) {
    verb = verb->get_subcommands().front();
    name += (name.empty() ? "" : " ") + verb->get_name();
  }
  const std::string unknown = unknown_word(root, argc, argv);
  return abridged(fmt::format("{}{}{} (see moesaic {}{}--help)", name, name.empty() ? "" : ": ",
                              unknown.empty() ? in_our_words(*verb, error) : unknown, name,
                              name.empty() ? "" : " "));
}

void log_written(const fs::path& path) {
  namespace fs = std::filesystem;
  uint64_t bytes = 0;
  const bool is_prefix = !fs::exists(path);  // Of files of google-research/vmoe.
  if (fs::is_directory(path)) {
    for (const auto& item : fs::recursive_directory_iterator(path)) {
      if (item.is_regular_file()) bytes += item.file_size();
    }
  } else if (!is_prefix) {
    bytes = fs::file_size(path);
  } else {
    const std::string prefix = path.filename().string();
    for (const auto& item : fs::directory_iterator(fs::absolute(path).parent_path())) {
      if (item.path().filename().string().starts_with(prefix + ".")) bytes += item.file_size();
    }
  }
  log_info("wrote {}{}, {}", path.string(), is_prefix ? ".index and its shards" : "",
           bytes_text(static_cast<double>(bytes)));
}

void add_topic_help(CLI::App& verb, const std::string& help,
                    std::function<std::string(const std::vector<std::string>& words)> topic) {
  verb.set_help_flag();
  verb.add_option_function<std::vector<std::string>>(
          "-h,--help",
          [&verb, topic = std::move(topic)](std::vector<std::string> words) {
            std::erase(words, "");  // What the option has without a value.
            std::cout << (words.empty() ? verb.get_parent()->help() : "") << topic(words);
            throw CLI::Success();
          },
          help)
      ->expected(0, -1)
      ->type_name("TOPIC");
}

void remember_call(const char* name) {
  if (name != nullptr && *name != '\0') program() = shell_quoted(name);
}

const std::string& called_as() {
  return program();
}

}  // namespace moesaic::tools
