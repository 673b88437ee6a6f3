// SPDX-License-Identifier: Apache-2.0
// A sample of an evaluation's images as points: their inputs or embeddings, with labels,
// predictions and experts.
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
  std::string of = "embedding";  ///< "embedding", or "inputs" for flattened inputs.
  int64_t points = 2000;         ///< Max number, drawn by `seed` where there are more.
  std::string color;             ///< "expert", "class" or "group"; empty means expert if possible.
  std::optional<std::string> only_class;  ///< Restricts points to this class.
  std::vector<std::string> only_groups;   ///< Restricts points to these groups; empty means all.
  bool boundary = false;                  ///< For a figure of the boundary between two classes.
  uint64_t seed = 1;
};

struct EvaluationPoints {
  std::string data;                          ///< Name of the dataset.
  std::vector<std::string> classes, groups;  ///< Names of classes and groups.
  int64_t experts = 0;                       ///< Rows of the last layer's router.
  std::string color;                         ///< "expert", "class" or "group".
  at::Tensor x_ND;                           ///< Points, float32.
  at::Tensor index_N;                        ///< Index of each image in the split.
  /// Labels of the points, int64. The predicted class has the largest logit, for an ensemble the
  /// largest mean probability. The expert is the one that the last MoE layer routed the image to,
  /// -1 for a dropped image; undefined where that layer does not route images to one expert each.
  /// Groups are undefined where the dataset has none.
  at::Tensor label_N, predicted_N, expert_N, group_N;
};

/// Collects the points from the batches of an evaluation. Throws Error (usage), at the first batch,
/// for a class or group that the dataset lacks, for fewer than kMinPoints images, for a color that
/// is not available, and for a boundary between more than two classes.
class EvaluationPointCollector {
 public:
  explicit EvaluationPointCollector(EvaluationPointsOptions options);

  void add(const EvaluatedBatch& batch);
  /// Returns the points, after the last batch.
  EvaluationPoints points() const;

 private:
  void begin(const EvaluatedBatch& batch);
  void choose(const Dataset& dataset);

  EvaluationPointsOptions options_;
  EvaluationPoints info_;
  std::vector<int64_t> chosen_;  ///< Indices of the points, ascending.
  size_t next_ = 0;              ///< First point that is not collected yet.
  bool one_expert_ = true;
  std::vector<at::Tensor> x_, label_, predicted_, expert_, group_;
};

}  // namespace moesaic
