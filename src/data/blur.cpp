// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/blur.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/reflection_pad2d.h>

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

}  // namespace moesaic
