// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/comparison.h"

#include <fmt/format.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/process.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/config/document.h"

namespace moesaic {
namespace {

struct ResultsFile {
  std::string path, experiment;  ///< `experiment` with its scale.
  std::vector<ResultRow> rows;
};

/// Returns the names of all rows, or the metrics of one, each once.
std::vector<std::string> names_in(const std::vector<ResultRow>& rows, const std::string& row = {}) {
  std::vector<std::string> names;
  for (const ResultRow& found : rows) {
    const std::string& name = row.empty() ? found.name : found.metric;
    if (!row.empty() && found.name != row) continue;
    if (std::ranges::count(names, name) == 0) names.push_back(name);
  }
  return names;
}

/// Throws Error (usage) for the recipe of a run and for an experiment.
void check_is_of_results(const Value& root, const std::string& file) {
  if (!root.is_object() || root.find("experiment") != nullptr) return;
  if (root.find("phases") != nullptr) {
    fail_usage(
        "compare: {}: a recipe, not results; compare reads results.json of moesaic reproduce, and "
        "moesaic train {} trains the recipe",
        file, shell_quoted(file));
  }
  if (root.find("kind") != nullptr) {
    fail_usage("compare: {}: an experiment, not its results; make them by: moesaic reproduce {}",
               file, shell_quoted(file));
  }
}

/// Reads results.json, or that of an experiment's folder.
ResultsFile read_results(const fs::path& given) {
  const fs::path path = fs::is_directory(status_of(given)) ? given / "results.json" : given;
  if (!path_exists(path) && nearest_sibling(path).empty()) {
    fail_usage("{}: no such file; moesaic reproduce writes results.json into its --out",
               path.string());
  }
  check_input_file(path);
  if (path.extension() == ".jsonl") {
    fail_usage("compare: {}: the log of a run, not results.json, which moesaic reproduce writes",
               path.string());
  }
  ResultsFile file{.path = path.string()};
  const Value root = read_stored(path, kMaxListBytes);
  check_is_of_results(root, file.path);
  with_errors_as_failures([&] {
    file.rows = measured_rows(root);
    file.experiment =
        fmt::format("'{}', scale {}", one_line(root.at("experiment").as_string("experiment")),
                    one_line(root.at("scale").as_string("scale")));
  });
  if (file.rows.empty()) {
    fail_usage(
        "{}: the file has no rows, since nothing was measured; give the results.json of a finished "
        "experiment",
        file.path);
  }
  if (std::ranges::all_of(file.rows, [](const ResultRow& row) { return row.values.empty(); })) {
    fail_usage(
        "{}: the file has no values of single runs; the command that made it writes them from "
        "runs.json",
        file.path);
  }
  return file;
}

/// Throws Error (usage) unless the file has the row and, if one is given, the row the metric.
void check_row(const ResultsFile& file, const std::string& row, const std::string& metric) {
  const std::vector<std::string> rows = names_in(file.rows);
  if (std::ranges::count(rows, row) == 0) {
    fail_usage("{}: unknown row {}; {}", file.path, printable(row), did_you_mean(row, rows));
  }
  const std::vector<std::string> metrics = names_in(file.rows, row);
  if (!metric.empty() && std::ranges::count(metrics, metric) == 0) {
    fail_usage("{}: row {} has no metric {}; {}", file.path, printable(row), printable(metric),
               did_you_mean(metric, metrics));
  }
}

/// Returns the names of rows; a name, misspelt or not, may itself have commas.
std::vector<std::string> row_names(const ResultsFile& file, const std::vector<std::string>& given) {
  const std::vector<std::string> known = names_in(file.rows);
  const auto is_known = [&](const std::string& name) {
    return std::ranges::count(known, name) > 0;
  };
  std::vector<std::string> names;
  for (const std::string& text : given) {
    std::vector<std::string> parts = split(text, ',');
    const bool is_list = std::ranges::any_of(parts, is_known);
    const bool has_comma = nearest(text, known).value_or("").find(',') != std::string::npos;
    if (is_known(text) || (!is_list && has_comma)) parts = {text};
    names.insert(names.end(), parts.begin(), parts.end());
  }
  return names;
}

std::string seeds_text(const ResultRow& row) {
  if (row.values.empty()) return "none";
  return fmt::format("{} to {}", row.values.begin()->first, row.values.rbegin()->first);
}

std::string significant(const std::optional<double>& number) {
  return number ? fmt::format("{:.4g}", *number) : "-";
}

/// Returns the ends of a difference's interval.
std::pair<std::optional<double>, std::optional<double>> interval(const Moments& difference) {
  const std::optional<double> half = difference.confidence_half_width();
  if (!half) return {};
  return {difference.mean - *half, difference.mean + *half};
}

}  // namespace

std::optional<RowComparison> compared(const ResultRow& row, const ResultRow& against) {
  std::vector<double> differences;
  for (const auto& [seed, value] : row.values) {
    const auto other = against.values.find(seed);
    if (other != against.values.end()) differences.push_back(value - other->second);
  }
  if (differences.empty()) return std::nullopt;
  return RowComparison{row.name, against.name, row.metric, moments(differences)};
}

std::vector<RowComparison> compared_with_first(const std::vector<ResultRow>& rows) {
  std::vector<RowComparison> comparisons;
  for (const ResultRow& row : rows) {
    const ResultRow& first = *std::ranges::find(rows, row.metric, &ResultRow::metric);
    if (&first == &row) continue;
    const auto comparison = compared(row, first);
    // A deviation of 0 is that of what does not depend on the seed, such as numbers of parameters.
    const bool varies = comparison && comparison->difference.std.value_or(0.0) > 0.0;
    if (varies) comparisons.push_back(*comparison);
  }
  return comparisons;
}

TextTable comparison_table(const std::vector<RowComparison>& comparisons) {
  TextTable table({"row", "against", "metric", "n", "difference", "std. error", "95 % interval"},
                  3);
  for (const auto& [row, against, metric, difference] : comparisons) {
    const auto [low, high] = interval(difference);
    table.add({escaped(row), escaped(against), escaped(metric), std::to_string(difference.n),
               significant(difference.mean), significant(difference.standard_error()),
               low ? significant(low) + " to " + significant(high) : "-"});
  }
  return table;
}

std::string comparison_markdown(const std::vector<RowComparison>& comparisons) {
  if (comparisons.empty()) return "";
  return "\nDifferences of rows in pairs of runs with the same seed: their mean over n pairs, its "
         "standard error, and its 95 % interval by Student's t with n - 1 degrees of freedom.\n\n" +
         comparison_table(comparisons).markdown();
}

Json to_json(const std::vector<RowComparison>& comparisons) {
  const auto json = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json();
  };
  auto list = Json::array();
  for (const auto& [row, against, metric, difference] : comparisons) {
    const auto [low, high] = interval(difference);
    list.push_back({{"row", row},
                    {"against", against},
                    {"metric", metric},
                    {"n", difference.n},
                    {"difference", difference.mean},
                    {"std", json(difference.std)},
                    {"standard_error", json(difference.standard_error())},
                    {"low", json(low)},
                    {"high", json(high)}});
  }
  return list;
}

std::vector<RowComparison> compare_results(const CompareOptions& options) {
  const bool within = options.files.size() == 1;
  const ResultsFile base = read_results(options.files.front());
  const ResultsFile other = within ? base : read_results(options.files.back());
  if (base.experiment != other.experiment) {
    log_warning("{} is of {}, {} of {}: equal seeds may not share what they vary", base.path,
                base.experiment, other.path, other.experiment);
  }
  const std::vector<std::string> names = row_names(base, options.rows);
  for (const std::string& name : names) {
    for (const ResultsFile* file : {&base, &other}) check_row(*file, name, options.metric);
  }
  if (within && names.size() < 2) {
    fail_usage("{}: one file needs two rows to compare: --rows ROW,ROW", base.path);
  }
  std::vector<RowComparison> comparisons;
  for (size_t i = within ? 1 : 0; i < names.size(); ++i) {
    const std::string& against = within ? names.front() : names[i];
    if (within && names[i] == against) {
      fail_usage("--rows: {} cannot be compared with itself; name two rows", printable(against));
    }
    std::string unshared = "no metric in common";
    const size_t before = comparisons.size();
    for (const ResultRow& row : other.rows) {
      const ResultRow* const reference = find_result(base.rows, against, row.metric);
      if (row.name != names[i] || reference == nullptr) continue;
      if (!options.metric.empty() && row.metric != options.metric) continue;
      if (auto comparison = compared(row, *reference)) {
        const int64_t most = std::max(row.num_runs, reference->num_runs);
        if (comparison->difference.n < most) {
          log_warning("{} of {}: {} of {} are compared, since the others share no seed", row.metric,
                      printable(row.name), comparison->difference.n, count_text(most, "run"));
        }
        if (!within) comparison->against = base.path;
        comparisons.push_back(std::move(*comparison));
      } else {
        unshared =
            fmt::format("no seeds in common: {} and {}", seeds_text(row), seeds_text(*reference));
      }
    }
    if (comparisons.size() > before) continue;
    fail_usage("{}: {} and {} have {}", other.path, printable(names[i]),
               within ? printable(against) : "that of " + base.path, unshared);
  }
  return comparisons;
}

}  // namespace moesaic
