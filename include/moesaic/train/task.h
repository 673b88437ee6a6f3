// SPDX-License-Identifier: Apache-2.0
// What the targets of a data set ask of a network, and how its answers are measured.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moesaic/data/loader.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// Named measurements; a dot in a name parts a group from its members in JSON.
using Metrics = std::map<std::string, double>;

enum class Direction { higher_is_better, lower_is_better };

/// A metric that `best` may follow.
struct MetricInfo {
  std::string name;
  Direction direction = Direction::higher_is_better;
  std::string unit = {};  ///< as it follows a number in messages, e.g. " %"
};

/// Measures predictions batch by batch, with sums in float64.
class Meter {
 public:
  virtual ~Meter() = default;
  /// The network's output for a batch, on the CPU.
  virtual void add(const ModelOutput& output, const Batch& batch) = 0;
  /// Of at least one image.
  virtual Metrics result() const = 0;
};

class Task {
 public:
  virtual ~Task() = default;
  /// The metrics that can be followed; the first is followed by default.
  virtual std::vector<MetricInfo> metrics() const = 0;
  /// `loss`: the objective's name (train/objective.h), "" for the usual one of such a network.
  virtual std::unique_ptr<Meter> meter(const Model& model, const std::string& loss) const = 0;
  /// Throws Error (usage) where the network's outputs are not as many as the targets ask for.
  virtual void check_outputs(const Model& model, const DatasetInfo& data) const = 0;
  /// How many outputs a fresh head for this data has.
  virtual int64_t outputs(const DatasetInfo& data) const = 0;
};

/// Classification where the data has classes, regression where its targets are real numbers.
const Task& task_of(const DatasetInfo& data);

/// The metric of this name, "" being the first. Throws Error (usage) with the nearest name.
MetricInfo metric_of(const Task& task, const std::string& name);

/// The metrics as JSON; names with dots become objects.
nlohmann::ordered_json to_json(const Metrics& metrics);

}  // namespace moesaic
