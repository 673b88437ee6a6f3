// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moesaic/base/file.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

/// A safetensors file of an evaluation's features: "pre_logits" [N members, d] float32, an image's
/// members in a row, "labels" [N] and "predictions" [N] int64. Features wait in a temporary file
/// beside it, so that memory holds one batch of them.
class FeatureFile {
 public:
  /// Begins the temporary file. Throws Error (failure) where it cannot be written.
  explicit FeatureFile(const fs::path& file) : path_(file), waiting_(file) {}

  /// Adds a batch. Throws Error: failure for a full disk, usage for a network without features or
  /// data without classes.
  void add(const EvaluatedBatch& batch);
  /// Writes the file, whole or not at all.
  void finish(const Predictions& predictions);

 private:
  fs::path path_;
  AtomicFile waiting_;  ///< Is never put in place.
  int64_t num_rows_ = 0, width_ = 0;
};

}  // namespace moesaic
