// SPDX-License-Identifier: Apache-2.0
// Speed and memory of networks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "moesaic/data/dataset.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// Settings of `throughput` in an experiment.
struct ThroughputConfig {
  int64_t batch_size = 128;
  int64_t num_rounds = 40;
};
void describe(auto& f, ThroughputConfig& c) {
  f("batch_size", c.batch_size, "number of images per forward pass", at_least(1));
  f("num_rounds", c.num_rounds, "number of forward passes of each network", at_least(1),
    renamed_from("rounds"));
}

/// A function of a batch [B, C, H, W], e.g. of an exported network.
using ForwardPass = std::function<void(const at::Tensor& images_BCHW)>;

/// Returns the forward pass of a network in evaluation mode.
ForwardPass forward_pass(std::shared_ptr<Model> model);

/// Returns images per second of forward passes, for each pass the median over the rounds. In a
/// round all passes run in turn on the same batch of the dataset's first images, and each round
/// starts with another one, so that a busy machine slows all of them alike. Loading is not
/// counted. Images are on `device`, as the networks must be. `on_progress` is called before each
/// round; if it returns false, the result is empty.
std::vector<double> measure_throughput(const std::vector<ForwardPass>& passes,
                                       std::shared_ptr<const Dataset> dataset,
                                       const ThroughputConfig& config = {},
                                       const std::function<bool()>& on_progress = {},
                                       at::Device device = at::kCPU);

/// Returns the median, the mean of the middle two for an even number of values. Throws Error
/// (usage) for no values.
double median(std::vector<double> values);

/// Options of measure_latency().
struct LatencyOptions {
  int64_t batch_size = 1;
  double seconds = 2.0;               ///< Time spent on passes; there are at least 5.
  std::string precision = "float32";  ///< See Autocast.
};

/// Times of forward passes.
struct Latency {
  int64_t batch_size = 0, num_passes = 0;
  double median_ms = 0.0, p95_ms = 0.0;  ///< Time of a pass.
  double images_per_second = 0.0;        ///< Images per second at the median.
  double bytes = 0.0;                    ///< Weights, images and peak_tensor_bytes() of a pass.
};

/// Times forward passes of images of normal random numbers, in evaluation and inference mode on the
/// network's device, as eval makes them. The first two are not counted. Loading is not counted.
Latency measure_latency(Model& model, const LatencyOptions& options);

/// Returns the most bytes that tensors made by `work` in this thread take at once, on any device.
int64_t peak_tensor_bytes(const std::function<void()>& work);

}  // namespace moesaic
