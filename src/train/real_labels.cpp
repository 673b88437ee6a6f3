// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/real_labels.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"
#include "moesaic/config/document.h"

namespace moesaic {
namespace {

/// Returns the number that ends a file's name before its extension; 0 where it ends in none.
int64_t number_of(const std::string& name) {
  const std::string stem = fs::path(name).stem().string();
  const size_t begin = stem.find_last_not_of("0123456789") + 1;  // npos + 1 is 0.
  int64_t number = 0;
  const auto [end, error] = std::from_chars(stem.data() + begin, stem.data() + stem.size(), number);
  return error == std::errc() ? number : 0;
}

/// Returns where each image's labels stand in the file.
std::vector<int64_t> places_of(const Dataset& dataset, const fs::path& file) {
  std::vector<int64_t> places;
  std::vector<bool> is_taken(static_cast<size_t>(dataset.size()));
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const std::optional<ImageFile> image = dataset.file(i);
    const int64_t place = image ? number_of(image->name) - 1 : i;
    if (place < 0 || place >= dataset.size() || is_taken[static_cast<size_t>(place)]) {
      fail_usage(
          "{}: the image '{}' does not tell which labels are its own; end each name in another "
          "number from 1 to {}, such as ILSVRC2012_val_00000001.JPEG",
          file.string(), one_line(image->name), dataset.size());
    }
    is_taken[static_cast<size_t>(place)] = true;
    places.push_back(place);
  }
  return places;
}

}  // namespace

RealLabels::RealLabels(const fs::path& file, const Dataset& dataset)
    : classes_(dataset.info().classes) {
  const DatasetInfo& info = dataset.info();
  if (classes_.empty()) {
    fail_usage("{}: labels need classes, but the targets of '{}' are real numbers; leave it out",
               file.string(), one_line(info.name));
  }
  const Document document = Document::from_file(file, kMaxListBytes);
  const Value::Array& lists = document.root().items("labels");
  if (std::ssize(lists) != dataset.size()) {
    fail_usage("{}: it has labels of {}, but the {} split of '{}' has {}; choose the split of {}",
               file.string(), count_text(std::ssize(lists), "image"), info.split,
               one_line(info.name), dataset.size(), std::ssize(lists));
  }
  const auto num_classes = std::ssize(classes_);
  bool has_labels = false;
  for (const int64_t place : places_of(dataset, file)) {
    labels_.emplace_back();
    for (const Value& value : lists[static_cast<size_t>(place)].items("labels")) {
      const int64_t label = value.as_int("label");
      if (label < 0 || label >= num_classes) {
        fail_usage("{}: '{}' has no class {}; choose one of 0 to {}", value.where(),
                   one_line(info.name), label, num_classes - 1);
      }
      labels_.back().push_back(label);
      has_labels = true;
    }
  }
  if (!has_labels) {
    fail_usage("{}: no image has a label; give the file real.json of ImageNet-ReaL", file.string());
  }
}

Metrics RealLabels::measure(const at::Tensor& predicted_N,
                            const std::vector<std::string>& outputs) const {
  std::unordered_map<std::string, int64_t> by_name;
  for (size_t i = 0; i < classes_.size(); ++i) by_name.emplace(classes_[i], i);
  std::vector<int64_t> own;  // The data's class of each output, -1 where there is none.
  for (const std::string& name : outputs) {
    const auto found = by_name.find(name);
    own.push_back(found == by_name.end() ? -1 : found->second);
  }
  const auto predicted = predicted_N.accessor<int64_t, 1>();
  double images = 0.0, correct = 0.0;
  for (size_t i = 0; i < labels_.size(); ++i) {
    if (labels_[i].empty()) continue;
    const int64_t output = predicted[static_cast<int64_t>(i)];
    const int64_t found = own.empty() ? output : own[static_cast<size_t>(output)];
    images += 1.0;
    if (std::ranges::find(labels_[i], found) != labels_[i].end()) correct += 1.0;
  }
  return {{"real.accuracy", 100.0 * correct / images}, {"real.images", images}};
}

}  // namespace moesaic
