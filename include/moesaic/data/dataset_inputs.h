// SPDX-License-Identifier: Apache-2.0
// Inputs that are not images: values in memory or generated on the fly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "moesaic/data/dataset.h"

namespace moesaic {

/// N inputs that are not images, with their targets: labels where these are classes, else real
/// numbers.
struct DatasetInputs {
  at::Tensor values_NCHW = {};  ///< Inputs of the network, float32; undefined for images.
  at::Tensor labels_N = {};     ///< Classes, int64; undefined where targets are real numbers.
  at::Tensor groups_N = {};     ///< Groups, int64, or undefined.
  at::Tensor targets_NK = {};   ///< Targets, float32; undefined where targets are classes.
};

using Directions = std::map<std::string, at::Tensor>;

/// Makes a dataset of inputs in memory; info's channels, height and width become those of the
/// values. Dataset::directions() returns `directions`. Throws Error (failure) if sizes disagree, a
/// label has no class, a group no name, a target is not finite, or there are both classes and
/// real-valued targets.
std::shared_ptr<const Dataset> make_input_dataset(DatasetInfo info, DatasetInputs inputs,
                                                  Directions directions = {});

/// Generates the inputs `first` to `first + count - 1`: always the same values for an index,
/// whatever the range. Thread-safe.
using MakeInputs = std::function<DatasetInputs(int64_t first, int64_t count)>;

/// Makes an endless dataset whose inputs are generated on the fly and not kept; `size` of them
/// count as an epoch. Input 0 is generated at once for its shape. Throws as make_input_dataset()
/// does.
std::shared_ptr<const Dataset> make_stream_dataset(DatasetInfo info, int64_t size, MakeInputs make,
                                                   Directions directions = {});

/// Returns the groups of the examples `first` to `first + count - 1`, [count] int64; undefined
/// without groups.
at::Tensor group_numbers(const Dataset& dataset, int64_t first, int64_t count);

}  // namespace moesaic
