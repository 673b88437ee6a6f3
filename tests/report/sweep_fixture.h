// SPDX-License-Identifier: Apache-2.0
// Runs of the small sweep, with changes.
#pragma once

#include <fmt/ranges.h>

#include "moesaic/config/document.h"
#include "report/report_fixture.h"

namespace moesaic::sweep_test {

namespace fs = std::filesystem;
using report_test::error_of;
using report_test::open_tiny;
using report_test::TempDir;
using report_test::tiny_sweep;

inline PruneSweepConfig config_of(const std::vector<std::string>& changes = {}) {
  Document document = Document::from_text(tiny_sweep(), "tiny.json");
  for (const std::string& change : changes) document.set(change);
  return parse<PruneSweepConfig>(document.root());
}

inline ReproduceOptions options_for(const fs::path& out) {
  ReproduceOptions options;
  options.out = out;
  options.progress = false;
  options.open = open_tiny;
  return options;
}

inline SweepOutcome run(const fs::path& out, const std::vector<std::string>& changes = {}) {
  SweepOutcome outcome;
  EXPECT_TRUE(run_prune_sweep(config_of(changes), options_for(out), outcome));
  return outcome;
}

/// Returns everything but the speed, which no two runs share.
inline std::string numbers(const SweepOutcome& outcome) {
  std::string text;
  for (const SweepPhase& phase : outcome.phases) {
    text += fmt::format("{} {} {} {}\n", phase.name, phase.data, phase.images,
                        fmt::join(phase.accuracy, " "));
  }
  for (const SweepPoint& p : outcome.points) {
    text += fmt::format("{} {} {} {} {} {} {}\n", p.size, p.criterion, fmt::join(p.accuracy, " "),
                        fmt::join(p.accuracy_recovered, " "), p.parameters, fmt::join(p.flops, " "),
                        p.bytes);
  }
  return text;
}

/// Two layers of four experts, of which a token selects two.
inline constexpr const char* kTwoLayers = "train.model.encoder.moe.layers=[0, 1]";

class PruneSweepRun : public ::testing::Test {
 protected:
  TempDir temp;
  fs::path out = temp / "out", first = out / "seed5";
};

}  // namespace moesaic::sweep_test
