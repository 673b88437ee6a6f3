// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/derived.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/random.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/data/preprocess.h"

namespace moesaic {
namespace {

/// Writes an image [C, size.height, size.width] at `top`, `left` of `out` [C, H, W], whose shape is
/// that of `info`.
void paste(const std::vector<uint8_t>& image, Size2d size, int64_t top, int64_t left,
           const DatasetInfo& info, uint8_t* out) {
  for (int64_t c = 0; c < info.channels; ++c) {
    for (int64_t y = 0; y < size.height; ++y) {
      std::memcpy(out + (c * info.height + top + y) * info.width + left,
                  image.data() + (c * size.height + y) * size.width,
                  static_cast<size_t>(size.width));
    }
  }
}

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
        joint_(config.joint),
        sources_{rotated_sources(this->info().height, this->info().width, 0.0),
                 rotated_sources(this->info().height, this->info().width, config.degrees)} {
    const int64_t height = this->info().height, width = this->info().width, side = config.crop;
    part_ = side == 0 ? Rectangle{0, 0, height, width}
                      : Rectangle{(height - side) / 2, (width - side) / 2, side, side};
  }

  int64_t size() const override { return 2 * base_->size(); }

  int64_t label(int64_t index) const override {
    check_index(index);
    return index % 2 + (joint_ ? 2 * base_->label(index / 2) : 0);
  }

  int64_t group(int64_t index) const override {
    check_index(index);
    return base_->label(index / 2);
  }

  void oriented_image(int64_t index, std::optional<bool> applies_exif,
                      uint8_t* out) const override {
    check_index(index);
    base_->oriented_image(index / 2, applies_exif, out);
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
  bool joint_;
  std::vector<int64_t> sources_[2];  ///< Sources of original and of rotated images.
  Rectangle part_;
};

/// Returns the labels of these classes in `base`.
std::vector<int64_t> labels_of(const Dataset& base, const std::vector<std::string>& classes,
                               const std::string& name, const char* setting) {
  const std::vector<std::string>& known = base.info().classes;
  std::vector<int64_t> labels;
  for (const std::string& one : classes) {
    const auto found = std::find(known.begin(), known.end(), one);
    if (found == known.end()) {
      fail_usage("dataset '{}': mosaic.{}: '{}' has no class '{}'; {}", name, setting,
                 base.info().name, one, did_you_mean(one, known));
    }
    labels.push_back(found - known.begin());
  }
  return labels;
}

class Mosaic final : public Dataset {
 public:
  struct Labels {
    std::vector<int64_t> deciding, others;  ///< In the base.
  };
  Mosaic(DatasetInfo info, std::shared_ptr<const Dataset> base, const MosaicConfig& config,
         Labels labels)
      : Dataset(std::move(info)),
        base_(std::move(base)),
        config_(config),
        labels_(std::move(labels)) {}

  /// Lists the images of the base's classes.
  void list() {
    std::vector<std::vector<int64_t>> by_class(base_->info().classes.size());
    for (int64_t i = 0; i < base_->size(); ++i) {
      by_class[static_cast<size_t>(base_->label(i))].push_back(i);
    }
    for (const int64_t label : labels_.deciding) {
      deciding_.push_back(by_class[static_cast<size_t>(label)]);
      if (deciding_.back().empty()) fail_empty(label);
      if (!config_.replacement) shuffle(deciding_.back(), label);
    }
    for (const int64_t label : labels_.others) {
      const std::vector<int64_t>& more = by_class[static_cast<size_t>(label)];
      if (more.empty()) fail_empty(label);
      others_.insert(others_.end(), more.begin(), more.end());
    }
  }

  int64_t size() const override { return is_endless() ? config_.num_train : config_.num_test; }

  int64_t label(int64_t index) const override {
    check_index(index);
    return index % static_cast<int64_t>(labels_.deciding.size());
  }
  int64_t group(int64_t index) const override {
    check_index(index);
    CounterRng rng = random_of(index);
    return random_cell(rng);
  }

  void oriented_image(int64_t index, std::optional<bool> applies_exif,
                      uint8_t* out) const override {
    check_index(index);
    CounterRng rng = random_of(index);
    const int64_t place = random_cell(rng);
    const Size2d size(base_->info().height, base_->info().width);
    std::vector<uint8_t> tile(static_cast<size_t>(base_->image_size()));
    for (int64_t j = 0; j < tiles(); ++j) {
      const int64_t drawn = j == place ? draw_deciding(index, rng) : draw(others_, rng);
      base_->oriented_image(drawn, applies_exif, tile.data());
      const int64_t row = j / config_.grid.width, column = j % config_.grid.width;
      paste(tile, size, row * size.height, column * size.width, info(), out);
    }
  }

 private:
  int64_t tiles() const { return config_.grid.height * config_.grid.width; }

  CounterRng random_of(int64_t index) const {
    return {static_cast<uint64_t>(config_.seed), stream_id("mosaic." + info().split),
            static_cast<uint64_t>(index)};
  }
  int64_t random_cell(CounterRng& rng) const {
    return static_cast<int64_t>(rng.randint(static_cast<uint64_t>(tiles())));
  }

  static int64_t draw(const std::vector<int64_t>& from, CounterRng& rng) {
    return from[rng.randint(from.size())];
  }
  int64_t draw_deciding(int64_t index, CounterRng& rng) const {
    const std::vector<int64_t>& from = deciding_[static_cast<size_t>(label(index))];
    if (config_.replacement) return draw(from, rng);
    const auto of_class = static_cast<size_t>(index) / labels_.deciding.size();
    return from[of_class % from.size()];
  }
  void shuffle(std::vector<int64_t>& images, int64_t label) const {
    const auto count = static_cast<int64_t>(images.size());
    const uint64_t stream = stream_id(fmt::format("mosaic.{}.order.{}", info().split, label));
    std::vector<int64_t> shuffled;
    for (const int64_t i : permutation(count, static_cast<uint64_t>(config_.seed), stream)) {
      shuffled.push_back(images[static_cast<size_t>(i)]);
    }
    images = std::move(shuffled);
  }

  [[noreturn]] void fail_empty(int64_t label) const {
    fail("dataset '{}': the {} split of '{}' has no image of class '{}'", info().name, info().split,
         base_->info().name, base_->info().classes[static_cast<size_t>(label)]);
  }

  std::shared_ptr<const Dataset> base_;
  MosaicConfig config_;
  Labels labels_;
  std::vector<std::vector<int64_t>> deciding_;
  std::vector<int64_t> others_;
};

/// Returns each class of the dataset `base` and the same rotated.
std::vector<std::string> joint_classes(const std::vector<std::string>& classes,
                                       const std::string& name, const std::string& base) {
  std::vector<std::string> joint;
  for (const std::string& one : classes) joint.insert(joint.end(), {one, one + " rotated"});
  for (const std::string& one : classes) {
    if (std::ranges::count(joint, one) == 1) continue;
    fail_usage(
        "dataset '{}': rotate.joint needs classes that are not rotated, but '{}' has '{}'; choose "
        "rotate.joint=false",
        name, base, one);
  }
  return joint;
}

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
  int64_t label(int64_t index) const override { return images_->label(index); }
  int64_t group(int64_t index) const override { return images_->group(index); }

  void oriented_image(int64_t index, std::optional<bool> applies_exif,
                      uint8_t* out) const override {
    check_index(index);
    std::vector<uint8_t> small(static_cast<size_t>(images_->image_size()));
    images_->oriented_image(index, applies_exif, small.data());
    CounterRng rng(seed_, stream_, static_cast<uint64_t>(index));
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(rng.randint(static_cast<uint64_t>(n)));
    };
    backdrops_->oriented_image(below(backdrops_->size()), applies_exif, out);
    const int64_t top = below(info().height - size_.height + 1);
    const int64_t left = below(info().width - size_.width + 1);
    paste(small, size_, top, left, info(), out);
  }

 private:
  std::shared_ptr<const Dataset> images_, backdrops_;
  Size2d size_;
  uint64_t seed_, stream_;
};

}  // namespace

std::shared_ptr<const Dataset> make_rotated_pairs(std::shared_ptr<const Dataset> base,
                                                  const RotateConfig& config, std::string name,
                                                  std::string description) {
  DatasetInfo info = base->info();
  if (info.height < 1 || !base->has_images()) {
    fail_usage("dataset '{}': rotate needs images of equal size, which '{}' does not have", name,
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
  info.groups = std::exchange(info.classes, {});
  info.classes = config.joint ? joint_classes(info.groups, info.name, base->info().name)
                              : std::vector<std::string>{"original", "rotated"};
  info.is_endless = false;
  return std::make_shared<RotatedPairs>(std::move(info), std::move(base), config);
}

std::shared_ptr<const Dataset> make_mosaic(std::shared_ptr<const Dataset> base,
                                           const MosaicConfig& config, MosaicContent content,
                                           std::string name, std::string description) {
  DatasetInfo info = base->info();
  if ((info.height < 1 && !config.tile) || !base->has_images() || info.classes.empty()) {
    fail_usage(
        "dataset '{}': mosaic needs images of equal size, with classes, which '{}' does not have",
        name, info.name);
  }
  if (config.tile) {
    info.height = config.tile->height;
    info.width = config.tile->width;
    base = preprocessed(std::move(base), info, {});
  }
  std::vector<std::string> others = config.others;
  const auto decides = [&](const std::string& one) {
    return std::find(config.deciding.begin(), config.deciding.end(), one) != config.deciding.end();
  };
  if (others.empty()) {
    others = info.classes;
    std::erase_if(others, decides);
  }
  const auto both = std::find_if(others.begin(), others.end(), decides);
  if (both != others.end()) {
    fail_usage("dataset '{}': mosaic.others: the class '{}' decides already; leave it out", name,
               *both);
  }
  if (config.deciding.size() < 2 || others.empty()) {
    fail_usage("dataset '{}': mosaic needs two classes that decide, and one that does not", name);
  }
  Mosaic::Labels labels = {labels_of(*base, config.deciding, name, "deciding"),
                           labels_of(*base, others, name, "others")};
  info.name = std::move(name);
  info.description = std::move(description);
  info.classes = config.deciding;
  info.is_endless = info.split == "train";
  info.groups = numbered("place ", config.grid.height * config.grid.width);
  info.height *= config.grid.height;
  info.width *= config.grid.width;
  info.mean.assign(static_cast<size_t>(info.channels), 0.0);
  info.std.assign(static_cast<size_t>(info.channels), 1.0);
  const auto made =
      std::make_shared<Mosaic>(std::move(info), std::move(base), config, std::move(labels));
  if (content == MosaicContent::images) made->list();
  return made;
}

std::shared_ptr<const Dataset> make_on_backdrops(std::shared_ptr<const Dataset> base,
                                                 std::shared_ptr<const Dataset> backdrops,
                                                 const BackdropConfig& config, std::string name,
                                                 std::string description) {
  DatasetInfo info = base->info();
  if (info.height < 1 || !base->has_images() || info.classes.empty()) {
    fail_usage(
        "dataset '{}': backdrop needs images of equal size, with classes, which '{}' does not have",
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
