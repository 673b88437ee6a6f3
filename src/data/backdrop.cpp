// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/backdrop.h"

#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/random.h"
#include "moesaic/data/preprocess.h"
#include "paste.h"

namespace moesaic {
namespace {

class OnBackdrops final : public Dataset {
 public:
  OnBackdrops(DatasetInfo info, std::shared_ptr<const Dataset> images,
              std::shared_ptr<const Dataset> backdrops, const BackdropConfig& config)
      : Dataset(std::move(info)),
        images_(std::move(images)),
        backdrops_(std::move(backdrops)),
        size_(config.size),
        seed_(static_cast<uint64_t>(config.seed)),
        stream_(stream_id("backdrop." + this->info().split)) {}

  int64_t size() const override { return images_->size(); }
  bool endless() const override { return images_->endless(); }
  int64_t label(int64_t index) const override { return images_->label(index); }
  int64_t group(int64_t index) const override { return images_->group(index); }

  void image(int64_t index, uint8_t* out) const override { oriented_image(index, {}, out); }
  void oriented_image(int64_t index, std::optional<bool> upright, uint8_t* out) const override {
    check_index(index);
    std::vector<uint8_t> small(static_cast<size_t>(images_->image_size()));
    images_->oriented_image(index, upright, small.data());
    CounterRng rng(seed_, stream_, static_cast<uint64_t>(index));
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(rng.below(static_cast<uint64_t>(n)));
    };
    backdrops_->oriented_image(below(backdrops_->size()), upright, out);
    const int64_t top = below(info().height - size_.height + 1);
    const int64_t left = below(info().width - size_.width + 1);
    paste(small, size_, top, left, info(), out);
  }

 private:
  std::shared_ptr<const Dataset> images_, backdrops_;
  Sides size_;
  uint64_t seed_, stream_;
};

}  // namespace

std::shared_ptr<const Dataset> make_on_backdrops(std::shared_ptr<const Dataset> base,
                                                 std::shared_ptr<const Dataset> backdrops,
                                                 const BackdropConfig& config, std::string name,
                                                 std::string description) {
  DatasetInfo info = base->info();
  if (info.height < 1 || !base->has_images() || info.classes.empty()) {
    fail_usage("dataset '{}': backdrop needs images of one size with classes, as '{}' has none",
               name, info.name);
  }
  if (config.size.height > info.height || config.size.width > info.width) {
    fail_usage("dataset '{}': backdrop.size is {} x {}, but images of '{}' are {} x {}", name,
               config.size.height, config.size.width, info.name, info.height, info.width);
  }
  info.mean.assign(static_cast<size_t>(info.channels), 0.0);
  info.std.assign(static_cast<size_t>(info.channels), 1.0);
  if (backdrops) {
    DatasetInfo behind = backdrops->info();
    if (!backdrops->has_images() || behind.channels != info.channels) {
      fail_usage("dataset '{}': backdrop.images: those of '{}' have {} channels, '{}' has {}", name,
                 behind.name, behind.channels, base->info().name, info.channels);
    }
    behind.height = info.height;
    behind.width = info.width;
    backdrops = preprocessed(std::move(backdrops), std::move(behind), {.central_crop = 1.0});
  }
  DatasetInfo small = info;
  small.height = config.size.height;
  small.width = config.size.width;
  base = preprocessed(std::move(base), std::move(small), {});
  info.name = std::move(name);
  info.description = std::move(description);
  return std::make_shared<OnBackdrops>(std::move(info), std::move(base), std::move(backdrops),
                                       config);
}

}  // namespace moesaic
