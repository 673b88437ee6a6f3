// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>

#include "moesaic/base/text.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {
namespace {

/// Returns the number that ends a file's name before its extension; 0 where it ends in none.
int64_t number_of(const std::string& name) {
  const std::string stem = fs::path(name).stem().string();
  const size_t begin = stem.find_last_not_of("0123456789") + 1;  // npos + 1 is 0.
  return parsed_number<int64_t>(stem.substr(begin)).value_or(0);
}

/// Returns an image's place in the file of labels. Throws Error (usage) where it was `taken`.
size_t place_of(const Dataset& dataset, int64_t index, const fs::path& file,
                std::vector<bool>& taken) {
  const std::optional<ImageFile> image = dataset.file(index);
  if (!image) return static_cast<size_t>(index);
  const auto place = static_cast<size_t>(number_of(image->name) - 1);  // None is out of range.
  if (place < taken.size() && !taken[place]) {
    taken[place] = true;
    return place;
  }
  fail_usage(
      "{}: the image '{}' does not tell which labels are its own; end each name in another number "
      "from 1 to {}, such as ILSVRC2012_val_00000001.JPEG",
      file.string(), one_line(image->name), taken.size());
}

}  // namespace

LabelLists read_real_labels(const fs::path& file, const Dataset& dataset) {
  const DatasetInfo& info = dataset.info();
  const auto num_images = dataset.size(), num_classes = std::ssize(info.classes);
  const Document document = Document::from_file(file, kMaxListBytes);
  const Value::Array& lists = document.root().items("labels");
  if (std::ssize(lists) != num_images) {
    fail_usage("{}: it has labels of {}, but the {} split of '{}' has {}; choose the split of {}",
               file.string(), count_text(std::ssize(lists), "image"), info.split,
               one_line(info.name), num_images, std::ssize(lists));
  }
  LabelLists labels;
  bool has_labels = false;
  std::vector<bool> taken(static_cast<size_t>(num_images));
  for (int64_t i = 0; i < num_images; ++i) {
    labels.emplace_back();
    for (const Value& value : lists[place_of(dataset, i, file, taken)].items("labels")) {
      const int64_t label = value.as_int("label");
      if (label < 0 || label >= num_classes) {
        fail_usage("{}: '{}' has {}, but no class {}; choose one below {}", value.where(),
                   one_line(info.name), count_text(num_classes, "class"), label, num_classes);
      }
      labels.back().push_back(label);
      has_labels = true;
    }
  }
  if (has_labels) return labels;
  fail_usage("{}: no image has a label; give the file real.json of ImageNet-ReaL", file.string());
}

Metrics real_label_metrics(const LabelLists& labels, const std::vector<std::string>& classes,
                           const at::Tensor& predicted_N, const std::vector<std::string>& outputs) {
  std::unordered_map<std::string, int64_t> by_name;
  for (size_t i = 0; i < outputs.size(); ++i) by_name.emplace(outputs[i], i);
  const bool are_same = classes == outputs;
  const auto predicted = predicted_N.accessor<int64_t, 1>();
  double images = 0.0, correct = 0.0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const int64_t found = predicted[static_cast<int64_t>(i)];
    const bool is_right = std::ranges::any_of(labels[i], [&](int64_t label) {
      return are_same ? label == found : by_name.at(classes[static_cast<size_t>(label)]) == found;
    });
    images += labels[i].empty() ? 0.0 : 1.0;
    correct += is_right ? 1.0 : 0.0;
  }
  return {{"real.accuracy", 100.0 * correct / images}, {"real.images", images}};
}

}  // namespace moesaic
