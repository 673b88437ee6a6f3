// SPDX-License-Identifier: Apache-2.0
// CelebA: img_align_celeba/, a list of attributes and a list of splits, each as the original text
// or as comma-separated values.

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "../image_files.h"
#include "checks.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/text.h"
#include "moesaic/config/document.h"

namespace moesaic {
namespace {

constexpr size_t kMaxAttributes = 8;

/// A second attribute that goes along with the label in training but not otherwise.
struct SpuriousSettings {
  std::string with, without;
  double fraction = 0.95;
};
void describe(auto& f, SpuriousSettings& c) {
  f("with", c.with, "attribute of most images with the label's attribute, e.g. Black_Hair",
    required, not_empty);
  f("without", c.without, "attribute of most images without the label's attribute, e.g. Blond_Hair",
    required, not_empty);
  f("fraction", c.fraction,
    "fraction of each class's training images with the class's own attribute of the two; other "
    "splits: one half",
    between(0.5, 0.999));
}

struct CelebaSettings {
  std::string attribute;
  std::vector<std::string> attributes;
  std::optional<SpuriousSettings> spurious;
  bool balanced = false;
  std::map<std::string, std::string> splits;

  std::vector<std::string> labels() const {
    return attribute.empty() ? attributes : std::vector<std::string>{attribute};
  }
  /// Returns the attributes to read: of the labels, then those of the spurious correlation.
  std::vector<std::string> used() const {
    std::vector<std::string> names = labels();
    if (spurious) names.insert(names.end(), {spurious->with, spurious->without});
    return names;
  }
};
void describe(auto& f, CelebaSettings& c) {
  f("attribute", c.attribute, "attribute that is the label, e.g. Smiling; empty: none");
  f("attributes", c.attributes,
    "attributes whose combinations are the labels (first attribute: highest bit), instead of "
    "attribute; empty: none");
  f("spurious", c.spurious,
    "spurious correlation of the label with one of two more attributes in the train split; images "
    "with both or neither are left out; classes are equally frequent; num_images: number of images "
    "per split (the largest possible); null: none");
  f("balanced", c.balanced,
    "balanced classes: as many images of each class as of the rarest one, in turn; num_images: "
    "number of images per split (the largest possible)");
  f("splits", c.splits,
    "partition number of each split; empty or missing: train 0, validation 1, test 2");
}

ConfigProblem attribute_problem(const DatasetSpec& spec) {
  const auto& settings = spec.format.as<CelebaSettings>();
  const size_t count = settings.labels().size();
  if (count == 0) return {"attribute is missing; give 'attribute' or 'attributes'"};
  if (!settings.attribute.empty() && !settings.attributes.empty()) {
    return {"attribute and attributes exclude each other", {"attribute", "attributes"}};
  }
  if (settings.spurious && settings.balanced) {
    return {"spurious images are balanced already; leave 'balanced' out", {"balanced", "spurious"}};
  }
  if (settings.spurious && count > 1) {
    return {fmt::format("spurious needs one attribute, found {}", count), {"attributes"}};
  }
  const std::vector<std::string> used = settings.used();
  if (const std::string* name = repeated_name(used)) {
    return {fmt::format("the attribute '{}' is named twice; leave one out", *name),
            {"attributes", "spurious"}};
  }
  if (count > kMaxAttributes) {
    return {fmt::format("attributes has {} names; give at most {}", count, kMaxAttributes),
            {"attributes"}};
  }
  if (spec.classes.size() == size_t{1} << count) return {};
  return {fmt::format("classes must have {1} names for {0}, the first for images without the "
                      "attributes; found {2}",
                      count_text(static_cast<int64_t>(count), "attribute"), size_t{1} << count,
                      spec.classes.size()),
          {"classes"}};
}

ConfigProblem check_celeba(const DatasetSpec& spec) {
  const auto& settings = spec.format.as<CelebaSettings>();
  return first_problem({no_files_problem(spec), classes_problem(spec), attribute_problem(spec),
                        unknown_split(spec.num_images, "num_images"),
                        unknown_split(settings.splits, "splits"), channels_problem(spec, 3)});
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
  for (const char* below : {"", "Anno", "Eval"}) {
    for (const char* extension : {".txt", ".csv"}) {
      const fs::path path = folder / below / (stem + extension);
      if (fs::is_regular_file(status_of(path))) return path;
    }
  }
  fail("{}: the folder has neither {}.txt nor {}.csv", folder.string(), stem, stem);
}

/// Calls `row(words, line number)` for every line that is not blank.
void for_lines(const fs::path& path, auto&& row) {
  const std::string text = read_text(path, kMaxListBytes, "a list of CelebA");
  int64_t number = 0;
  for (const std::string& line : split(without_byte_order_mark(text), '\n')) {
    ++number;
    const Words words = split_words(line);
    if (!words.empty()) row(words, number);
  }
}

int64_t integer(std::string_view word, const fs::path& path, int64_t line) {
  const auto number = parsed_number<int64_t>(word);
  if (!number) fail("{}:{}: expected a number, found '{}'", path.string(), line, word);
  return *number;
}

std::string image_name(std::string_view word, const fs::path& path, int64_t line) {
  if (word.find('/') != std::string_view::npos || word.starts_with('.')) {
    fail("{}:{}: '{}' is not a file name", path.string(), line, word);
  }
  return std::string(word);
}

/// Returns the split of each image: 0 training, 1 validation, 2 test.
std::unordered_map<std::string, int64_t> read_parts(const fs::path& path) {
  std::unordered_map<std::string, int64_t> parts;
  for_lines(path, [&](const Words& words, int64_t line) {
    if (line == 1 && words[0] == "image_id") return;
    if (words.size() != 2) fail("{}:{}: expected a file name and a partition", path.string(), line);
    const int64_t part = integer(words[1], path, line);
    if (part < 0 || part > 2)
      fail("{}:{}: the split must be 0, 1 or 2, found {}", path.string(), line, part);
    parts[image_name(words[0], path, line)] = part;
  });
  return parts;
}

/// Reads the list of attributes in either format: calls `image(file name, label)` in its order;
/// bits of the label are `attributes`, the lowest one the last.
void read_attributes(const fs::path& path, const std::vector<std::string>& attributes,
                     auto&& image) {
  std::vector<std::string> names;
  std::vector<size_t> columns;
  int64_t promised = -1, rows = 0;
  const auto read_names = [&](const Words& words) {
    names.assign(words.begin() + (words[0] == "image_id" ? 1 : 0), words.end());
    for (const std::string& attribute : attributes) {
      const auto found = std::find(names.begin(), names.end(), attribute);
      if (found == names.end()) {
        fail_usage("{}: no attribute '{}'; {}", path.string(), attribute,
                   did_you_mean(attribute, names));
      }
      columns.push_back(1 + static_cast<size_t>(found - names.begin()));
    }
  };
  for_lines(path, [&](const Words& words, int64_t line) {
    if (line == 1 && words.size() == 1) {
      promised = integer(words[0], path, line);
      return;
    }
    if (names.empty()) return read_names(words);
    if (words.size() != names.size() + 1) {
      fail("{}:{}: {}, expected {}", path.string(), line,
           count_text(static_cast<int64_t>(words.size()) - 1, "value"), names.size());
    }
    int32_t label = 0;
    for (size_t i = 0; i < columns.size(); ++i) {
      const int64_t value = integer(words[columns[i]], path, line);
      if (value < -1 || value > 1) {
        fail("{}:{}: {} is {}, expected 1 or -1", path.string(), line, attributes[i], value);
      }
      label = 2 * label + (value == 1 ? 1 : 0);
    }
    ++rows;
    image(image_name(words[0], path, line), label);
  });
  if (names.empty()) fail("{}: the file has no attributes", path.string());
  if (promised >= 0 && rows != promised) {
    fail("{}: {}, but line 1 says {}", path.string(), count_text(rows, "row"), promised);
  }
}

struct Face {
  std::string name;
  int32_t label;
  uint8_t group = 0;
};

/// Names of images by label and group: 2 * label + group, where group 1 has settings.with.
using Cells = std::array<std::vector<std::string>, 4>;

Cells cells_of(const std::vector<Face>& faces, const SpuriousSettings& settings,
               const DatasetInfo& info) {
  Cells cells;
  for (const Face& face : faces) {
    const int32_t label = face.label >> 2, second = face.label & 3;
    if (second == 1 || second == 2) {
      cells[static_cast<size_t>(2 * label + second - 1)].push_back(face.name);
    }
  }
  for (size_t cell = 0; cell < cells.size(); ++cell) {
    if (!cells[cell].empty()) continue;
    const bool with = cell % 2 == 1;
    fail("dataset '{}': no image of class '{}' in its {} split has {} and not {}", info.name,
         info.classes[cell / 2], info.split, with ? settings.with : settings.without,
         with ? settings.without : settings.with);
  }
  return cells;
}

/// Chooses as many images as the cells allow. Classes alternate, and of the first k images of each
/// round((1 - fraction) k) are of the other group, so that every prefix keeps the proportions.
std::vector<Face> correlated(const Cells& cells, double fraction) {
  const auto others = [&](int64_t k) {
    return std::llround((1.0 - fraction) * static_cast<double>(k));
  };
  std::array<size_t, 4> used = {};
  std::vector<Face> pairs;
  for (int64_t k = 0;; ++k) {
    const size_t other = others(k + 1) > others(k) ? 1 : 0;
    const size_t cell_0 = other, cell_1 = 3 - other;
    if (used[cell_0] == cells[cell_0].size() || used[cell_1] == cells[cell_1].size()) return pairs;
    for (const size_t cell : {cell_0, cell_1}) {
      pairs.push_back({cells[cell][used[cell]++], static_cast<int32_t>(cell / 2),
                       static_cast<uint8_t>(cell % 2)});
    }
  }
}

/// Returns the images of a split that settings.spurious asks for.
std::vector<Face> spurious_faces(const std::vector<Face>& faces, const SpuriousSettings& settings,
                                 const DatasetInfo& info) {
  const bool train = info.split == "train";
  std::vector<Face> chosen =
      correlated(cells_of(faces, settings, info), train ? settings.fraction : 0.5);
  const size_t whole = train ? 2 : 4;  // Every group is as frequent as the others in fours.
  chosen.resize(chosen.size() / whole * whole);
  return chosen;
}

/// Returns the images of each class in turn, until there are no more of one.
std::vector<Face> balanced_faces(const std::vector<Face>& faces, const DatasetInfo& info) {
  const size_t classes = info.classes.size();
  std::vector<std::vector<Face>> by_class(classes);
  for (const Face& face : faces) by_class[static_cast<size_t>(face.label)].push_back(face);
  size_t rarest = faces.size();
  for (size_t c = 0; c < classes; ++c) {
    rarest = std::min(rarest, by_class[c].size());
    if (rarest > 0) continue;
    fail("dataset '{}': its {} split has no image of class '{}'", info.name, info.split,
         info.classes[c]);
  }
  std::vector<Face> chosen;
  for (size_t k = 0; k < rarest; ++k) {
    for (const std::vector<Face>& of_class : by_class) chosen.push_back(of_class[k]);
  }
  return chosen;
}

/// Cuts off the images beyond those that the description asks for.
void keep_selected(std::vector<Face>& faces, const DatasetSpec& spec, const DatasetInfo& info) {
  const auto asked = spec.num_images.find(info.split);
  if (asked == spec.num_images.end()) return;
  const auto count = static_cast<size_t>(asked->second);
  if (count > faces.size()) {
    fail("dataset '{}': num_images.{} is {}, but its smallest group allows {}", info.name,
         info.split, count, faces.size());
  }
  faces.resize(count);
}

void fill_celeba_info(const DatasetSpec& spec, DatasetInfo& info) {
  const auto& spurious = spec.format.as<CelebaSettings>().spurious;
  if (spurious) info.groups = {spurious->without, spurious->with};
}

std::shared_ptr<const Dataset> open_celeba(const DatasetSpec& spec, DatasetInfo info,
                                           const fs::path& folder) {
  const fs::path parts_path = find_list(folder, "list_eval_partition");
  const auto parts = read_parts(parts_path);
  const int64_t wanted = integer(source_celeba(spec, info.split), spec.name, 0);
  info.channels = 3;
  FileList files(folder);
  const int32_t images = files.add_folder("img_align_celeba");
  const auto& settings = spec.format.as<CelebaSettings>();
  std::vector<Face> faces;
  const auto take = [&](const std::string& name, int32_t label) {
    const auto part = parts.find(name);
    if (part == parts.end()) fail("{}: no partition of '{}'", parts_path.string(), name);
    if (part->second == wanted) faces.push_back({name, label});
  };
  read_attributes(find_list(folder, "list_attr_celeba"), settings.used(), take);
  if (faces.empty()) fail("dataset '{}': no images in partition {}", info.name, wanted);
  if (settings.balanced) faces = balanced_faces(faces, info);
  if (settings.spurious) faces = spurious_faces(faces, *settings.spurious, info);
  if (settings.balanced || settings.spurious) keep_selected(faces, spec, info);
  std::vector<uint8_t> groups;
  for (const Face& face : faces) {
    files.add(images, face.name, face.label);
    if (settings.spurious) groups.push_back(face.group);
  }
  fill_celeba_info(spec, info);
  return std::make_shared<ImageFiles>(std::move(info), std::move(files), std::move(groups));
}

}  // namespace

DatasetFormat celeba_format() {
  return {
      .settings = NamedSettings("celeba", CelebaSettings{}),
      .description = "folder of CelebA's faces, with its list of attributes and its list of splits",
      .has_exif = true,
      .check = check_celeba,
      .open = open_celeba,
      .splits =
          [](const DatasetSpec&) {
            return std::vector<std::string>{"train", "validation", "test"};
          },
      .required_paths =
          [](const DatasetSpec&, const std::string&) {
            return std::vector<RequiredPath>{{"img_align_celeba"}};
          },
      .fill_info = fill_celeba_info};
}

}  // namespace moesaic
