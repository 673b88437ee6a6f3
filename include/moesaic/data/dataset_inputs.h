// SPDX-License-Identifier: Apache-2.0
// Inputs that are no images: numbers in memory, or made on the fly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "moesaic/data/dataset.h"

namespace moesaic {

/// N inputs that are no images, with their targets: labels where these are classes, real numbers
/// else.
struct DatasetInputs {
  at::Tensor values_NCHW = {};  ///< float32, as networks take them; undefined for images
  at::Tensor labels_N = {};     ///< int64; undefined where targets are real numbers
  at::Tensor groups_N = {};     ///< int64, or undefined
  at::Tensor targets_NK = {};   ///< float32; undefined where targets are classes
};

using Directions = std::map<std::string, at::Tensor>;

/// A dataset of inputs in memory; info's channels, height and width become those of the values.
/// `directions` are what Dataset::directions() gives. Throws Error (failure) where sizes disagree,
/// a label has no class, a group no name, a target is not finite, or there are both classes and
/// real-valued targets.
std::shared_ptr<const Dataset> make_input_dataset(DatasetInfo info, DatasetInputs inputs,
                                                  Directions directions = {});

/// Makes the inputs `first` to `first + count - 1`: the same numbers for an index whenever and in
/// whatever pieces it is asked for, by many threads at once.
using MakeInputs = std::function<DatasetInputs(int64_t first, int64_t count)>;

/// An endless dataset whose inputs are made on the fly and never kept; `size` of them count as an
/// epoch. Input 0 is made at once to learn the shape. Throws as make_input_dataset() does.
std::shared_ptr<const Dataset> make_stream_dataset(DatasetInfo info, int64_t size, MakeInputs make,
                                                   Directions directions = {});

/// Groups of the examples `first` to `first + count - 1`: [count] int64; undefined where there are
/// none.
at::Tensor group_numbers(const Dataset& dataset, int64_t first, int64_t count);

}  // namespace moesaic
