// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "moesaic/data/dataset.h"
#include "moesaic/data/transforms.h"

namespace moesaic {

struct LoaderOptions {
  int64_t batch_size = 1;
  uint64_t seed = 0;
  /// Epochs follow one another without end, each in a new order, or of an endless dataset in its
  /// own, going on where the last one ended; else there is one epoch in the dataset's order.
  bool shuffle = false;
  bool drop_last = false;  ///< leave out the last batch of an epoch where it is smaller
  int64_t threads = 0;     ///< 0: next() does the work
  int64_t prefetch = 4;    ///< batches that the threads may be ahead
  AugmentConfig augment;
};

struct Batch {
  at::Tensor images;       ///< [B, C, H, W] float32, normalised
  at::Tensor labels;       ///< [B] int64; undefined where targets are real numbers
  at::Tensor soft_labels;  ///< [B, classes] float32; undefined without mixup
  int64_t epoch = 0;
  int64_t position = 0;     ///< number of the batch in its epoch
  at::Tensor targets = {};  ///< [B, K] float32; undefined where targets are classes

  /// The same batch on a device.
  Batch to(at::Device device) const;
};

/// Batches of a dataset, made ahead by worker threads. A batch depends on seed, epoch and position
/// only: the same bits for any number of threads and after any seek. An image that cannot be read
/// (ImageError) is named in a warning and replaced by the next one of the dataset that can, label
/// and all; where more than 1 % and more than 10 of the images are so, it is an Error. Of an
/// endless dataset batch b of epoch e has the examples from e * size() + b * batch_size on, made by
/// the threads. Memory holds the batches ahead and an order of int64 for each of the last epochs.
/// Used by one thread.
class Loader {
 public:
  /// Throws Error (usage) where options are out of range or an epoch would have no batch.
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  int64_t batches_per_epoch() const;
  /// Number of images in an epoch: the dataset's size, less what drop_last leaves out.
  int64_t images_per_epoch() const;
  const Dataset& dataset() const;
  const LoaderOptions& options() const;

  /// The next batch is `batch` of `epoch`. Throws Error (usage) where there is no such batch; batch
  /// == batches_per_epoch() is the beginning of the next epoch when shuffling, else the end.
  void seek(int64_t epoch, int64_t batch);
  /// Whether there is no further batch; never so when shuffling.
  bool done() const;
  /// Throws what went wrong while the batch was made (again at every call, until a seek), and Error
  /// (usage) when done().
  Batch next();

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace moesaic
