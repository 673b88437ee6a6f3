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
#include "moesaic/base/text.h"

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

/// Returns `tensor`. Throws Error (failure) if it is undefined.
const at::Tensor& present(const at::Tensor& tensor, const DatasetInfo& info, const char* what) {
  if (!tensor.defined()) fail("dataset '{}' has no {}", info.name, what);
  return tensor;
}

/// Base of datasets of inputs that are not images, in memory or generated.
class InputsOnly : public Dataset {
 public:
  void image(int64_t, uint8_t*) const override {
    fail("dataset '{}' has inputs that are no images", info().name);
  }
  bool has_images() const override { return false; }
  Directions directions() const override { return directions_; }

 protected:
  InputsOnly(DatasetInfo info, Directions directions)
      : Dataset(std::move(info)), directions_(std::move(directions)) {}

  int64_t label_at(const DatasetInputs& inputs, int64_t row) const {
    return present(inputs.labels_N, info(), "labels").const_data_ptr<int64_t>()[row];
  }
  int64_t group_at(const DatasetInputs& inputs, int64_t row) const {
    return present(inputs.groups_N, info(), "groups").const_data_ptr<int64_t>()[row];
  }
  void targets_at(const DatasetInputs& inputs, int64_t row, float* out) const {
    const at::Tensor& all = present(inputs.targets_NK, info(), "real-valued targets");
    std::copy_n(all.const_data_ptr<float>() + row * all.size(1), all.size(1), out);
  }

 private:
  Directions directions_;
};

class InputDataset final : public InputsOnly {
 public:
  InputDataset(DatasetInfo info, DatasetInputs inputs, Directions directions)
      : InputsOnly(std::move(info), std::move(directions)), inputs_(std::move(inputs)) {}

  int64_t size() const override { return inputs_.values_NCHW.size(0); }
  int64_t label(int64_t index) const override { return label_at(inputs_, checked(index)); }
  int64_t group(int64_t index) const override {
    if (!inputs_.groups_N.defined()) return Dataset::group(index);
    return group_at(inputs_, checked(index));
  }
  void targets(int64_t index, float* out) const override {
    targets_at(inputs_, checked(index), out);
  }
  DatasetInputs inputs() const override { return inputs_; }

 private:
  int64_t checked(int64_t index) const {
    check_index(index);
    return index;
  }

  DatasetInputs inputs_;
};

class StreamDataset final : public InputsOnly {
 public:
  StreamDataset(DatasetInfo info, int64_t size, MakeInputs make, Directions directions)
      : InputsOnly(std::move(info), std::move(directions)), size_(size), make_(std::move(make)) {}

  int64_t size() const override { return size_; }
  bool endless() const override { return true; }
  int64_t label(int64_t index) const override { return label_at(generate(index, 1), 0); }
  int64_t group(int64_t index) const override { return group_at(generate(index, 1), 0); }
  void targets(int64_t index, float* out) const override { targets_at(generate(index, 1), 0, out); }
  DatasetInputs inputs() const override { return {}; }
  DatasetInputs generate(int64_t first, int64_t count) const override {
    check_index(first);
    return make_(first, count);
  }

 private:
  int64_t size_;
  MakeInputs make_;
};

}  // namespace

void check_labels(std::span<const uint8_t> labels, size_t classes, const std::string& where) {
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] >= classes) {
      fail("{}: label {} of image {} has no class: there are {}", where, labels[i], i, classes);
    }
  }
}

namespace {

void check_names(const DatasetInfo& info, const char* noun, const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    const char* problem = name.empty()              ? "is empty"
                          : find_invalid_utf8(name) ? "is not UTF-8"
                          : escaped(name) != name   ? "has a control character"
                                                    : nullptr;
    if (problem == nullptr) continue;
    fail("dataset '{}': the name {} of {} {} {}; rename it", one_line(info.name), printable(name),
         noun, i, problem);
  }
}

}  // namespace

Dataset::Dataset(DatasetInfo info) : info_(std::move(info)) {
  check_names(info_, "class", info_.classes);
  check_names(info_, "group", info_.groups);
  check_names(info_, "target", info_.targets);
}

void Dataset::check_index(int64_t index) const {
  if (index < 0 || (index >= size() && !endless())) {
    fail("dataset '{}': image {} of {} does not exist", info_.name, index, size());
  }
}

Rectangle Dataset::decode(int64_t index, const ChoosePart& choose, const ReadOptions& options,
                          Bitmap& bitmap) const {
  std::vector<uint8_t> planes(static_cast<size_t>(image_size()));
  // Parts of it may have settings of their own, which stay where nothing else is asked for.
  const bool as_set = options.upright == info_.upright.value_or(true);
  oriented_image(index, as_set ? std::nullopt : options.upright, planes.data());
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

/// Checks that labels or groups are [count] int64, each below `kinds`.
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

void Dataset::oriented_image(int64_t index, std::optional<bool>, uint8_t* out) const {
  image(index, out);
}

void Dataset::targets(int64_t, float*) const {
  fail("dataset '{}' has no real-valued targets", info_.name);
}

bool Dataset::has_images() const {
  return true;
}

DatasetInputs Dataset::inputs() const {
  return {};
}

DatasetInputs Dataset::generate(int64_t first, int64_t count) const {
  const DatasetInputs all = inputs();
  if (!all.values_NCHW.defined()) fail("dataset '{}' has images, no other inputs", info_.name);
  if (first < 0 || count < 0 || first > size() - count) {
    fail("dataset '{}': inputs {} to {} of {} do not exist", info_.name, first, first + count - 1,
         size());
  }
  const auto part = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, first, count) : tensor;
  };
  return {part(all.values_NCHW), part(all.labels_N), part(all.groups_N), part(all.targets_NK)};
}

Directions Dataset::directions() const {
  return {};
}

std::vector<int64_t> Dataset::blocks() const {
  return {};
}

std::optional<EncodedImage> Dataset::encoded(int64_t) const {
  return std::nullopt;
}

std::optional<ImageFile> Dataset::file(int64_t) const {
  return std::nullopt;
}

at::Tensor group_numbers(const Dataset& dataset, int64_t first, int64_t count) {
  if (dataset.info().groups.empty()) return {};
  at::Tensor numbers = at::empty({count}, at::kLong);
  auto* const out = numbers.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) out[i] = dataset.group(first + i);
  return numbers;
}

namespace {

/// Checks that targets are [count, names] float32, all finite.
void check_targets(const DatasetInfo& info, const at::Tensor& targets, int64_t count) {
  const auto names = static_cast<int64_t>(info.targets.size());
  if (targets.dim() != 2 || targets.size(0) != count || targets.size(1) != names ||
      targets.scalar_type() != at::kFloat) {
    fail("dataset '{}': targets must be [{}, {}] float32, found {} {}", info.name, count, names,
         c10::str(targets.sizes()), c10::toString(targets.scalar_type()));
  }
  const at::Tensor finite_N = targets.isfinite().all(1);
  if (!finite_N.all().item<bool>()) {
    fail("dataset '{}': a target of input {} is not finite", info.name,
         finite_N.to(at::kInt).argmin().item<int64_t>());
  }
}

/// Checks inputs against what `info` names and completes it by their shape.
void check_inputs(DatasetInfo& info, DatasetInputs& inputs) {
  const at::Tensor& values = inputs.values_NCHW;
  if (!values.defined() || values.dim() != 4 || values.scalar_type() != at::kFloat) {
    fail("dataset '{}': inputs must be [N, C, H, W] float32, found {}", info.name,
         !values.defined()
             ? "none"
             : fmt::format("{} {}", c10::str(values.sizes()), c10::toString(values.scalar_type())));
  }
  const int64_t count = values.size(0);
  if (inputs.labels_N.defined() == inputs.targets_NK.defined() ||
      info.classes.empty() == info.targets.empty()) {
    fail("dataset '{}': targets are either labels with classes, or real numbers with names",
         info.name);
  }
  if (inputs.labels_N.defined()) {
    inputs.labels_N = inputs.labels_N.contiguous();
    check_numbers(info.name, "labels", inputs.labels_N, count, info.classes.size());
  } else {
    inputs.targets_NK = inputs.targets_NK.contiguous();
    check_targets(info, inputs.targets_NK, count);
  }
  if (inputs.groups_N.defined()) {
    inputs.groups_N = inputs.groups_N.contiguous();
    check_numbers(info.name, "groups", inputs.groups_N, count, info.groups.size());
  }
  inputs.values_NCHW = values.contiguous();
  info.channels = values.size(1);
  info.height = values.size(2);
  info.width = values.size(3);
  info.mean.assign(static_cast<size_t>(info.channels), 0.0);
  info.std.assign(static_cast<size_t>(info.channels), 1.0);
}

}  // namespace

std::shared_ptr<const Dataset> make_input_dataset(DatasetInfo info, DatasetInputs inputs,
                                                  Directions directions) {
  check_inputs(info, inputs);
  return std::make_shared<InputDataset>(std::move(info), std::move(inputs), std::move(directions));
}

std::shared_ptr<const Dataset> make_stream_dataset(DatasetInfo info, int64_t size, MakeInputs make,
                                                   Directions directions) {
  if (size < 1) fail("dataset '{}': an epoch of {} inputs is empty", info.name, size);
  DatasetInputs one = make(0, 1);
  check_inputs(info, one);
  return std::make_shared<StreamDataset>(std::move(info), size, std::move(make),
                                         std::move(directions));
}

}  // namespace moesaic
