// SPDX-License-Identifier: Apache-2.0
// Ratios of two rows' numbers, or of where two curves over a size, such as that of a training set,
// reach a level.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/report/results.h"

namespace moesaic {

/// A result that is made of others: a row's metric over that of another row; or, of rows that
/// differ in a size x, the x at which one curve reaches a level over the x at which another one
/// does.
struct RatioConfig {
  std::string name, metric, of, over, under;
  std::optional<double> reaches;
  std::vector<double> x;
};
template <class Fields>
void describe(Fields& f, RatioConfig& c) {
  f("name", c.name, "name of the row in the results", required, not_empty);
  f("metric", c.metric, "what its number is called", required, not_empty);
  f("of", c.of, "the metric that is divided, or that the curves show", required, not_empty);
  f("reaches", c.reaches, "the curves' level");
  f("x", c.x, "the curves' sizes, ascending, by which rows are named", not_empty, above(0.0));
  f("over", c.over, "one row, or a curve: its rows are named by this and x", required, not_empty);
  f("under", c.under, "the other one, which it is divided by", required, not_empty);
}
ConfigProblem config_problem(const RatioConfig& config);

/// Returns the name of the row of size `x` of a curve.
std::string row_of_size(const std::string& curve, double x);

/// Returns the x at which a curve first reaches `level`, between two sizes linear in log x; nothing
/// where it never does or where it is there at its first size already.
std::optional<double> crossing(const std::vector<double>& x, const std::vector<double>& y,
                               double level);

/// Returns the ratio of the curves' means, or nothing, with a warning, where one has no crossing.
std::optional<ResultRow> ratio_row(const RatioConfig& config, const std::vector<ResultRow>& rows);

}  // namespace moesaic
