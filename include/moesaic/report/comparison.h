// SPDX-License-Identifier: Apache-2.0
// Comparisons of rows in pairs of runs: rows that share seeds share what varies with them, such as
// data and initial values, so that their differences vary less than they do.
#pragma once

#include "moesaic/base/filesystem.h"
#include "moesaic/report/results.h"

namespace moesaic {

/// A metric of a row minus that of another one, over the runs of the seeds that both have.
struct RowComparison {
  std::string row, against, metric;
  Moments difference;
};

/// Returns the comparison of two rows of one metric, nothing where they share no seed.
std::optional<RowComparison> compared(const ResultRow& row, const ResultRow& against);

/// Compares each row with the first one that has its metric, where they share two seeds or more.
std::vector<RowComparison> compared_with_first(const std::vector<ResultRow>& rows);

/// Returns a table with n, mean, standard error and 95 % interval of each difference; "-" where one
/// run allows none.
TextTable comparison_table(const std::vector<RowComparison>& comparisons);

/// Returns the table with a sentence on what it shows, as a paragraph that begins with an empty
/// line; "" without comparisons.
std::string comparison_markdown(const std::vector<RowComparison>& comparisons);

/// Returns [{"row", "against", "metric", "n", "difference", "std", "standard_error", "low",
/// "high"}]; what one run does not allow is null.
Json to_json(const std::vector<RowComparison>& comparisons);

/// What `moesaic compare` compares.
struct CompareOptions {
  std::vector<std::string> files;  ///< One or two results.json.
  std::vector<std::string> rows;   ///< Names, or several of them between commas.
  std::string metric;              ///< Empty: all that both have.
};

/// Compares rows of a file with the first of them, or those of the second file with the same ones
/// of the first. Throws Error: usage for unknown rows and metrics, with the nearest, and for rows
/// that share no seed; failure for a file that cannot be read as results.
std::vector<RowComparison> compare_results(const CompareOptions& options);

}  // namespace moesaic
