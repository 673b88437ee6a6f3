// SPDX-License-Identifier: Apache-2.0
// Some of the images of an evaluation as points: what the network saw or made of them, and what
// is known of each.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/train/evaluate.h"

namespace moesaic {

inline constexpr int64_t kMinPoints = 10, kMaxPoints = 10000;

struct EvaluationPointsOptions {
  std::string of = "embedding";  ///< or "inputs": what the network saw, flattened
  int64_t points = 2000;         ///< at most; drawn by `seed` where there are more
  std::string color;             ///< "expert", "class" or "group"; empty: expert where there is one
  std::optional<std::string> only_class;  ///< a class; images of others are no points
  std::vector<std::string> only_groups;   ///< likewise groups; none: all
  bool boundary = false;  ///< the points are for a figure of the boundary between two classes
  uint64_t seed = 1;
};

struct EvaluationPoints {
  std::string data;                          ///< its name
  std::vector<std::string> classes, groups;  ///< their names
  int64_t experts = 0;                       ///< of the last routing layer, rows of its router
  std::string color;                         ///< "expert", "class" or "group"
  at::Tensor x_ND;                           ///< float32
  at::Tensor index_N;                        ///< the image's number in the split
  /// int64. The class predicted is the one of the largest logit, in an ensemble of the largest mean
  /// probability. The expert is the one that the last routing layer sent the image to, -1 where
  /// it was dropped; undefined where that layer does not send each image to one expert. Groups
  /// are undefined where the dataset has none.
  at::Tensor label_N, predicted_N, expert_N, group_N;
};

/// Keeps of each batch the rows of the points alone. Throws Error (usage), from the first batch on,
/// for a class or group that the dataset lacks, for fewer than kMinPoints images, for a colour
/// that nothing gives, and for a boundary between more than two classes.
class EvaluationPointCollector {
 public:
  explicit EvaluationPointCollector(EvaluationPointsOptions options);

  void add(const EvaluatedBatch& batch);
  /// After the last batch.
  EvaluationPoints points() const;

 private:
  void begin(const EvaluatedBatch& batch);
  void choose(const Dataset& dataset);

  EvaluationPointsOptions options_;
  EvaluationPoints info_;
  std::vector<int64_t> chosen_;  ///< ascending
  size_t next_ = 0;              ///< the first that is not yet there
  bool one_expert_ = true;
  std::vector<at::Tensor> x_, label_, predicted_, expert_, group_;
};

}  // namespace moesaic
