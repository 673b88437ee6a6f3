// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <stdexcept>

#include "support/matchers.h"

namespace moesaic::bench {
namespace {

/// Names of the rows that a pattern selects, with the error of those that failed.
std::vector<std::string> rows_of(const std::string& pattern) {
  std::vector<std::string> found;
  const Report report(pattern, [&](const NamedRow& row) {
    found.push_back(row.name + (row.error.empty() ? "" : ": " + row.error));
  });
  report("cpu/one", [] { return Row{}; });
  report("cpu/two", []() -> Row { throw std::runtime_error("out of luck\nand a backtrace"); });
  report.section("gpu/", [&] {
    report("gpu/one", [] { return Row{}; });
    throw std::runtime_error("no memory");
  });
  report("gpu/two", [] { return Row{}; });
  return found;
}

TEST(BenchReport, ARowThatFailsIsALineAndTheOthersGoOn) {
  EXPECT_THAT(rows_of("*"), ElementsAre("cpu/one", "cpu/two: out of luck", "gpu/one",
                                        "gpu/: no memory", "gpu/two"));
}

TEST(BenchReport, MeasuresTheRowsThatAreAskedForOnly) {
  EXPECT_THAT(rows_of("gpu/*"), ElementsAre("gpu/one", "gpu/: no memory", "gpu/two"));
  EXPECT_THAT(rows_of("cpu/o??"), ElementsAre("cpu/one"));
  EXPECT_THAT(rows_of("gpu/two"), ElementsAre("gpu/: no memory", "gpu/two"));
  EXPECT_THAT(rows_of("cpu/three"), ElementsAre());
}

TEST(BenchReport, KnowsTheRowsThatItLeavesOut) {
  const Report report("cpu/three", [](const NamedRow&) {});
  report("cpu/one", [] { return Row{}; });
  report.section("gpu/", [&] { report("gpu/one", [] { return Row{}; }); });
  EXPECT_THAT(report.known(), ElementsAre("cpu/one", "gpu/*"));
}

}  // namespace
}  // namespace moesaic::bench
