// SPDX-License-Identifier: Apache-2.0
// A sweep that processes share, which are threads here.
#include <array>
#include <atomic>
#include <csignal>
#include <mutex>
#include <set>

#include "moesaic/base/signal.h"
#include "report/sweep_fixture.h"
#include "support/processes.h"

namespace moesaic::sweep_test {
namespace {

TEST_F(SweepRuns, ProcessesShareItsNetworks) {
  const std::vector<std::string> changes = {"num_runs=2"};
  std::string expected;
  // In a thread too: rounding depends on how many threads a process has.
  test::run_processes(1, {}, [&](const auto&) { expected = run(temp / "one", changes).numbers(); });
  Outcome outcome;
  std::mutex mutex;
  std::array<std::set<std::string>, 3> opened;
  test::run_processes(3, {}, [&](const auto& processes) {
    ReproduceOptions options = options_for(out);
    options.processes = processes;
    options.open = [&, rank = processes->rank()](std::string_view name, std::string_view split) {
      const std::lock_guard lock(mutex);
      opened.at(static_cast<size_t>(rank)).insert(std::string(split));
      return open_tiny(name, split);
    };
    Outcome own;
    EXPECT_TRUE(measure_rows(config_of(changes), options, own.rows));
    EXPECT_EQ(own.rows.empty(), !processes->is_rank_zero()) << "process 0 has the results";
    if (processes->is_rank_zero()) outcome = std::move(own);
  });
  EXPECT_EQ(outcome.numbers(), expected);
  for (const auto& splits : opened) EXPECT_TRUE(splits.contains("train"));
}

/// A signal that comes to one process while it trains.
TEST_F(SweepRuns, ASignalToOneProcessStopsAllAndTheyGoOn) {
  const std::string expected = run(temp / "one").numbers();
  const auto run_shared = [&](bool stops) {
    Outcome outcome;
    std::array<bool, 2> complete = {};
    const StopSignal stop;
    std::atomic<bool> raised = !stops;  // A second signal would end the program.
    test::run_processes(2, {}, [&](const auto& processes) {
      ReproduceOptions options = options_for(out);
      options.processes = processes;
      if (processes->is_rank_zero()) options.stop = &stop;
      options.open = [&, is_rank_zero = processes->is_rank_zero()](std::string_view name,
                                                                   std::string_view split) {
        if (is_rank_zero && split == "train" && !raised.exchange(true)) std::raise(SIGINT);
        return open_tiny(name, split);
      };
      Outcome own;
      complete.at(static_cast<size_t>(processes->rank())) =
          measure_rows(config_of(), options, own.rows);
      if (processes->is_rank_zero()) outcome = std::move(own);
    });
    EXPECT_EQ(complete[0], !stops);
    EXPECT_EQ(complete[1], !stops);
    return outcome.numbers();
  };
  run_shared(true);
  EXPECT_EQ(run_shared(false), expected);
}

}  // namespace
}  // namespace moesaic::sweep_test
