// SPDX-License-Identifier: Apache-2.0
// A validation split that is held out of the training files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "moesaic/data/dataset.h"

namespace moesaic {

/// Number of `count` training examples that stay for training where a fraction of them is held out.
/// The boundary is rounded as TensorFlow Datasets does for `train[:98%]` (its
/// `_pct_to_abs_closest`: `int(round(boundary * num_examples / 100.))`, halves to even), which is
/// what google-research/vmoe trains on: train[:98%] and train[98%:] of CIFAR, train[:99%] and
/// train[99%:] of ImageNet.
int64_t training_count(int64_t count, double validation);

/// The part of the training examples `all` that is the split "train" or "validation". The last
/// examples are held out; with `by_class`, where examples stand class by class, the last ones of
/// every class, as many of each as the place of the class among all examples gives by rounding, so
/// that the total is the same. (Which examples TensorFlow Datasets holds out depends on the order
/// in its own files, which differs.) Shares the memory of `all`. Throws Error: failure where
/// the split would be empty, usage where `all` is endless.
std::shared_ptr<const Dataset> hold_out(std::shared_ptr<const Dataset> all, double validation,
                                        const std::string& split, bool by_class);

}  // namespace moesaic
