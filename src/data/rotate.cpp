// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/rotate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/data/resize.h"

namespace moesaic {
namespace {

/// Returns the source of each pixel of a rotated image: its index in row-major order, or -1.
std::vector<int64_t> rotated_sources(int64_t height, int64_t width, double degrees) {
  const double angle = degrees * std::numbers::pi / 180.0;
  const double cosine = std::cos(angle), sine = std::sin(angle);
  std::vector<int64_t> sources;
  for (int64_t row = 0; row < height; ++row) {
    for (int64_t column = 0; column < width; ++column) {
      const double x = static_cast<double>(2 * column + 1 - width) / 2.0;
      const double y = static_cast<double>(2 * row + 1 - height) / 2.0;
      const double half_width = static_cast<double>(width) / 2.0;
      const double half_height = static_cast<double>(height) / 2.0;
      const auto from_x = static_cast<int64_t>(std::floor(cosine * x - sine * y + half_width));
      const auto from_y = static_cast<int64_t>(std::floor(sine * x + cosine * y + half_height));
      const bool inside = from_x >= 0 && from_x < width && from_y >= 0 && from_y < height;
      sources.push_back(inside ? from_y * width + from_x : -1);
    }
  }
  return sources;
}

class RotatedPairs final : public Dataset {
 public:
  RotatedPairs(DatasetInfo info, std::shared_ptr<const Dataset> base, const RotateConfig& config)
      : Dataset(std::move(info)),
        base_(std::move(base)),
        sources_{rotated_sources(this->info().height, this->info().width, 0.0),
                 rotated_sources(this->info().height, this->info().width, config.degrees)} {
    const int64_t height = this->info().height, width = this->info().width, side = config.crop;
    part_ = side == 0 ? Rectangle{0, 0, height, width}
                      : Rectangle{(height - side) / 2, (width - side) / 2, side, side};
  }

  int64_t size() const override { return 2 * base_->size(); }

  int64_t label(int64_t index) const override {
    check_index(index);
    return index % 2;
  }

  int64_t group(int64_t index) const override {
    check_index(index);
    return base_->label(index / 2);
  }

  void image(int64_t index, uint8_t* out) const override { oriented_image(index, {}, out); }
  void oriented_image(int64_t index, std::optional<bool> upright, uint8_t* out) const override {
    check_index(index);
    base_->oriented_image(index / 2, upright, out);
    const DatasetInfo& about = info();
    const int64_t plane = about.height * about.width;
    Bitmap bitmap{about.height, about.width, about.channels, {}};
    bitmap.pixels.reserve(static_cast<size_t>(image_size()));
    for (const int64_t source : sources_[static_cast<size_t>(index % 2)]) {
      for (int64_t c = 0; c < about.channels; ++c) {
        bitmap.pixels.push_back(source < 0 ? uint8_t{0} : out[c * plane + source]);
      }
    }
    resize(bitmap, part_, {}, about.height, about.width, out);
  }

 private:
  std::shared_ptr<const Dataset> base_;
  std::vector<int64_t> sources_[2];  ///< Sources of original and of rotated images.
  Rectangle part_;
};

}  // namespace

std::shared_ptr<const Dataset> make_rotated_pairs(std::shared_ptr<const Dataset> base,
                                                  const RotateConfig& config, std::string name,
                                                  std::string description) {
  DatasetInfo info = base->info();
  if (info.height < 1 || !base->has_images()) {
    fail_usage("dataset '{}': rotate needs images of one size, which '{}' does not have", name,
               info.name);
  }
  if (config.crop > std::min(info.height, info.width)) {
    fail_usage("dataset '{}': rotate.crop is {}, but images of '{}' are {} x {}", name, config.crop,
               info.name, info.height, info.width);
  }
  if (info.classes.empty()) {
    fail_usage("dataset '{}': rotate needs classes, which '{}' does not have", name, info.name);
  }
  info.name = std::move(name);
  info.description = std::move(description);
  info.groups = std::exchange(info.classes, {"original", "rotated"});
  return std::make_shared<RotatedPairs>(std::move(info), std::move(base), config);
}

}  // namespace moesaic
