// SPDX-License-Identifier: Apache-2.0
// Speed and memory of one network by the number of images in a forward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "moesaic/models/model.h"

namespace moesaic {

struct LatencyOptions {
  int64_t batch_size = 1;
  double seconds = 2.0;               ///< Time spent on passes; there are at least 5.
  std::string precision = "float32";  ///< See Autocast.
};

struct Latency {
  int64_t batch_size = 0, passes = 0;
  double median_ms = 0.0, p95_ms = 0.0;  ///< Time of a pass.
  double images_per_second = 0.0;        ///< By the median.
  double bytes = 0.0;                    ///< Weights, images and peak_tensor_bytes() of a pass.
};

/// Times forward passes of images of normal random numbers, in evaluation and inference mode on the
/// network's device, as eval makes them. The first two are not counted. Loading is not counted.
Latency measure_latency(Model& model, const LatencyOptions& options);

/// Returns the most bytes that tensors made by `work` in this thread take at once, on any device.
int64_t peak_tensor_bytes(const std::function<void()>& work);

}  // namespace moesaic
