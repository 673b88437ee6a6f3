// SPDX-License-Identifier: Apache-2.0
// The smallest pruned network whose accuracy is near that of the unpruned one.
#pragma once

#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/report/figure.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

/// How sizes are tried. Bisection assumes that accuracy falls with every removed expert, and needs
/// a logarithmic number of evaluations. Greedy search removes one expert at a time, in the layer
/// where the accuracy falls least, and tries every layer for it.
inline constexpr const char *kBisection = "bisection", *kGreedy = "greedy";

/// Options of search_pruning().
struct PruneSearchOptions {
  double max_drop = 0.01;  ///< Largest loss of accuracy as a fraction, in [0, 1).
  std::string method = kBisection;
  EvaluateOptions evaluate;    ///< `on_progress` is not called.
  std::string device = "cpu";  ///< Where networks are evaluated.
  /// Called before each evaluation and after each of its batches, with the number of finished ones
  /// and a bound on all of them. What it throws ends the search.
  std::function<void(int64_t done, int64_t at_most)> progress;
};

/// A network that was tried.
struct PrunePoint {
  std::string experts;      ///< Experts that stay, by layer: "6, 6, 8".
  double parameters = 0.0;  ///< Fraction of the network's parameters that stay.
  double accuracy = 0.0;    ///< Accuracy in %.
};

/// The result of a search.
struct PruneSearch {
  PrunePlan plan;                  ///< The smallest one within max_drop.
  std::vector<PrunePoint> points;  ///< Tried networks in order; the unpruned one first.
  size_t chosen = 0;               ///< Index of plan_point().
  std::string method;
  double max_drop = 0.0;
  int64_t num_evaluations = 0;

  /// Returns the smallest accuracy within max_drop.
  double lowest_accuracy() const { return points.front().accuracy - 100.0 * max_drop; }
  /// Returns whether an accuracy is within the drop; NaN is not.
  bool is_within_drop(double accuracy) const { return accuracy >= lowest_accuracy(); }
  /// Returns the point of the network that `plan` prunes.
  const PrunePoint& plan_point() const { return points[chosen]; }
};

/// Searches among the plans of `options.prune`, whose `keep` gives whole blocks and, for bisection,
/// the scope; accuracy is that on `data`, which the search must not take from the test split.
/// Throws Error (usage) where the data has no classes, or nothing can be pruned.
PruneSearch search_pruning(const PruneCheckpointOptions& options, const Checkpoint& checkpoint,
                           const std::shared_ptr<const Dataset>& data,
                           const PruneSearchOptions& search);

/// Returns the tried networks, the largest first, as a table.
std::string to_text(const PruneSearch& search);

/// Returns the figure of accuracy over the fraction of parameters that stays.
Figure search_figure(const PruneSearch& search, const std::string& stem);

}  // namespace moesaic
