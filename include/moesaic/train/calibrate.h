// SPDX-License-Identifier: Apache-2.0
// Images by which pruning criteria see what a network's experts do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "moesaic/data/dataset.h"
#include "moesaic/models/model.h"
#include "moesaic/prune/criteria.h"

namespace moesaic {

struct CalibrateOptions {
  int64_t images = 1024;     ///< The first ones of an order by `seed`; all where there are fewer.
  int64_t batch_size = 256;  ///< Where images share capacities, as in the run's evaluations.
  int64_t loader_threads = 1;
  uint64_t seed = 0;
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// Returns what the network's experts do on images of the dataset, in evaluation mode: the same for
/// any number of threads. Throws Error (usage) where the images do not fit the network.
ExpertUse calibrate(Model& model, const std::shared_ptr<const Dataset>& dataset,
                    const CalibrateOptions& options = {});

/// Returns the split that calibration images are of: "validation" where the data has one, else
/// "train".
std::string calibration_split(const std::vector<std::string>& splits);

}  // namespace moesaic
