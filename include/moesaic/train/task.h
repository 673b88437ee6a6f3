// SPDX-License-Identifier: Apache-2.0
// Tasks: what the targets of a dataset require of a network, and the metrics of its predictions.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/data/loader.h"
#include "moesaic/models/model.h"
#include "moesaic/train/confusion.h"

namespace moesaic {

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

/// Returns classification for data with classes, regression for real-valued targets.
const Task& task_of(const DatasetInfo& data);

/// Returns the metric of this name, the first for "". Throws Error (usage) with the nearest name.
MetricInfo metric_of(const DatasetInfo& data, const std::string& name);

/// Returns the metrics as JSON; names with dots become objects.
nlohmann::ordered_json to_json(const Metrics& metrics);

}  // namespace moesaic
