// SPDX-License-Identifier: Apache-2.0
// Rows of a benchmark: which are measured, and what becomes of those that fail.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace moesaic::bench {

/// What a line of a benchmark compares.
struct Row {
  double ours = 0;
  double peer = 0;
  std::string unit;                ///< of ours and baseline: "ms", "MB", "GB/s"
  double ratio = 0;                ///< baseline / ours, unless `description` says otherwise
  std::optional<double> at_least;  ///< the goal for `ratio`
  std::optional<double> at_most;
  std::string description;  ///< what the baseline is
};

/// A row that was measured, or the error that ended its measurement.
struct NamedRow {
  std::string name;  ///< "cpu/routing"
  Row row;
  std::string error;
};

/// Measures the rows that are asked for. An exception in one is its result, and the others go on.
class Report {
 public:
  /// names: a pattern with `*` and `?`; take: is called as soon as a row is known.
  Report(std::string names, std::function<void(const NamedRow&)> take);

  void operator()(const std::string& name, const std::function<Row()>& measure) const;

  /// Calls `rows`, which share what is prepared for them and whose names begin with `prefix`,
  /// unless the pattern selects none of these.
  void section(const std::string& prefix, const std::function<void()>& rows) const;

  /// Returns the names of all rows so far, measured or not; of a section that is left out a
  /// pattern of its rows.
  const std::vector<std::string>& known() const { return known_; }

 private:
  std::string names_;
  mutable std::vector<std::string> known_;
  std::function<void(const NamedRow&)> take_;
};

}  // namespace moesaic::bench
