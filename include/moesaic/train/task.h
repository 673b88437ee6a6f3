// SPDX-License-Identifier: Apache-2.0
// Tasks: what the targets of a dataset require of a network, and the metrics of its predictions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/data/loader.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// Numbers of images by true and by predicted class. Only pairs that occur take memory.
class Confusion {
 public:
  /// Adds classes [B] int64.
  void add(const at::Tensor& labels_B, const at::Tensor& predicted_B);

  bool empty() const { return counts_.empty(); }
  int64_t count(int64_t label, int64_t predicted) const;
  /// Returns the number of images of a class.
  int64_t images(int64_t label) const;

 private:
  std::map<int64_t, std::map<int64_t, int64_t>> counts_;  ///< By true, then by predicted class.
};

/// Metrics by name; a dot in a name makes an object in JSON.
using Metrics = std::map<std::string, double>;

/// Names and values of metrics for people, the most compared first.
using MetricRows = std::vector<std::pair<std::string, std::string>>;

enum class Direction { higher_is_better, lower_is_better };

/// A metric that `best` may follow.
struct MetricInfo {
  std::string name;
  Direction direction = Direction::higher_is_better;
  std::string unit = {};  ///< Unit behind a value in messages, e.g. " %".
};

/// Measures predictions batch by batch, with sums in float64.
class Meter {
 public:
  virtual ~Meter() = default;
  /// Adds the network's output for a batch, on the CPU.
  virtual void add(const ModelOutput& output, const Batch& batch) = 0;
  /// Returns the metrics of all images so far, at least one.
  virtual Metrics result() const = 0;
  /// Returns what was predicted for the images of each class; empty where there are no classes.
  virtual Confusion confusion() const { return {}; }
};

class Task {
 public:
  virtual ~Task() = default;
  /// Returns the metrics of such data that `best` may follow, the default first.
  virtual std::vector<MetricInfo> metrics(const DatasetInfo& data) const = 0;
  /// Returns a meter; `loss` is the objective's name (train/objective.h), "" the default one.
  virtual std::unique_ptr<Meter> meter(const Model& model, const std::string& loss) const = 0;
  /// Returns a meter's result as text.
  virtual MetricRows rows(const Metrics& metrics) const = 0;
  /// Throws Error (usage) if the network does not have as many outputs as the targets require.
  virtual void check_outputs(const Model& model, const DatasetInfo& data) const = 0;
  /// Returns the number of outputs of a new head for this data.
  virtual int64_t outputs(const DatasetInfo& data) const = 0;
};

/// Bins of the calibration error.
inline constexpr int64_t kCalibrationBins = 15;

/// Returns a meter of classes. An image's probabilities are softmax(logits), or sigmoid(logits) for
/// a sigmoid loss, and for an ensemble, with its members' logits in a row, the mean over its
/// members; the predicted class is the most probable one, on ties the one with the lower index. The
/// metrics are
///
///     accuracy            top-1 accuracy in %
///     top5_accuracy       top-5 accuracy in %; none of at most five classes, where it is 100 for
///                         any network
///     loss                mean of evaluation_losses()
///     calibration_error   expected calibration error (Guo et al., arXiv:1706.04599): over bins of
///                         equal width of the predicted class's probability p in (0, 1], the sum of
///                         (fraction of the images in the bin) * |accuracy in it - mean p in it|
///
/// and of an ensemble, where a negative log-likelihood is that of the true class, the mean over
/// images:
///
///     ensemble.members
///     ensemble.negative_log_likelihood           of the members' mean probability
///     ensemble.member_negative_log_likelihood    mean over the members
///     ensemble.member_accuracy                   mean over the members, in %
///     ensemble.disagreement    fraction of pairs of members with different predictions
std::unique_ptr<Meter> classification_meter(const std::string& loss);

/// Returns classification for data with classes, regression for real-valued targets.
const Task& task_of(const DatasetInfo& data);

/// Returns the metric of this name, the first for "". Throws Error (usage) with the nearest name.
MetricInfo metric_of(const DatasetInfo& data, const std::string& name);

/// Returns the metrics as JSON; names with dots become objects.
nlohmann::ordered_json to_json(const Metrics& metrics);

}  // namespace moesaic
