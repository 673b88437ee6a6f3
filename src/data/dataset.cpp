// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/dataset.h"

#include <ATen/ATen.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "check_labels.h"
#include "moesaic/base/checked.h"
#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/data/dataset_inputs.h"

namespace moesaic {
namespace {

class MemoryDataset final : public Dataset {
 public:
  MemoryDataset(DatasetInfo info, std::vector<uint8_t> pixels, std::vector<uint8_t> labels)
      : Dataset(std::move(info)), pixels_(std::move(pixels)), labels_(std::move(labels)) {}

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }

  int64_t label(int64_t index) const override {
    check_index(index);
    return labels_[static_cast<size_t>(index)];
  }

  void image(int64_t index, uint8_t* out) const override {
    check_index(index);
    std::memcpy(out, pixels_.data() + index * image_size(), static_cast<size_t>(image_size()));
  }

 private:
  std::vector<uint8_t> pixels_, labels_;
};

class InputDataset final : public Dataset {
 public:
  InputDataset(DatasetInfo info, DatasetInputs inputs)
      : Dataset(std::move(info)), inputs_(std::move(inputs)) {}

  int64_t size() const override { return inputs_.labels_N.size(0); }

  int64_t label(int64_t index) const override {
    check_index(index);
    return inputs_.labels_N.const_data_ptr<int64_t>()[index];
  }

  int64_t group(int64_t index) const override {
    if (!inputs_.groups_N.defined()) return Dataset::group(index);
    check_index(index);
    return inputs_.groups_N.const_data_ptr<int64_t>()[index];
  }

  void image(int64_t, uint8_t*) const override {
    fail("dataset '{}' has inputs that are no images", info().name);
  }

  DatasetInputs inputs() const override { return inputs_; }

 private:
  DatasetInputs inputs_;
};

/// Some examples of another dataset, perhaps with other labels.
class Subset final : public Dataset {
 public:
  struct Item {
    int64_t index, label;
  };
  Subset(DatasetInfo info, std::shared_ptr<const Dataset> base, std::vector<Item> items)
      : Dataset(std::move(info)), base_(std::move(base)), items_(std::move(items)) {}

  int64_t size() const override { return static_cast<int64_t>(items_.size()); }
  int64_t label(int64_t index) const override { return item(index).label; }
  int64_t group(int64_t index) const override { return base_->group(item(index).index); }
  void image(int64_t index, uint8_t* out) const override { base_->image(item(index).index, out); }

  Rectangle decode(int64_t index, const ChoosePart& choose, int64_t min,
                   Bitmap& bitmap) const override {
    return base_->decode(item(index).index, choose, min, bitmap);
  }

  void part(int64_t index, const ChoosePart& choose, uint8_t* out) const override {
    base_->part(item(index).index, choose, out);
  }

 private:
  const Item& item(int64_t index) const {
    check_index(index);
    return items_[static_cast<size_t>(index)];
  }

  std::shared_ptr<const Dataset> base_;
  std::vector<Item> items_;
};

class FirstOf final : public Dataset {
 public:
  FirstOf(DatasetInfo info, std::shared_ptr<const Dataset> base, int64_t count)
      : Dataset(std::move(info)), base_(std::move(base)), count_(count) {}

  int64_t size() const override { return count_; }
  int64_t label(int64_t index) const override { return base_->label(checked(index)); }
  int64_t group(int64_t index) const override { return base_->group(checked(index)); }
  void image(int64_t index, uint8_t* out) const override { base_->image(checked(index), out); }

  Rectangle decode(int64_t index, const ChoosePart& choose, int64_t min,
                   Bitmap& bitmap) const override {
    return base_->decode(checked(index), choose, min, bitmap);
  }

  void part(int64_t index, const ChoosePart& choose, uint8_t* out) const override {
    base_->part(checked(index), choose, out);
  }

  DatasetInputs inputs() const override {
    const DatasetInputs all = base_->inputs();
    const auto first = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.narrow(0, 0, count_) : tensor;
    };
    return {first(all.values_NCHW), first(all.labels_N), first(all.groups_N)};
  }

 private:
  int64_t checked(int64_t index) const {
    check_index(index);
    return index;
  }

  std::shared_ptr<const Dataset> base_;
  int64_t count_;
};

}  // namespace

void check_labels(std::span<const uint8_t> labels, size_t classes, const std::string& where) {
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] >= classes) {
      fail("{}: label {} of image {} has no class: there are {}", where, labels[i], i, classes);
    }
  }
}

void Dataset::check_index(int64_t index) const {
  if (index < 0 || index >= size()) {
    fail("dataset '{}': image {} of {} does not exist", info_.name, index, size());
  }
}

Rectangle Dataset::decode(int64_t index, const ChoosePart& choose, int64_t /*min*/,
                          Bitmap& bitmap) const {
  std::vector<uint8_t> planes(static_cast<size_t>(image_size()));
  image(index, planes.data());
  bitmap = {info_.height, info_.width, info_.channels, {}};
  bitmap.pixels.resize(planes.size());
  const int64_t plane = info_.height * info_.width;
  for (int64_t i = 0; i < plane; ++i) {
    for (int64_t c = 0; c < info_.channels; ++c) {
      bitmap.pixels[static_cast<size_t>(i * info_.channels + c)] =
          planes[static_cast<size_t>(c * plane + i)];
    }
  }
  return choose(info_.height, info_.width);
}

void Dataset::part(int64_t index, const ChoosePart& choose, uint8_t* out) const {
  Bitmap bitmap;
  const Rectangle chosen = decode(index, choose, std::max(info_.height, info_.width), bitmap);
  resize(bitmap, chosen, {}, info_.height, info_.width, out);
}

std::shared_ptr<const Dataset> make_memory_dataset(DatasetInfo info, std::vector<uint8_t> pixels,
                                                   std::vector<uint8_t> labels) {
  if (info.channels < 1 || info.height < 1 || info.width < 1) {
    fail("dataset '{}': images need at least one pixel, found {} x {} x {}", info.name,
         info.channels, info.height, info.width);
  }
  const std::optional<uint64_t> row = checked_mul(info.height, info.width);
  const std::optional<uint64_t> one = row ? checked_mul(*row, info.channels) : std::nullopt;
  const std::optional<uint64_t> all = one ? checked_mul(*one, labels.size()) : std::nullopt;
  if (!all || *all != pixels.size()) {
    fail("dataset '{}': {} labels of {} x {} x {} images, but {} bytes of pixels", info.name,
         labels.size(), info.channels, info.height, info.width, pixels.size());
  }
  check_labels(labels, info.classes.size(), fmt::format("dataset '{}'", info.name));
  return std::make_shared<MemoryDataset>(std::move(info), std::move(pixels), std::move(labels));
}

namespace {

/// Labels or groups [count] int64, each below `kinds`.
void check_numbers(const std::string& dataset, const char* what, const at::Tensor& numbers,
                   int64_t count, size_t kinds) {
  if (numbers.dim() != 1 || numbers.size(0) != count || numbers.scalar_type() != at::kLong) {
    fail("dataset '{}': {} must be [{}] int64, found {} {}", dataset, what, count,
         c10::str(numbers.sizes()), c10::toString(numbers.scalar_type()));
  }
  if (count == 0) return;
  const auto min = numbers.min().item<int64_t>(), max = numbers.max().item<int64_t>();
  if (min < 0 || max >= static_cast<int64_t>(kinds)) {
    fail("dataset '{}': {} must be between 0 and {}, found {}", dataset, what,
         static_cast<int64_t>(kinds) - 1, min < 0 ? min : max);
  }
}

}  // namespace

int64_t Dataset::group(int64_t index) const {
  fail("dataset '{}': image {} has no group", info_.name, index);
}

DatasetInputs Dataset::inputs() const {
  return {};
}

bool Dataset::has_images() const {
  return !inputs().values_NCHW.defined();
}

at::Tensor group_numbers(const Dataset& dataset, int64_t first, int64_t count) {
  if (dataset.info().groups.empty()) return {};
  at::Tensor numbers = at::empty({count}, at::kLong);
  auto* const out = numbers.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) out[i] = dataset.group(first + i);
  return numbers;
}

std::shared_ptr<const Dataset> make_input_dataset(DatasetInfo info, DatasetInputs inputs) {
  const at::Tensor& values = inputs.values_NCHW;
  if (values.dim() != 4 || values.scalar_type() != at::kFloat) {
    fail("dataset '{}': inputs must be [N, C, H, W] float32, found {} {}", info.name,
         c10::str(values.sizes()), c10::toString(values.scalar_type()));
  }
  inputs.values_NCHW = values.contiguous();
  inputs.labels_N = inputs.labels_N.contiguous();
  check_numbers(info.name, "labels", inputs.labels_N, values.size(0), info.classes.size());
  if (inputs.groups_N.defined()) {
    check_numbers(info.name, "groups", inputs.groups_N, values.size(0), info.groups.size());
  }
  info.channels = values.size(1);
  info.height = values.size(2);
  info.width = values.size(3);
  info.mean.assign(static_cast<size_t>(info.channels), 0.0);
  info.std.assign(static_cast<size_t>(info.channels), 1.0);
  return std::make_shared<InputDataset>(std::move(info), std::move(inputs));
}

std::shared_ptr<const Dataset> make_class_subset(std::shared_ptr<const Dataset> base,
                                                 const std::vector<std::string>& keep_classes,
                                                 std::string name, std::string description) {
  DatasetInfo info = base->info();
  std::vector<int64_t> new_label(info.classes.size(), -1);
  for (size_t kept = 0; kept < keep_classes.size(); ++kept) {
    const auto found = std::find(info.classes.begin(), info.classes.end(), keep_classes[kept]);
    if (found == info.classes.end()) {
      fail_usage("dataset '{}': keep_classes: '{}' has no class '{}'; {}", name, info.name,
                 keep_classes[kept], did_you_mean(keep_classes[kept], info.classes));
    }
    int64_t& label = new_label[static_cast<size_t>(found - info.classes.begin())];
    if (label >= 0) fail_usage("dataset '{}': keep_classes names '{}' twice", name, *found);
    label = static_cast<int64_t>(kept);
  }
  info.name = std::move(name);
  info.description = std::move(description);
  info.classes = keep_classes;
  std::vector<Subset::Item> items;
  for (int64_t i = 0; i < base->size(); ++i) {
    const int64_t label = new_label[static_cast<size_t>(base->label(i))];
    if (label >= 0) items.push_back({i, label});
  }
  return std::make_shared<Subset>(std::move(info), std::move(base), std::move(items));
}

std::shared_ptr<const Dataset> make_first_of(std::shared_ptr<const Dataset> base, int64_t count,
                                             std::string name, std::string description) {
  DatasetInfo info = base->info();
  if (count > base->size()) {
    fail("dataset '{}': the first {} of the {} images of '{}' are asked for", name, count,
         base->size(), info.name);
  }
  info.name = std::move(name);
  info.description = std::move(description);
  return std::make_shared<FirstOf>(std::move(info), std::move(base), count);
}

}  // namespace moesaic
