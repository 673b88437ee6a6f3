// SPDX-License-Identifier: Apache-2.0
// Runs of the small sweep, with changes.
#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "moesaic/config/document.h"
#include "report/report_fixture.h"

namespace moesaic::sweep_test {

namespace fs = std::filesystem;
using report_test::error_of;
using report_test::open_tiny;
using report_test::TempDir;
using report_test::tiny_sweep;

inline Experiment tiny_experiment(const std::vector<std::string>& changes = {}) {
  Document document = Document::from_text(tiny_sweep(), "tiny.json");
  for (const std::string& change : changes) document.set(change);
  return {
      .name = "tiny", .kind = "runs", .description = "Two quarters.", .config = document.root()};
}

inline RunsConfig config_of(const std::vector<std::string>& changes = {}) {
  return parse<RunsConfig>(tiny_experiment(changes).config);
}

inline ReproduceOptions options_for(const fs::path& out) {
  return {.out = out, .show_progress = false, .open = open_tiny};
}

/// What a sweep measured.
struct Outcome {
  std::vector<MeasuredRow> rows;

  /// The values of a metric in each run that has it.
  std::vector<double> all(const std::string& row, const std::string& metric) const {
    const auto found = std::find_if(rows.begin(), rows.end(),
                                    [&](const MeasuredRow& known) { return known.name == row; });
    std::vector<double> values;
    if (found == rows.end()) return values;
    for (const RunRecord& run : found->runs) {
      const auto number = run.final.numbers.find(metric);
      if (number != run.final.numbers.end()) values.push_back(number->second);
    }
    return values;
  }
  double at(const std::string& row, const std::string& metric) const {
    return all(row, metric).at(0);
  }
  /// The number of rows of networks.
  size_t networks() const {
    return static_cast<size_t>(std::count_if(rows.begin(), rows.end(), [](const MeasuredRow& row) {
      return row.name.find('/') != std::string::npos;
    }));
  }
  /// Everything but the speed, which no two runs share.
  std::string numbers() const {
    std::string text;
    for (const MeasuredRow& row : rows) {
      for (const RunRecord& run : row.runs) {
        for (const auto& [metric, value] : run.final.numbers) {
          const bool speed = metric == "images_per_second" || metric.find("time") < metric.size();
          if (!speed) text += fmt::format("{} {} {}\n", row.name, metric, value);
        }
      }
    }
    return text;
  }
};

inline Outcome run(const fs::path& out, const std::vector<std::string>& changes = {}) {
  Outcome outcome;
  EXPECT_TRUE(measure_rows(config_of(changes), options_for(out), outcome.rows));
  return outcome;
}

/// Two layers of four experts, of which a token selects two.
inline constexpr const char* kTwoLayers = "train.model.encoder.moe.layers=[0, 1]";

class SweepRuns : public ::testing::Test {
 protected:
  static std::string refusal(const fs::path& to, const std::vector<std::string>& changes) {
    return error_of([&] { run(to, changes); });
  }

  TempDir temp;
  fs::path out = temp / "out", first = out / "seed5";
};

}  // namespace moesaic::sweep_test
