// SPDX-License-Identifier: Apache-2.0
// CelebA: img_align_celeba/, a list of attributes and a list of splits, each as the original text
// or as comma-separated values.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>
#include <system_error>
#include <unordered_map>

#include "../image_files.h"
#include "built_in.h"
#include "checks.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/text.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

struct CelebaSettings {
  std::string attribute;
  std::map<std::string, std::string> splits;
};
template <class Fields>
void describe(Fields& f, CelebaSettings& c) {
  f("attribute", c.attribute, "the attribute that is the label, e.g. Smiling");
  f("splits", c.splits, "part of each split, by default train 0, validation 1, test 2");
}

ConfigProblem check_celeba(const DatasetSpec& spec) {
  const auto& settings = spec.format.as<CelebaSettings>();
  const ConfigProblem attribute =
      spec.classes.size() != 2
          ? ConfigProblem("an attribute has two classes: the one without it comes first",
                          {"classes"})
          : ConfigProblem(settings.attribute.empty() ? "attribute is missing" : "");
  return first_problem(no_files_problem(spec), classes_problem(spec), attribute,
                       unknown_split(spec.images, "images"),
                       unknown_split(settings.splits, "splits"), channels_problem(spec, 3));
}

std::string source_celeba(const DatasetSpec& spec, const std::string& split) {
  const auto& splits = spec.format.as<CelebaSettings>().splits;
  if (const auto found = splits.find(split); found != splits.end()) return found->second;
  return split == "train" ? "0" : split == "validation" ? "1" : "2";
}

using Words = std::vector<std::string_view>;

Words split_words(std::string_view line) {
  constexpr std::string_view kSeparators = " \t\r,";
  Words words;
  while (true) {
    const size_t begin = line.find_first_not_of(kSeparators);
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const size_t end = std::min(line.find_first_of(kSeparators), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

/// Returns the list beside the images or in the subfolder of the original release.
fs::path find_list(const fs::path& folder, const std::string& stem) {
  std::error_code error;
  for (const char* below : {"", "Anno", "Eval"}) {
    for (const char* extension : {".txt", ".csv"}) {
      const fs::path path = folder / below / (stem + extension);
      if (fs::is_regular_file(path, error)) return path;
    }
  }
  fail("{}: neither {}.txt nor {}.csv in it", folder.string(), stem, stem);
}

/// Calls `row(words, line number)` for every line that is not blank.
template <class F>
void for_lines(const fs::path& path, F&& row) {
  const std::string text = read_text(path);
  std::istringstream lines(text);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const Words words = split_words(line);
    if (!words.empty()) row(words, number);
  }
}

int64_t integer(std::string_view word, const fs::path& path, int64_t line) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) {
    fail("{}:{}: expected a number, found '{}'", path.string(), line, word);
  }
  return value;
}

std::string image_name(std::string_view word, const fs::path& path, int64_t line) {
  if (word.find('/') != std::string_view::npos || word.starts_with('.')) {
    fail("{}:{}: '{}' is no file name", path.string(), line, word);
  }
  return std::string(word);
}

/// Returns the split of each image: 0 training, 1 validation, 2 test.
std::unordered_map<std::string, int64_t> read_parts(const fs::path& path) {
  std::unordered_map<std::string, int64_t> parts;
  for_lines(path, [&](const Words& words, int64_t line) {
    if (line == 1 && words[0] == "image_id") return;
    if (words.size() != 2) fail("{}:{}: expected a file name and a part", path.string(), line);
    const int64_t part = integer(words[1], path, line);
    if (part < 0 || part > 2) fail("{}:{}: part {} is not 0, 1 or 2", path.string(), line, part);
    parts[image_name(words[0], path, line)] = part;
  });
  return parts;
}

/// Reader of the list of attributes in either format.
class AttributeList {
 public:
  AttributeList(fs::path path, std::string attribute)
      : path_(std::move(path)), attribute_(std::move(attribute)) {}

  /// Calls `image(file name, label)` in the list's order.
  template <class F>
  void read(F&& image) {
    int64_t rows = 0;
    for_lines(path_, [&](const Words& words, int64_t line) {
      if (line == 1 && words.size() == 1) {
        promised_ = integer(words[0], path_, line);
      } else if (names_.empty()) {
        read_names(words);
      } else {
        ++rows;
        image(image_name(words[0], path_, line), label(words, line));
      }
    });
    if (names_.empty()) fail("{}: no attributes in it", path_.string());
    if (promised_ >= 0 && rows != promised_) {
      fail("{}: {}, but it says {}", path_.string(), count_text(rows, "row"), promised_);
    }
  }

 private:
  void read_names(const Words& words) {
    const bool with_title = words[0] == "image_id";
    names_.assign(words.begin() + (with_title ? 1 : 0), words.end());
    const auto found = std::find(names_.begin(), names_.end(), attribute_);
    if (found == names_.end()) {
      fail_usage("{}: no attribute '{}'; {}", path_.string(), attribute_,
                 did_you_mean(attribute_, names_));
    }
    column_ = 1 + static_cast<size_t>(found - names_.begin());
  }

  int32_t label(const Words& words, int64_t line) const {
    if (words.size() != names_.size() + 1) {
      fail("{}:{}: {}, expected {}", path_.string(), line,
           count_text(static_cast<int64_t>(words.size()) - 1, "value"), names_.size());
    }
    const int64_t value = integer(words[column_], path_, line);
    if (value < -1 || value > 1) {
      fail("{}:{}: {} is {}, expected 1 or -1", path_.string(), line, attribute_, value);
    }
    return value == 1 ? 1 : 0;
  }

  fs::path path_;
  std::string attribute_;
  std::vector<std::string> names_;
  size_t column_ = 0;
  int64_t promised_ = -1;
};

std::shared_ptr<const Dataset> open_celeba(const DatasetSpec& spec, DatasetInfo info,
                                           const fs::path& folder) {
  const fs::path parts_path = find_list(folder, "list_eval_partition");
  const auto parts = read_parts(parts_path);
  const int64_t wanted = integer(source_celeba(spec, info.split), spec.name, 0);
  info.channels = 3;
  FileList files(folder);
  const int32_t images = files.add_folder("img_align_celeba");
  AttributeList list(find_list(folder, "list_attr_celeba"),
                     spec.format.as<CelebaSettings>().attribute);
  list.read([&](const std::string& name, int32_t label) {
    const auto part = parts.find(name);
    if (part == parts.end()) fail("{}: no part of '{}' in it", parts_path.string(), name);
    if (part->second == wanted) files.add(images, name, label);
  });
  if (files.size() == 0) fail("dataset '{}': no images in its part {}", info.name, wanted);
  return std::make_shared<ImageFiles>(std::move(info), std::move(files), false);
}

}  // namespace

DatasetFormat celeba_format() {
  return {
      .settings = Choice("celeba", CelebaSettings{}),
      .check = check_celeba,
      .open = open_celeba,
      .splits =
          [](const DatasetSpec&) {
            return std::vector<std::string>{"train", "validation", "test"};
          },
      .source = source_celeba,
      .parts = [](const DatasetSpec&,
                  const std::string&) { return std::vector<DatasetPart>{{"img_align_celeba"}}; },
      .verify = verify_image_files};
}

}  // namespace moesaic
