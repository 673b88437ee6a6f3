// SPDX-License-Identifier: Apache-2.0
// A validation split that is held out of the training files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "moesaic/data/dataset.h"

namespace moesaic {

/// Returns how many of `count` training examples stay for training if a fraction is held out.
/// The boundary is rounded as TensorFlow Datasets does for `train[:98%]` (its
/// `_pct_to_abs_closest`: `int(round(boundary * num_examples / 100.))`, halves to even), which is
/// what google-research/vmoe trains on: train[:98%] and train[98%:] of CIFAR, train[:99%] and
/// train[99%:] of ImageNet.
int64_t training_count(int64_t count, double validation);

/// Returns the part of the training examples `all` that is the split "train" or "validation". The
/// last examples are held out; with `by_class`, for examples sorted by class, the last ones of
/// every class, as many of each as rounding the cumulative counts of classes gives, so that the
/// total is the same where each class gives one or more; of a class of two examples or more each
/// split has at least one. (The examples that TensorFlow Datasets holds out depend on the order of its
/// own files, which differs.) Shares the memory of `all`. Throws Error: failure if the split would
/// be empty, usage if `all` is endless.
std::shared_ptr<const Dataset> hold_out(std::shared_ptr<const Dataset> all, double validation,
                                        const std::string& split, bool by_class);

}  // namespace moesaic
