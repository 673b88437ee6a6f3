// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/dataset.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "formats/checks.h"
#include "moesaic/base/checked_math.h"
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

  void oriented_image(int64_t index, std::optional<bool>, uint8_t* out) const override {
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

/// Inputs that are not images, all in memory or made when they are asked for.
class InputDataset final : public Dataset {
 public:
  InputDataset(DatasetInfo info, DatasetInputs inputs)
      : Dataset(std::move(info)), inputs_(std::move(inputs)), size_(inputs_.values_NCHW.size(0)) {}
  InputDataset(DatasetInfo info, MakeInputs make, int64_t size)
      : Dataset(std::move(info)), make_(std::move(make)), size_(size) {}

  int64_t size() const override { return size_; }
  int64_t label(int64_t index) const override {
    return number_at(index, &DatasetInputs::labels_N, "labels");
  }
  int64_t group(int64_t index) const override {
    return number_at(index, &DatasetInputs::groups_N, "groups");
  }
  void targets(int64_t index, float* out) const override {
    check_index(index);
    const auto& [inputs, row] = holding(index);
    const at::Tensor& all = present(inputs.targets_NK, info(), "real-valued targets");
    std::copy_n(all.const_data_ptr<float>() + row * all.size(1), all.size(1), out);
  }
  void oriented_image(int64_t, std::optional<bool>, uint8_t*) const override {
    fail("dataset '{}': the inputs are not images", info().name);
  }

 private:
  /// Returns inputs that hold an example, and its row in them.
  std::pair<DatasetInputs, int64_t> holding(int64_t index) const {
    return make_ ? std::pair(make_(index, 1), int64_t{0}) : std::pair(inputs_, index);
  }

  int64_t number_at(int64_t index, at::Tensor DatasetInputs::*numbers, const char* what) const {
    check_index(index);
    const auto& [inputs, row] = holding(index);
    return present(inputs.*numbers, info(), what).const_data_ptr<int64_t>()[row];
  }

  DatasetInputs make_inputs(int64_t first, int64_t count) const override {
    if (make_) return make_(first, count);
    DatasetInputs part = inputs_;
    if (count == size_) return part;
    for_each_tensor(part, [&](at::Tensor& tensor) { tensor = tensor.narrow(0, first, count); });
    return part;
  }

  DatasetInputs inputs_;
  MakeInputs make_;
  int64_t size_;
};

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
    check_numbers(info.name, "labels", inputs.labels_N, count, info.classes.size());
  } else {
    check_targets(info, inputs.targets_NK, count);
  }
  if (inputs.groups_N.defined()) {
    check_numbers(info.name, "groups", inputs.groups_N, count, info.groups.size());
  }
  for_each_tensor(inputs, [](at::Tensor& tensor) { tensor = tensor.contiguous(); });
  info.has_images = false;
  info.channels = values.size(1);
  info.height = values.size(2);
  info.width = values.size(3);
  info.mean.assign(static_cast<size_t>(info.channels), 0.0);
  info.std.assign(static_cast<size_t>(info.channels), 1.0);
}

}  // namespace

Dataset::Dataset(DatasetInfo info) : info_(std::move(info)) {
  check_names(info_, "class", info_.classes);
  check_names(info_, "group", info_.groups);
  check_names(info_, "target", info_.targets);
}

void Dataset::check_index(int64_t index) const {
  if (index < 0 || (index >= size() && !is_endless())) {
    fail("dataset '{}': image {} of {} does not exist", info_.name, index, size());
  }
}

Rectangle Dataset::decode(int64_t index, const ChooseCrop& choose, const ReadOptions& options,
                          Bitmap& bitmap) const {
  std::vector<uint8_t> planes(static_cast<size_t>(image_size()));
  // Parts of it may have settings of their own, which stay where nothing else is asked for.
  const bool as_set = options.applies_exif == info_.applies_exif.value_or(true);
  oriented_image(index, as_set ? std::nullopt : options.applies_exif, planes.data());
  bitmap = {info_.height, info_.width, info_.channels, std::vector<uint8_t>(planes.size())};
  const at::Tensor planes_CHW =
      at::from_blob(planes.data(), {info_.channels, info_.height, info_.width}, at::kByte);
  at::Tensor pixels_HWC =
      at::from_blob(bitmap.pixels.data(), {info_.height, info_.width, info_.channels}, at::kByte);
  pixels_HWC.copy_(planes_CHW.permute({1, 2, 0}));
  return choose(info_.height, info_.width);
}

void Dataset::read_crop(int64_t index, const ChooseCrop& choose, uint8_t* out,
                        std::optional<bool> applies_exif) const {
  Bitmap bitmap;
  // Without antialias the pixels themselves are wanted, none that a decoder averaged.
  const int64_t min_side = info_.resize.antialias ? std::max(info_.height, info_.width)
                                                  : std::numeric_limits<int64_t>::max();
  const Rectangle chosen = decode(index, choose, {min_side, applies_exif}, bitmap);
  resize(bitmap, chosen, info_.resize, info_.height, info_.width, out);
}

std::shared_ptr<const Dataset> make_memory_dataset(DatasetInfo info, std::vector<uint8_t> pixels,
                                                   std::vector<uint8_t> labels) {
  if (info.channels < 1 || info.height < 1 || info.width < 1) {
    fail("dataset '{}': images need at least one pixel, found {} x {} x {}", info.name,
         info.channels, info.height, info.width);
  }
  const std::array shape = {info.height, info.width, info.channels, std::ssize(labels)};
  const std::optional<uint64_t> all = checked_product(1, shape);
  if (!all || *all != pixels.size()) {
    fail("dataset '{}': {} labels of {} x {} x {} images, but {} bytes of pixels", info.name,
         labels.size(), info.channels, info.height, info.width, pixels.size());
  }
  check_labels(labels, info.classes.size(), fmt::format("dataset '{}'", info.name));
  return std::make_shared<MemoryDataset>(std::move(info), std::move(pixels), std::move(labels));
}

int64_t Dataset::group(int64_t index) const {
  fail("dataset '{}': image {} has no group", info_.name, index);
}

void Dataset::targets(int64_t, float*) const {
  fail("dataset '{}' has no real-valued targets", info_.name);
}

DatasetInputs Dataset::generate(int64_t first, int64_t count) const {
  if (has_images()) fail("dataset '{}' has images, no other inputs", info_.name);
  if (is_endless()) {
    check_index(first);
  } else if (first < 0 || count < 0 || first > size() - count) {
    fail("dataset '{}': inputs {} to {} of {} do not exist", info_.name, first, first + count - 1,
         size());
  }
  DatasetInputs made = make_inputs(first, count);
  // Phases read them by pointers.
  const std::vector<int64_t> shape = {count, info_.channels, info_.height, info_.width};
  const at::Tensor& wanted = made.labels_N.defined() ? made.labels_N : made.targets_NK;
  if (made.values_NCHW.sizes() != shape || !wanted.defined() || wanted.size(0) != count) {
    fail("dataset '{}': {} inputs and targets of shape {} were not made; found inputs {}",
         info_.name, count, c10::str(at::IntArrayRef(shape).slice(1)),
         c10::str(made.values_NCHW.sizes()));
  }
  return made;
}

DatasetInputs Dataset::make_inputs(int64_t, int64_t) const {
  fail("dataset '{}' makes no inputs", info_.name);
}

at::Tensor group_indices(const Dataset& dataset, int64_t first, int64_t count) {
  if (dataset.info().groups.empty()) return {};
  at::Tensor numbers = at::empty({count}, at::kLong);
  auto* const out = numbers.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) out[i] = dataset.group(first + i);
  return numbers;
}

std::string example_noun(const DatasetInfo& info) {
  if (info.has_images) return "image";
  return info.channels == 1 && info.height == 1 ? "row" : "example";
}

std::shared_ptr<const Dataset> make_input_dataset(DatasetInfo info, DatasetInputs inputs) {
  check_inputs(info, inputs);
  info.is_endless = false;
  return std::make_shared<InputDataset>(std::move(info), std::move(inputs));
}

std::shared_ptr<const Dataset> make_stream_dataset(DatasetInfo info, int64_t size,
                                                   MakeInputs make) {
  if (size < 1) fail("dataset '{}': an epoch of {} inputs is empty", info.name, size);
  DatasetInputs one = make(0, 1);
  check_inputs(info, one);
  info.is_endless = true;
  return std::make_shared<InputDataset>(std::move(info), std::move(make), size);
}

}  // namespace moesaic
