// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/transforms.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

/// Returns the weighted sum of a window of `count` pixels that moves along a dimension. Sums of
/// shifted planes, element by element, have the same bits for any number of threads, unlike the
/// library's convolutions.
at::Tensor weighted_windows(const at::Tensor& x_CHW, int64_t dim, int64_t count, double sigma) {
  const at::Tensor offsets = at::arange(count, at::kDouble) - static_cast<double>(count / 2);
  const at::Tensor weights = offsets.div(sigma).square().mul(-0.5).softmax(0);
  const int64_t size = x_CHW.size(dim) - count + 1;
  at::Tensor sum = x_CHW.narrow(dim, 0, size) * weights[0].item<float>();
  for (int64_t i = 1; i < count; ++i) {
    sum.add_(x_CHW.narrow(dim, i, size), weights[i].item<float>());
  }
  return sum;
}

/// Draws the logarithm of a gamma variable of the given shape: for shape + 1 by Marsaglia and Tsang
/// (2000), then by a power of a uniform variable. Logarithms avoid the underflow of values of small
/// shapes.
double log_gamma_variable(double shape, CounterRng& rng) {
  const double d = shape + 1.0 - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double x = rng.normal(), v = std::pow(1.0 + c * x, 3.0);
    const double u = 1.0 - rng.uniform();  // A number in (0, 1].
    if (v <= 0 || std::log(u) >= 0.5 * x * x + d - d * v + d * std::log(v)) continue;
    return std::log(d * v) + std::log(1.0 - rng.uniform()) / shape;
  }
}

/// Puts the first row behind the others. at::roll has no shape function for the meta device.
at::Tensor rolled(const at::Tensor& rows) {
  return at::cat({rows.slice(0, 1), rows.slice(0, 0, 1)});
}

constexpr int kPartTries = 100;

/// Returns a part of the given aspect ratio, or an empty one if there is none.
Rectangle part_of_aspect(const CropConfig& config, double aspect, int64_t height, int64_t width,
                         CounterRng& rng) {
  const double area = static_cast<double>(height) * static_cast<double>(width);
  const double min_area = config.min_area * area, max_area = config.max_area * area;
  const auto width_at = [&](int64_t h) { return std::llrint(static_cast<double>(h) * aspect); };
  int64_t highest = std::min<int64_t>(height, std::llrint(std::sqrt(max_area / aspect)));
  while (highest > 0 && width_at(highest) > width) --highest;
  const int64_t lowest = std::min<int64_t>(highest, std::llrint(std::sqrt(min_area / aspect)));
  Rectangle part;
  part.height =
      lowest + static_cast<int64_t>(rng.randint(static_cast<uint64_t>(highest - lowest + 1)));
  part.width = width_at(part.height);
  const auto area_of_part = [&] { return static_cast<double>(part.height * part.width); };
  if (area_of_part() < min_area) part.width = width_at(++part.height);  // Undoes rounding.
  if (area_of_part() > max_area) part.width = width_at(--part.height);
  const bool fits = part.height >= 1 && part.width >= 1 && part.height <= height &&
                    part.width <= width && area_of_part() >= min_area && area_of_part() <= max_area;
  return fits ? part : Rectangle{};
}

/// Returns a random start for a part of an image that is `longer` pixels longer. Like TensorFlow it
/// excludes the last start.
int64_t random_place(int64_t longer, CounterRng& rng) {
  return longer == 0 ? 0 : static_cast<int64_t>(rng.randint(static_cast<uint64_t>(longer)));
}

}  // namespace

std::string config_problem(const BlurConfig& config) {
  if (config.width % 2 == 0 || config.height % 2 == 0) return "width and height must be odd";
  return config.min_sigma > config.max_sigma ? "min_sigma is above max_sigma" : "";
}

void blur(const BlurConfig& config, double sigma, const Planes& image) {
  at::Tensor bytes_CHW =
      at::from_blob(image.pixels, {image.channels, image.height, image.width}, at::kByte);
  const int64_t across = config.width / 2, down = config.height / 2;
  const at::Tensor mirrored =
      at::reflection_pad2d(bytes_CHW.to(at::kFloat), {across, across, down, down});
  const at::Tensor rows = weighted_windows(mirrored, 2, config.width, sigma);
  bytes_CHW.copy_(weighted_windows(rows, 1, config.height, sigma).round_());
}

double mixup_weight(double concentration, CounterRng& rng) {
  const double a = log_gamma_variable(concentration, rng);
  const double b = log_gamma_variable(concentration, rng);
  return 1.0 / (1.0 + std::exp(-std::abs(a - b)));
}

void mix_with_next(at::Tensor& images, double weight) {
  const int64_t batch = images.size(0);
  if (batch == 0) return;
  if (!images.is_cpu()) {
    images = images.mul(weight).add_(rolled(images), 1.0 - weight);
    return;
  }
  const int64_t num_values = images.numel() / batch;
  auto* x = images.mutable_data_ptr<float>();
  const auto own = static_cast<float>(weight), other = static_cast<float>(1.0 - weight);
  const std::vector<float> first(x, x + num_values);
  for (int64_t i = 0; i < batch; ++i) {
    const float* next = i + 1 < batch ? x + (i + 1) * num_values : first.data();
    float* row = x + i * num_values;
    for (int64_t j = 0; j < num_values; ++j) row[j] = own * row[j] + other * next[j];
  }
}

at::Tensor mixed_labels(const at::Tensor& labels, int64_t classes, double weight) {
  return mixed_labels(labels, rolled(labels), classes, weight);
}

at::Tensor mixed_labels(const at::Tensor& labels, const at::Tensor& next, int64_t classes,
                        double weight) {
  const auto one_hot = [&](const at::Tensor& of) {
    return at::one_hot(of, classes).to(at::kFloat);
  };
  return one_hot(labels).mul_(weight).add_(one_hot(next).mul_(1.0 - weight));
}

std::string config_problem(const CropConfig& config) {
  if (config.min_area > config.max_area) return "min_area is above max_area";
  return config.min_aspect > config.max_aspect ? "min_aspect is above max_aspect" : "";
}

Rectangle random_crop(const CropConfig& config, int64_t height, int64_t width, CounterRng& rng) {
  for (int i = 0; i < kPartTries; ++i) {
    const double aspect =
        config.min_aspect + rng.uniform() * (config.max_aspect - config.min_aspect);
    Rectangle part = part_of_aspect(config, aspect, height, width, rng);
    if (part.height == 0) continue;
    part.top = random_place(height - part.height, rng);
    part.left = random_place(width - part.width, rng);
    return part;
  }
  return {0, 0, height, width};
}

CounterRng augment_rng(uint64_t seed, int64_t epoch, int64_t position) {
  constexpr uint64_t kPurpose = stream_id("loader.augment");
  return CounterRng(seed, mix64(kPurpose + static_cast<uint64_t>(epoch)),
                    static_cast<uint64_t>(position));
}

ImageTransform::ImageTransform(const DatasetInfo& info, AugmentConfig augment)
    : channels_(info.channels), height_(info.height), width_(info.width), augment_(augment) {
  const auto channels = static_cast<size_t>(channels_);
  if (height_ < 1 || width_ < 1) {
    fail_usage("dataset '{}': the images may differ in size; set preprocess.size", info.name);
  }
  if (info.mean.size() != channels || info.std.size() != channels) {
    fail_usage("dataset '{}': {} channels need as many means and stds, found {} and {}", info.name,
               channels, info.mean.size(), info.std.size());
  }
  if (augment_.max_shift < 0 || augment_.max_shift >= std::min(height_, width_)) {
    fail_usage("augment.max_shift is {}, but images of '{}' are {} x {}: choose 0 to {}",
               augment_.max_shift, info.name, height_, width_, std::min(height_, width_) - 1);
  }
  if (augment_.blur &&
      (augment_.blur->height / 2 >= height_ || augment_.blur->width / 2 >= width_)) {
    fail_usage(
        "augment.blur has a kernel of {} x {}, but images of '{}' are {} x {}: choose at most "
        "{} x {}",
        augment_.blur->height, augment_.blur->width, info.name, height_, width_, 2 * height_ - 1,
        2 * width_ - 1);
  }
  value_.resize(channels);
  for (size_t c = 0; c < channels; ++c) {
    if (!(info.std[c] > 0)) {
      fail_usage("dataset '{}': std of channel {} must be above 0, not {}", info.name, c,
                 info.std[c]);
    }
    // Types and order of operations are those of common Python pipelines.
    const auto mean = static_cast<float>(info.mean[c]);
    const auto std = static_cast<float>(info.std[c]);
    for (size_t byte = 0; byte < 256; ++byte) {
      value_[c][byte] = (static_cast<float>(byte) / 255.0f - mean) / std;
    }
  }
}

void ImageTransform::operator()(uint8_t* in, CounterRng& rng, float* out) const {
  transform(in, rng, value_, out);
}

void ImageTransform::operator()(uint8_t* in, CounterRng& rng, uint8_t* out) const {
  static const std::array<uint8_t, 256> itself = [] {
    std::array<uint8_t, 256> bytes{};
    std::iota(bytes.begin(), bytes.end(), uint8_t{0});
    return bytes;
  }();
  transform(in, rng, std::vector(static_cast<size_t>(channels_), itself), out);
}

template <class Value>
void ImageTransform::transform(uint8_t* in, CounterRng& rng, const Tables<Value>& values,
                               Value* out) const {
  bool mirrored = augment_.flip && rng.randint(2) == 1;
  if (augment_.rand_augment) {
    if (std::exchange(mirrored, false)) {
      for (uint8_t* row = in; row < in + channels_ * height_ * width_; row += width_) {
        std::reverse(row, row + width_);
      }
    }
    rand_augment(*augment_.rand_augment, rng, {channels_, height_, width_, in});
  }
  if (augment_.blur) {
    const double range = augment_.blur->max_sigma - augment_.blur->min_sigma;
    const double sigma = augment_.blur->min_sigma + range * rng.uniform();
    blur(*augment_.blur, sigma, {channels_, height_, width_, in});
  }
  int64_t dy = 0, dx = 0;
  if (augment_.max_shift > 0) {
    const auto choices = static_cast<uint64_t>(2 * augment_.max_shift + 1);
    dy = static_cast<int64_t>(rng.randint(choices)) - augment_.max_shift;
    dx = static_cast<int64_t>(rng.randint(choices)) - augment_.max_shift;
  }
  // Columns [first, last) of the output show the image, the others the fill value.
  const int64_t first = std::max<int64_t>(0, dx), last = std::min(width_, width_ + dx);
  const int64_t step = mirrored ? -1 : 1;
  const int64_t start = mirrored ? width_ - 1 - (first - dx) : first - dx;
  for (const auto& value : values) {
    for (int64_t y = 0; y < height_; ++y, out += width_) {
      const int64_t from = y - dy;
      if (from < 0 || from >= height_) {
        std::fill_n(out, width_, value[0]);
        continue;
      }
      std::fill(out, out + first, value[0]);
      const uint8_t* row = in + from * width_;
      for (int64_t x = first; x < last; ++x) out[x] = value[row[start + step * (x - first)]];
      std::fill(out + last, out + width_, value[0]);
    }
    in += height_ * width_;
  }
}

at::Tensor normalised(const at::Tensor& bytes_BCHW, const at::Tensor& mean_C,
                      const at::Tensor& std_C) {
  const auto by_channel = [](const at::Tensor& tensor) { return tensor.view({-1, 1, 1}); };
  // A GPU would multiply by the reciprocal of a number that is no tensor.
  const at::Tensor white = at::full({}, 255.0f, mean_C.options());
  return bytes_BCHW.to(at::kFloat).div_(white).sub_(by_channel(mean_C)).div_(by_channel(std_C));
}

}  // namespace moesaic
