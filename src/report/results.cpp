// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/report/runs.h"

namespace moesaic {
namespace {

const Value* paper_value(const PaperValues& paper, const std::string& row,
                         const std::string& metric) {
  const auto of_row = paper.find(row);
  if (of_row == paper.end()) return nullptr;
  const auto found = of_row->second.find(metric);
  return found == of_row->second.end() ? nullptr : &found->second;
}

/// Returns the number as JSON, whole numbers without a fraction.
Json number(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (std::trunc(value) == value && std::abs(value) < kExact) return static_cast<int64_t>(value);
  return value;
}

Json number(const std::optional<double>& value) {
  return value ? number(*value) : Json();
}

std::string cell(const std::optional<double>& value, int digits) {
  if (!value) return "-";
  constexpr double kReadable = 1e15;
  if (!(std::abs(*value) < kReadable)) return fmt::format("{:.4g}", *value);
  return std::abs(*value) >= 1000.0 ? with_commas(std::llround(*value))
                                    : fmt::format("{:.{}f}", *value, digits);
}

std::string paper_cell(const PaperNumber& paper, int digits) {
  if (!paper.bound) return cell(paper.value, digits);
  const auto& [at_most, at_least] = *paper.bound;
  std::vector<std::string> sides;
  if (at_least) sides.push_back(">= " + cell(at_least, digits));
  if (at_most) sides.push_back("<= " + cell(at_most, digits));
  return fmt::format("{}", fmt::join(sides, ", "));
}

SeedValues values_in(const Value& by_seed) {
  SeedValues values;
  for (const Value::Member& run : by_seed.members("values")) {
    const auto seed = parsed_number<int64_t>(run.key);
    if (!seed)
      fail_usage("{}: a seed must be a whole number, found {}", run.value.where(),
                 printable(run.key));
    values[*seed] = run.value.as_double("value of a run");
  }
  if (values.empty())
    fail_usage("{}: 'values' must have at least one run, found none", by_seed.where());
  return values;
}

/// Returns the probability of |T| <= sqrt(degrees_of_freedom) tan(angle), which for whole degrees
/// of freedom is a finite sum: Abramowitz and Stegun, 26.7.3 and 26.7.4.
double t_probability(double angle, int64_t degrees_of_freedom) {
  const bool odd = degrees_of_freedom % 2 == 1;
  const double cosine = std::cos(angle);
  double sum = 0.0, term = odd ? cosine : 1.0;
  for (int64_t k = odd ? 1 : 0; k + 2 <= degrees_of_freedom; k += 2) {
    sum += term;
    term *= static_cast<double>(k + 1) / static_cast<double>(k + 2) * cosine * cosine;
  }
  sum *= std::sin(angle);
  return odd ? 2.0 / std::numbers::pi * (angle + sum) : sum;
}

}  // namespace

ConfigProblem config_problem(const MeasuredTable& table) {
  const auto is_whole = [&](const auto& row) { return row.size() == table.columns.size(); };
  if (table.values.size() == table.rows.size() && std::ranges::all_of(table.values, is_whole)) {
    return {};
  }
  return {
      fmt::format("values must be {} lists of {} numbers", table.rows.size(), table.columns.size()),
      {"values"}};
}

std::string first_run_name(const MeasuredRow& row) {
  if (row.runs.size() == 1) return row.name;
  return fmt::format("{} (run 1 of {})", row.name, row.runs.size());
}

const Metric* find_metric(const std::vector<Metric>& metrics, const std::string& name) {
  const auto found = std::ranges::find(metrics, name, &Metric::name);
  return found == metrics.end() ? nullptr : &*found;
}

const Metric& metric_of(const std::vector<MeasuredRow>& rows, const std::string& name) {
  for (const MeasuredRow& row : rows) {
    if (const Metric* found = find_metric(row.metrics, name)) return *found;
  }
  fail_usage("no row has the metric '{}'", name);
}

ConfigProblem paper_problem(const PaperValues& paper, const std::vector<std::string>& rows) {
  for (const auto& [row, metrics] : paper) {
    if (std::find(rows.begin(), rows.end(), row) == rows.end()) {
      return {fmt::format("paper has the unknown row '{}'; {}", row, did_you_mean(row, rows)),
              {"paper." + row + ":", "paper"}};
    }
    for (const auto& [metric, value] : metrics) {
      const bool list = value.kind() == Value::Kind::array;
      if (!list || value.items().size() == 1 || value.items().size() == 2) continue;
      return {fmt::format("paper: {} of '{}' must be a value or [value, std]", metric, row),
              {"paper." + row, "paper"}};
    }
  }
  return {};
}

ConfigProblem config_problem(const PaperTable& table) {
  if (table.rows.empty()) return {};  // 'rows' must not be empty, which its own rule says.
  const size_t columns = table.initial.empty() ? table.rows.front().size() : table.initial.size();
  for (const auto& row : table.rows) {
    if (row.size() != columns) {
      return {fmt::format("every list in 'rows' must have {} numbers, found a list of {}", columns,
                          row.size()),
              {"rows"}};
    }
  }
  return {};
}

PaperNumber paper_number(const PaperValues& paper, const std::string& row,
                         const std::string& metric) {
  const Value* value = paper_value(paper, row, metric);
  if (value == nullptr) return {};
  const std::string name = "paper." + row + "." + metric;
  if (value->is_object()) return {.bound = parse<PaperBound>(*value, name)};
  if (value->kind() != Value::Kind::array) return {value->as_double(name)};
  const Value::Array& items = value->items();
  PaperNumber number{items[0].as_double(name)};
  if (items.size() > 1) number.std = items[1].as_double(name);
  if (number.std && *number.std < 0.0) {
    fail_usage("{}: a standard deviation must not be negative, found {}", items[1].where(),
               *number.std);
  }
  return number;
}

std::optional<PaperTable> paper_table(const PaperValues& paper, const std::string& row,
                                      const std::string& metric) {
  const Value* value = paper_value(paper, row, metric);
  if (value == nullptr) return std::nullopt;
  return parse<PaperTable>(*value, "paper." + row + "." + metric);
}

ConfigProblem config_problem(const PaperBound& bound) {
  if (!bound.at_most && !bound.at_least) {
    return {"a bound needs at_most, at_least or both, found neither", {"at_most"}};
  }
  if (!bound.at_most || !bound.at_least || *bound.at_least <= *bound.at_most) return {};
  return {fmt::format("at_least must be at most at_most {1}, found {0}", *bound.at_least,
                      *bound.at_most),
          {"at_least"}};
}

std::string ResultRow::verdict() const {
  if (paper.bound) {
    const std::optional<double> half = Moments{measured, std, num_runs}.confidence_half_width();
    if (!half) return "open";
    const auto [at_most, at_least] = *paper.bound;
    const double low = measured - *half, high = measured + *half;
    if ((at_most && low > *at_most) || (at_least && high < *at_least)) return "not met";
    return (at_most && high > *at_most) || (at_least && low < *at_least) ? "open" : "met";
  }
  if (!paper.value || !paper.std) return "";
  return std::abs(measured - *paper.value) <= *paper.std ? "inside" : "outside";
}

ResultRow row_of_runs(const std::string& name, const std::string& metric, SeedValues values) {
  std::vector<double> numbers;
  for (const auto& [seed, value] : values) numbers.push_back(value);
  const auto [mean, std, n] = moments(numbers);
  ResultRow row{.name = name,
                .metric = metric,
                .measured = mean,
                .std = std,
                .num_runs = n,
                .values = std::move(values)};
  if (n == 1) return row;
  const auto [min, max] = std::ranges::minmax(numbers);
  row.min = min;
  row.max = max;
  row.median = median(std::move(numbers));
  return row;
}

const ResultRow* find_result(const std::vector<ResultRow>& rows, std::string_view name,
                             std::string_view metric) {
  for (const ResultRow& row : rows) {
    if (row.name == name && row.metric == metric) return &row;
  }
  return nullptr;
}

bool Results::has_paper_values() const {
  return std::any_of(rows.begin(), rows.end(),
                     [](const ResultRow& row) { return row.paper.value || row.paper.bound; });
}

Json to_json(const Results& results) {
  auto rows = Json::array();
  for (const ResultRow& row : results.rows) {
    const std::string verdict = row.verdict();
    // JSON has no such number, and a table with a missing value must not pass for a result.
    if (!std::isfinite(row.measured)) {
      fail("{}: {} of '{}' is {}", results.experiment, row.metric, row.name, row.measured);
    }
    Json values;
    for (const auto& [seed, value] : row.values) values[std::to_string(seed)] = number(value);
    rows.push_back({{"name", row.name},
                    {"metric", row.metric},
                    {"measured", number(row.measured)},
                    {"std", number(row.std)},
                    {"runs", row.num_runs},
                    {"min", number(row.min)},
                    {"median", number(row.median)},
                    {"max", number(row.max)},
                    {"values", std::move(values)},
                    {"paper", number(row.paper.value)},
                    {"paper_std", number(row.paper.std)},
                    {"paper_bound", row.paper.bound ? to_json(*row.paper.bound) : Json()},
                    {"verdict", verdict.empty() ? Json() : Json(verdict)}});
  }
  return {{"experiment", results.experiment},
          {"scale", results.scale},
          {"rows", std::move(rows)},
          {"seconds", number(results.seconds)}};
}

std::vector<ResultRow> measured_rows(const Value& results) {
  std::vector<ResultRow> rows;
  for (const Value& item : results.at("rows").items("rows")) {
    ResultRow row{.name = item.at("name").as_string("name"),
                  .metric = item.at("metric").as_string("metric")};
    if (row.metric == kFormerStepSeconds) row.metric = kStepSeconds;
    const Value* values = item.find("values");
    if (values != nullptr && !values->is_null()) {
      rows.push_back(row_of_runs(row.name, row.metric, values_in(*values)));
      continue;
    }
    row.measured = item.at("measured").as_double("measured");
    row.num_runs = item.at("runs").as_int("runs");
    if (!item.at("std").is_null() && row.num_runs > 1) {
      const auto n = static_cast<double>(row.num_runs);
      row.std = item.at("std").as_double("std") * std::sqrt(n / (n - 1.0));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

TextTable results_table(const Results& results) {
  const bool spread = std::any_of(results.rows.begin(), results.rows.end(),
                                  [](const ResultRow& row) { return row.median.has_value(); });
  std::vector<std::string> header = {"row", "metric", "n", "mean", "std"};
  if (spread) header.insert(header.end(), {"median", "min", "max"});
  const bool paper = results.has_paper_values();
  if (paper) header.insert(header.end(), {"paper", "paper std", "verdict"});
  TextTable table(header, 2);
  for (const ResultRow& row : results.rows) {
    const std::string verdict = row.verdict();
    const auto shown = [&](const std::optional<double>& value) { return cell(value, row.digits); };
    std::vector<std::string> cells = {row.name, row.metric, std::to_string(row.num_runs),
                                      shown(row.measured), shown(row.std)};
    if (spread) cells.insert(cells.end(), {shown(row.median), shown(row.min), shown(row.max)});
    if (paper) {
      cells.insert(cells.end(), {paper_cell(row.paper, row.digits), shown(row.paper.std),
                                 verdict.empty() ? "-" : verdict});
    }
    table.add(std::move(cells));
  }
  return table;
}

std::string results_note(const Results& results) {
  const auto any = [&](const auto& has) { return std::ranges::any_of(results.rows, has); };
  std::string text;
  if (any([](const ResultRow& row) { return row.std.has_value(); })) {
    text += " `std` is the standard deviation of a sample, divided by n - 1.";
  }
  if (results.has_paper_values()) {
    text +=
        " The verdict says whether the mean lies within the paper's spread; \"-\" where the paper "
        "has no value or no spread.";
  }
  if (any([](const ResultRow& row) { return row.paper.bound.has_value(); })) {
    text +=
        " A bound of the paper is met or not where the whole 95 % interval of the mean (Student's "
        "t) is on one side of it, else open, as with one run.";
  }
  return text;
}

std::vector<ResultRow> runs_results(const RunsConfig& config,
                                    const std::vector<MeasuredRow>& rows) {
  std::vector<ResultRow> results;
  for (const MeasuredRow& row : rows) {
    for (const Metric& metric : row.metrics) {
      SeedValues values;
      int64_t seed = row.first_seed;
      for (const RunRecord& run : row.runs) {
        const auto found = run.final.numbers.find(metric.name);
        if (found != run.final.numbers.end()) values[seed] = found->second;
        ++seed;
      }
      if (metric.is_table || values.empty()) continue;
      ResultRow result = row_of_runs(row.name, metric.name, std::move(values));
      result.digits = metric.digits;
      results.push_back(std::move(result));
    }
  }
  const auto add = [&](std::optional<ResultRow> made) {
    if (made) results.push_back(std::move(*made));
  };
  for (const FitConfig& fit : config.fits) add(fit_row(fit, rows, results));
  for (const RatioConfig& ratio : config.ratios) add(ratio_row(ratio, results));
  for (ResultRow& row : results) {
    row.paper = paper_number(config.paper, row.name, row.metric);
  }
  return results;
}

std::optional<double> Moments::standard_error() const {
  if (!std) return std::nullopt;
  return *std / std::sqrt(static_cast<double>(n));
}

std::optional<double> Moments::confidence_half_width() const {
  constexpr double kInside = 0.95;
  if (!std) return std::nullopt;
  return t_quantile(kInside, n - 1) * *standard_error();
}

Moments moments(const std::vector<double>& values) {
  Moments result{.n = std::ssize(values)};
  double sum = 0.0, squares = 0.0;
  for (const double value : values) sum += value;
  result.mean = sum / static_cast<double>(result.n);
  if (result.n == 1) return result;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.std = std::sqrt(squares / static_cast<double>(result.n - 1));
  return result;
}

double t_quantile(double probability, int64_t degrees_of_freedom) {
  constexpr int kHalvings = 60;  // As many as a double has digits, and some.
  double low = 0.0, high = std::numbers::pi / 2.0;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2.0;
    (t_probability(middle, degrees_of_freedom) < probability ? low : high) = middle;
  }
  return std::sqrt(static_cast<double>(degrees_of_freedom)) * std::tan(low);
}

TextTable::TextTable(std::vector<std::string> header, size_t left_columns)
    : widths_(header.size()), left_columns_(left_columns) {
  add(std::move(header));
}

void TextTable::add(std::vector<std::string> row) {
  if (row.size() != widths_.size()) {
    fail_usage("a table of {} columns got a row of {}", widths_.size(), row.size());
  }
  for (size_t i = 0; i < row.size(); ++i) widths_[i] = std::max(widths_[i], row[i].size());
  rows_.push_back(std::move(row));
}

std::string TextTable::line_of(const std::vector<std::string>& row,
                               std::string_view between) const {
  std::string line;
  for (size_t i = 0; i < row.size(); ++i) {
    line += fmt::format(fmt::runtime(i < left_columns_ ? "{}{:<{}}" : "{}{:>{}}"),
                        i == 0 ? "" : between, row[i], widths_[i]);
  }
  return line;
}

std::string TextTable::text() const {
  std::string text;
  for (const auto& row : rows_) {
    std::string line = line_of(row, "  ");
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string TextTable::markdown() const {
  std::string text, rule;
  for (size_t i = 0; i < widths_.size(); ++i) {
    rule += fmt::format("|{:-<{}}{}", "", widths_[i] + 1, i < left_columns_ ? '-' : ':');
  }
  for (std::vector<std::string> row : rows_) {
    for (std::string& cell : row) std::ranges::replace(cell, '|', '/');  // It would end the cell.
    text += "| " + line_of(row, " | ") + " |\n" + (text.empty() ? rule + "|\n" : "");
  }
  return text;
}

std::string with_commas(int64_t number) {
  const std::string sign = number < 0 ? "-" : "";
  return sign + fmt::format("{}", fmt::group_digits(number < 0 ? -number : number));
}

}  // namespace moesaic
