// SPDX-License-Identifier: Apache-2.0
// Fair comparison of the speed of networks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/data/dataset.h"
#include "moesaic/models/model.h"

namespace moesaic {

struct ThroughputConfig {
  int64_t batch_size = 128;
  int64_t rounds = 40;
};
template <class Fields>
void describe(Fields& f, ThroughputConfig& c) {
  f("batch_size", c.batch_size, "images in a forward pass", at_least(1));
  f("rounds", c.rounds, "forward passes of each network", at_least(1));
}

/// A function of a batch [B, C, H, W], e.g. of an exported network.
using ForwardPass = std::function<void(const at::Tensor& images_BCHW)>;

/// Returns the forward pass of a network in evaluation mode.
ForwardPass forward_pass(std::shared_ptr<Model> model);

/// Returns images per second of forward passes, for each pass the median over the rounds. In a
/// round all passes run in turn on the same batch of the dataset's first images, and each round
/// starts with another one, so that a busy machine slows all of them alike. Loading is not
/// counted. Images are on `device`, as the networks must be. `proceed` is called before each round;
/// if it returns false, the result is empty.
std::vector<double> measure_passes(const std::vector<ForwardPass>& passes,
                                   std::shared_ptr<const Dataset> dataset,
                                   const ThroughputConfig& config = {},
                                   const std::function<bool()>& proceed = {},
                                   at::Device device = at::kCPU);

/// Returns the seconds of a forward pass, at the end of which a GPU is waited for.
double seconds_of(const ForwardPass& pass, const at::Tensor& images_BCHW);

/// Returns the median, the mean of the middle two for an even number of values. Throws Error
/// (usage) for no values.
double median(std::vector<double> values);

}  // namespace moesaic
