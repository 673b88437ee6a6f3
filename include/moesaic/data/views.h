// SPDX-License-Identifier: Apache-2.0
// Datasets of examples of another one, whose memory they share: some of them, in another order, or
// under other names and labels.
#pragma once

#include <string_view>

#include "moesaic/base/random.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

/// Returns the label of an example, none where it was lost with the image.
std::optional<int64_t> known_label(const Dataset& dataset, int64_t index);

/// Makes a dataset of the images of `base` whose class is among `keep_classes`, in their order;
/// labels become indices in `keep_classes`. Throws Error (usage) for a class that `base` lacks or
/// that is given twice.
std::shared_ptr<const Dataset> make_class_subset(std::shared_ptr<const Dataset> base,
                                                 const std::vector<std::string>& keep_classes,
                                                 std::string name, std::string description = "");

/// Makes a dataset of the first `count` images of `base`, finite even where `base` is endless.
/// Throws Error (failure) if there are fewer.
std::shared_ptr<const Dataset> make_first_n(std::shared_ptr<const Dataset> base, int64_t count,
                                            std::string name, std::string description = "");

/// Returns the same dataset under another name.
std::shared_ptr<const Dataset> make_renamed(std::shared_ptr<const Dataset> base, std::string name,
                                            std::string description = "");

/// What to do with a class that a network lacks, where it takes no others.
inline constexpr std::string_view kRenameClass =
    "rename the class, or leave it out by a description with keep_classes";

/// Returns `data` with the labels of a network whose outputs are called `outputs`, in this order:
/// a class is matched by its name, whatever its number, and info().classes is `outputs`. Data may
/// have fewer classes. Without names on either side, and where nothing changes, that is `data`.
/// Throws Error (usage) for a class that the outputs lack or name twice, with the nearest one and
/// `suggestion`, what to do instead.
std::shared_ptr<const Dataset> with_classes_of(std::shared_ptr<const Dataset> data,
                                               const std::vector<std::string>& outputs,
                                               std::string_view suggestion = {});

/// Returns how many of `count` training examples stay for training if a fraction is held out.
/// The boundary is rounded as TensorFlow Datasets does for `train[:98%]` (`_pct_to_abs_closest`:
/// `int(round(boundary * num_examples / 100.))`, halves to even). google-research/vmoe trains on
/// such splits: train[:98%] and train[98%:] of CIFAR, train[:99%] and train[99%:] of ImageNet.
int64_t num_training_examples(int64_t count, double validation);

/// Returns the part of the training examples `all` that is the split "train" or "validation". The
/// last examples are held out; with `is_sorted_by_class`, for examples sorted by class, the last
/// ones of every class, their numbers by rounding cumulative counts of classes: the total stays the
/// same where each class gives one or more. Of a class of two examples or more each split has at
/// least one. (The examples that TensorFlow Datasets holds out depend on the order of its own
/// files, which differs.) Throws Error: failure if the split would be empty, usage if `all` is
/// endless.
std::shared_ptr<const Dataset> hold_out(std::shared_ptr<const Dataset> all, double validation,
                                        const std::string& split, bool is_sorted_by_class);

/// Returns the first sample of an endless stream that a seed takes, so that runs of different seeds
/// see different samples.
inline int64_t stream_offset(uint64_t seed) {
  constexpr int kFreeBits = 23;  // Below 2^41: samples are left for any number of steps.
  return static_cast<int64_t>(mix64(seed) >> kFreeBits);
}

/// Makes a dataset of `count` examples of `base`, the training samples of a run that uses only some
/// of its data. Of endless data it takes consecutive examples from stream_offset(seed) on; else, of
/// each class in turn, while it has any, the next in a random order. A seed's smaller samples are
/// the beginning of its larger ones. Throws Error (failure) where there are fewer, and for finite
/// data without classes.
std::shared_ptr<const Dataset> make_sample(std::shared_ptr<const Dataset> base, int64_t count,
                                           uint64_t seed);

}  // namespace moesaic
