// SPDX-License-Identifier: Apache-2.0
#include "subset.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"

namespace moesaic {

std::optional<int64_t> known_label(const Dataset& dataset, int64_t index) {
  try {
    return dataset.label(index);
  } catch (const ImageError&) {
    return std::nullopt;
  }
}

DatasetInputs Subset::inputs() const {
  if (has_images()) return {};
  at::Tensor rows = at::empty({size()}, at::kLong), labels = at::empty({size()}, at::kLong);
  for (int64_t i = 0; i < size(); ++i) {
    rows.mutable_data_ptr<int64_t>()[i] = items_[static_cast<size_t>(i)].index;
    labels.mutable_data_ptr<int64_t>()[i] = items_[static_cast<size_t>(i)].label;
  }
  const DatasetInputs all = base().generate(0, base().size());
  const auto chosen = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.index_select(0, rows) : tensor;
  };
  return {chosen(all.values_NCHW), labels, chosen(all.groups_N), chosen(all.targets_NK)};
}

DatasetInputs Range::inputs() const {
  return has_images() ? DatasetInputs{} : base().generate(first_, count_);
}

std::vector<int64_t> Range::blocks() const {
  std::vector<int64_t> cut;
  int64_t begin = 0;
  for (const int64_t block : base().blocks()) {
    const int64_t end = std::min(begin + block, first_ + count_);
    if (end > std::max(begin, first_)) cut.push_back(end - std::max(begin, first_));
    begin += block;
  }
  return cut;
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
    const std::optional<int64_t> old = known_label(*base, i);
    const int64_t label = old ? new_label[static_cast<size_t>(*old)] : -1;
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
  return std::make_shared<Range>(std::move(info), std::move(base), 0, count);
}

std::shared_ptr<const Dataset> make_renamed(std::shared_ptr<const Dataset> base, std::string name,
                                            std::string description) {
  DatasetInfo info = base->info();
  info.name = std::move(name);
  info.description = std::move(description);
  return std::make_shared<Renamed>(std::move(info), std::move(base));
}

}  // namespace moesaic
