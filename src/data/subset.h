// SPDX-License-Identifier: Apache-2.0
// Datasets of some examples of another one, whose memory they share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/data/dataset.h"

namespace moesaic {

/// Returns the label of an example, none where it was lost with the image.
std::optional<int64_t> known_label(const Dataset& dataset, int64_t index);

/// Base of datasets whose examples are those of another dataset under other indices.
class DatasetView : public Dataset {
 public:
  int64_t label(int64_t index) const override { return base_->label(to_base(index)); }
  int64_t group(int64_t index) const override { return base_->group(to_base(index)); }
  void targets(int64_t index, float* out) const override { base_->targets(to_base(index), out); }
  void image(int64_t index, uint8_t* out) const override { base_->image(to_base(index), out); }
  void oriented_image(int64_t index, std::optional<bool> upright, uint8_t* out) const override {
    base_->oriented_image(to_base(index), upright, out);
  }
  Rectangle decode(int64_t index, const ChoosePart& choose, const ReadOptions& options,
                   Bitmap& bitmap) const override {
    return base_->decode(to_base(index), choose, options, bitmap);
  }
  void part(int64_t index, const ChoosePart& choose, uint8_t* out) const override {
    base_->part(to_base(index), choose, out);
  }
  bool has_images() const override { return base_->has_images(); }
  Directions directions() const override { return base_->directions(); }
  std::optional<EncodedImage> encoded(int64_t index) const override {
    return base_->encoded(to_base(index));
  }
  std::optional<ImageFile> file(int64_t index) const override {
    return base_->file(to_base(index));
  }

 protected:
  DatasetView(DatasetInfo info, std::shared_ptr<const Dataset> base)
      : Dataset(std::move(info)), base_(std::move(base)) {}
  /// Returns an example's index in base(). Throws Error (failure) if it does not exist.
  virtual int64_t to_base(int64_t index) const = 0;
  const Dataset& base() const { return *base_; }

 private:
  std::shared_ptr<const Dataset> base_;
};

/// Selected examples of another dataset, possibly with other labels.
class Subset final : public DatasetView {
 public:
  struct Item {
    int64_t index, label;
  };
  Subset(DatasetInfo info, std::shared_ptr<const Dataset> base, std::vector<Item> items)
      : DatasetView(std::move(info), std::move(base)), items_(std::move(items)) {}

  int64_t size() const override { return static_cast<int64_t>(items_.size()); }
  int64_t label(int64_t index) const override { return item(index).label; }
  DatasetInputs inputs() const override;

 private:
  int64_t to_base(int64_t index) const override { return item(index).index; }
  const Item& item(int64_t index) const {
    check_index(index);
    return items_[static_cast<size_t>(index)];
  }

  std::vector<Item> items_;
};

/// Consecutive examples of another dataset.
class Range final : public DatasetView {
 public:
  Range(DatasetInfo info, std::shared_ptr<const Dataset> base, int64_t first, int64_t count)
      : DatasetView(std::move(info), std::move(base)), first_(first), count_(count) {}

  int64_t size() const override { return count_; }
  DatasetInputs inputs() const override;
  std::vector<int64_t> blocks() const override;

 private:
  int64_t to_base(int64_t index) const override {
    check_index(index);
    return first_ + index;
  }

  int64_t first_, count_;
};

/// All examples of another dataset, endless if it is, under another name.
class Renamed : public DatasetView {
 public:
  Renamed(DatasetInfo info, std::shared_ptr<const Dataset> base)
      : DatasetView(std::move(info), std::move(base)) {}

  int64_t size() const override { return base().size(); }
  bool endless() const override { return base().endless(); }
  DatasetInputs inputs() const override { return base().inputs(); }
  DatasetInputs generate(int64_t first, int64_t count) const override {
    return base().generate(first, count);
  }
  std::vector<int64_t> blocks() const override { return base().blocks(); }

 private:
  int64_t to_base(int64_t index) const override {
    check_index(index);
    return index;
  }
};

}  // namespace moesaic
