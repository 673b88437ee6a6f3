// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/step_profiler.h"

#include <set>

#include "support/matchers.h"
#include "support/warnings.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

TEST(ProfiledSteps, AreTwoWholeNumbersOfAtLeastOne) {
  const ProfiledSteps steps = parse_profiled_steps("100:5");
  EXPECT_EQ(steps.from, 100);
  EXPECT_EQ(steps.count, 5);
  for (const char* text : {"", "5", "5:", ":5", "1:2:3", "0:5", "5:0", "-1:5", "1.5:2", "a:b",
                           " 1:2", "99999999999999999999:1"}) {
    EXPECT_THAT(error_of([&] { parse_profiled_steps(text); }),
                AllOf(StartsWith("usage: --profile: "), HasSubstr("is not FROM:STEPS")))
        << text;
  }
}

/// Trains with a profiler; returns its trace, null where there is none.
Json trace_of(const ProfiledSteps& steps) {
  const TempDir folder;
  StepProfiler profiler(steps, folder / "trace.json");
  TrainerOptions options = options_for(folder / "run");
  options.on_step = [&](Model&, int64_t made) {
    profiler.before_step(made);
    return true;
  };
  profiler.finish(Trainer(config_of(four_phases()), options).run().steps);
  const fs::path file = folder / "trace.json";
  return fs::exists(file) ? Json::parse(read_text(file)) : Json();
}

int64_t count_events(const Json& trace, const std::string& name) {
  int64_t count = 0;
  for (const Json& event : trace.at("traceEvents")) count += event.value("name", "") == name;
  return count;
}

TEST(StepProfiler, NamesOperatorsOfTheStepsAlone) {
  const Json one = trace_of({.from = 2, .count = 1}), two = trace_of({.from = 2, .count = 2});
  std::set<std::string> own;
  for (const Json& event : one.at("traceEvents")) {
    const std::string name = event.value("name", "");
    if (name.starts_with("moesaic::")) own.insert(name);
  }
  ASSERT_FALSE(own.empty());
  for (const std::string& name : own) {
    EXPECT_EQ(2 * count_events(one, name), count_events(two, name)) << name;
  }
}

TEST(StepProfiler, WritesWhatTheEndCutsShort) {
  const Json trace = trace_of({.from = 12, .count = 1000});
  EXPECT_GT(trace.at("traceEvents").size(), 0U);
}

TEST(StepProfiler, WarnsWhereTheRunEndsBefore) {
  const testing::Warnings warnings;
  EXPECT_TRUE(trace_of({.from = 13, .count = 1}).is_null());
  EXPECT_THAT(warnings.texts(), Contains(HasSubstr("the run ended before step 13")));
}

TEST(StepProfiler, SaysWhereItCannotWrite) {
  const TempDir folder;
  StepProfiler profiler({}, folder / "none/trace.json");
  profiler.before_step(0);
  EXPECT_THAT(error_of([&] { profiler.before_step(1); }), HasSubstr("cannot write the trace"));
}

}  // namespace
}  // namespace moesaic
