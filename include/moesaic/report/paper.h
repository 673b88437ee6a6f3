// SPDX-License-Identifier: Apache-2.0
// What a paper prints for an experiment, to stand beside what was measured.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"

namespace moesaic {

/// By row and metric: a value, [value, std], or a table.
using PaperValues = std::map<std::string, std::map<std::string, Value>>;

/// A value that a paper prints.
struct PaperNumber {
  double value = 0.0;
  std::optional<double> std;
};
/// A table that a paper prints as an example; its rows and columns may be in another order.
struct PaperTable {
  std::vector<std::vector<double>> rows;
  std::vector<double> initial;  ///< Sums over the rows before training; empty if not printed.
};
template <class Fields>
void describe(Fields& f, PaperTable& c) {
  f("rows", c.rows, "numbers, a list for each row", required, not_empty);
  f("initial", c.initial, "sums over the rows before training");
}
ConfigProblem config_problem(const PaperTable& table);

/// Returns what is wrong with a paper's values for these rows.
ConfigProblem paper_problem(const PaperValues& paper, const std::vector<std::string>& rows);
/// Returns the paper's value for a row's metric, if it prints one. Throws Error (usage) for another
/// kind of value.
std::optional<PaperNumber> paper_number(const PaperValues& paper, const std::string& row,
                                        const std::string& metric);
std::optional<PaperTable> paper_table(const PaperValues& paper, const std::string& row,
                                      const std::string& metric);

}  // namespace moesaic
