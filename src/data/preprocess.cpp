// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/preprocess.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "moesaic/base/error.h"
#include "moesaic/data/dataset_inputs.h"

namespace moesaic {
namespace {

class PreprocessedDataset final : public Dataset {
 public:
  PreprocessedDataset(std::shared_ptr<const Dataset> base, DatasetInfo metadata,
                      const PreprocessConfig& config)
      : Dataset(std::move(metadata)),
        base_(std::move(base)),
        central_crop_(config.central_crop),
        resize_(resize_options(config)) {
    const DatasetInfo& before = base_->info();
    unchanged_ = before.height == info().height && before.width == info().width &&
                 (central_crop_ == 0.0 || (central_crop_ == 1.0 && before.height == before.width));
  }

  int64_t size() const override { return base_->size(); }
  int64_t label(int64_t index) const override { return base_->label(index); }
  bool endless() const override { return base_->endless(); }
  int64_t group(int64_t index) const override { return base_->group(index); }
  void targets(int64_t index, float* out) const override { base_->targets(index, out); }
  Directions directions() const override { return base_->directions(); }
  std::vector<int64_t> blocks() const override { return base_->blocks(); }

  void image(int64_t index, uint8_t* out) const override {
    if (unchanged_) return base_->image(index, out);
    part(
        index, [this](int64_t h, int64_t w) { return central_part(h, w, central_crop_); }, out);
  }

  Rectangle decode(int64_t index, const ChoosePart& choose, int64_t min,
                   Bitmap& bitmap) const override {
    return base_->decode(index, choose, min, bitmap);
  }

  void part(int64_t index, const ChoosePart& choose, uint8_t* out) const override {
    Bitmap bitmap;
    // Without antialias the pixels themselves are wanted, none that a decoder averaged.
    const int64_t min = resize_.antialias ? std::max(info().height, info().width)
                                          : std::numeric_limits<int64_t>::max();
    const Rectangle chosen = base_->decode(index, choose, min, bitmap);
    resize(bitmap, chosen, resize_, info().height, info().width, out);
  }

 private:
  std::shared_ptr<const Dataset> base_;
  double central_crop_;
  ResizeOptions resize_;
  bool unchanged_;
};

}  // namespace

DatasetInfo preprocessed_info(DatasetInfo info, const PreprocessConfig& config) {
  if (config.size > 0) info.height = info.width = config.size;
  if (info.height < 1 || info.width < 1) {
    fail_usage("dataset '{}': no size is known that all its images have: set preprocess.size",
               info.name);
  }
  const auto channels = static_cast<size_t>(info.channels);
  if (config.values == "symmetric") {
    info.mean.assign(channels, 0.5);
    info.std.assign(channels, 0.5);
  } else if (config.values == "unit") {
    info.mean.assign(channels, 0.0);
    info.std.assign(channels, 1.0);
  } else if (!config.mean.empty()) {
    if (config.mean.size() != channels) {
      fail_usage("dataset '{}': its images have {} channels, preprocess.mean {} values", info.name,
                 channels, config.mean.size());
    }
    info.mean = config.mean;
    info.std = config.std;
  }
  return info;
}

std::string config_problem(const PreprocessConfig& config) {
  if (config.truncate && (config.antialias || config.interpolation != "bilinear")) {
    return "truncate needs interpolation bilinear and antialias false";
  }
  if (config.mean.size() != config.std.size()) return "mean and std must be of the same channels";
  if (!config.mean.empty() && config.values != "standardized") {
    return "mean and std are for the values 'standardized', found '" + config.values + "'";
  }
  return config.central_crop > 0 && config.size == 0 ? "central_crop needs size" : "";
}

Rectangle central_part(int64_t height, int64_t width, double central_crop) {
  if (central_crop == 0.0) return {0, 0, height, width};
  const double shorter = static_cast<double>(std::min(height, width));
  const int64_t side = std::max<int64_t>(1, std::llround(shorter * central_crop));
  return {(height - side) / 2, (width - side) / 2, side, side};
}

std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base,
                                            const PreprocessConfig& config) {
  if (!base->has_images()) {
    if (to_json(config) == to_json(PreprocessConfig())) return base;
    fail_usage("dataset '{}' has inputs that are no images: leave 'preprocess' out",
               base->info().name);
  }
  DatasetInfo info = preprocessed_info(base->info(), config);
  return preprocessed(std::move(base), std::move(info), config);
}

std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base, DatasetInfo info,
                                            const PreprocessConfig& config) {
  const DatasetInfo& own = base->info();
  const bool same = info.height == own.height && info.width == own.width && info.mean == own.mean &&
                    info.std == own.std;
  if (same && config.central_crop == 0.0) return base;
  return std::make_shared<PreprocessedDataset>(std::move(base), std::move(info), config);
}

ResizeOptions resize_options(const PreprocessConfig& config) {
  return {config.interpolation == "bicubic" ? Interpolation::bicubic : Interpolation::bilinear,
          config.antialias, config.truncate};
}

}  // namespace moesaic
