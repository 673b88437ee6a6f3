// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "moesaic/data/dataset.h"

namespace moesaic {

/// Inputs that are no images, held in memory.
struct DatasetInputs {
  at::Tensor values_NCHW;  ///< float32, as networks take them; undefined for images
  at::Tensor labels_N;     ///< int64
  at::Tensor groups_N;     ///< int64, or undefined
};

/// Inputs that are no images; info's channels, height and width are those of the values. Throws
/// Error (failure) where the sizes disagree, or a label has no class or a group no name.
std::shared_ptr<const Dataset> make_input_dataset(DatasetInfo info, DatasetInputs inputs);

/// The groups of `count` examples from `first` on, [count] int64; undefined where there are none.
at::Tensor group_numbers(const Dataset& dataset, int64_t first, int64_t count);

}  // namespace moesaic
