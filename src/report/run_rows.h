// SPDX-License-Identifier: Apache-2.0
// Makes the runs of an experiment's rows, each once: processes share them, and a log keeps them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/report/experiment.h"
#include "moesaic/report/measurement.h"
#include "run_pool.h"

namespace moesaic {

/// A row of the results that runs fill.
struct FilledRow {
  std::string name;
  std::vector<Metric> metrics;
  std::vector<Metric> snapshot_metrics = {};
  int64_t earlier_phases = 0;  ///< Updates before the last phase that makes any.
};

/// What a run comes to, by row of the results.
using MadeRun = std::map<std::string, RunRecord>;

/// A row of an experiment, ready to run with any seed.
struct ReadyRow {
  std::string name;
  std::vector<FilledRow> fills = {};  ///< In the order of the results, its own last.
  int64_t runs = 1;
  int64_t images = 0;  ///< That a run takes.
  /// Makes run `index` while `going()`; nothing where that ended it.
  std::function<std::optional<MadeRun>(int64_t index, const Going& going)> make = {};
};

/// All rows of an experiment.
struct ReadyRuns {
  nlohmann::ordered_json settings = {};  ///< Of the folder; "runs" are those of each row.
  /// Rows whose runs may be made side by side; those of a later stage begin with what the runs of
  /// earlier ones left on disk.
  std::vector<std::vector<ReadyRow>> stages = {};
  bool on_disk = false;  ///< Runs have folders: they may be large and are made one at a time.
  /// Adds what is measured of all rows together. Throws Stopped.
  std::function<void(std::vector<MeasuredRow>& rows)> finish = {};

  /// Calls action(row, filled) for all rows of the results, in order.
  template <class F>
  void for_each_filled(F&& action) const {
    for (const std::vector<ReadyRow>& stage : stages) {
      for (const ReadyRow& row : stage) {
        for (const FilledRow& filled : row.fills) action(row, filled);
      }
    }
  }
};

/// Makes the runs that the experiment's folder lacks, and adds to `rows` what all of them came to,
/// in process 0. Returns false if a signal stopped it.
bool make_rows(const ReadyRuns& runs, const ReproduceOptions& options,
               std::vector<MeasuredRow>& rows);

}  // namespace moesaic
