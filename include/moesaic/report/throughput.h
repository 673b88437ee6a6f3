// SPDX-License-Identifier: Apache-2.0
// How fast networks run, compared fairly.
#pragma once

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

/// Images a second in forward passes, for each network the median over the rounds. In a round every
/// network sees the same batch of the dataset's first images, one network after the other, and
/// each round begins with another one: a busy machine slows all of them alike. Loading is not
/// counted. `proceed` is asked before each round; once it says no, the result is empty.
std::vector<double> measure_throughput(const std::vector<std::shared_ptr<Model>>& models,
                                       std::shared_ptr<const Dataset> dataset,
                                       const ThroughputConfig& config = {},
                                       const std::function<bool()>& proceed = {});

/// Anything that takes a batch [B, C, H, W], e.g. an exported network.
using ForwardPass = std::function<void(const at::Tensor& images_BCHW)>;

/// A network in evaluation mode as a forward pass.
ForwardPass forward_pass(std::shared_ptr<Model> model);

/// The same for any forward passes.
std::vector<double> measure_passes(const std::vector<ForwardPass>& passes,
                                   std::shared_ptr<const Dataset> dataset,
                                   const ThroughputConfig& config = {},
                                   const std::function<bool()>& proceed = {});

/// Of an even number of values, the mean of the middle two. Throws Error (usage) for none.
double median(std::vector<double> values);

}  // namespace moesaic
