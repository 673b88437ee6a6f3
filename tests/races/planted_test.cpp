// SPDX-License-Identifier: Apache-2.0
// Races that are planted are found, each time: without this, silence would prove nothing.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <vector>

#include "races/races_fixture.h"

namespace {
std::atomic<int> reports = 0;
}  // namespace

extern "C" {

void __tsan_on_report(void*) {
  ++reports;
}
/// LibTorch, which is not compiled for ThreadSanitizer, synchronises in ways that it does not see,
/// and at the end locks what is gone.
const char* __tsan_default_suppressions() {
  return "called_from_lib:libtorch_cpu.so\ncalled_from_lib:libgomp.so.1\n";
}
const char* __tsan_default_options() {
  return "report_mutex_bugs=0";
}

}  // extern "C"

namespace moesaic {

int testing::reported_races() {
  return reports;
}

namespace {

using testing::run_in_threads;

constexpr int kStatusOfRaces = 66;  // ThreadSanitizer's
constexpr size_t kSharedBytes = 1024;

/// Neighbours read in the phase that writes; `distance` apart.
struct RacyNeighbours {
  int32_t* to;
  int distance;

  template <class Block>
  void operator()(Block& block) const {
    auto* const shared = block.template shared<int32_t>(0);
    block.each([&](int t) { shared[t] = t; });
    block.each([&](int t) { shared[t] += shared[(t + distance) % block.threads()]; });
    block.each([&](int t) { to[t] = shared[t]; });
  }
};

/// The same with a barrier between reading and writing.
struct CarefulNeighbours {
  int32_t* to;

  template <class Block>
  void operator()(Block& block) const {
    auto* const shared = block.template shared<int32_t>(0);
    typename Block::template Local<int32_t> next(block);
    block.each([&](int t) { shared[t] = t; });
    block.each([&](int t) { next[t] = shared[(t + 1) % block.threads()]; });
    block.each([&](int t) { shared[t] += next[t]; });
    block.each([&](int t) { to[t] = shared[t]; });
  }
};

/// Blocks write one word.
struct RacyBlocks {
  int32_t* to;

  template <class Block>
  void operator()(Block& block) const {
    block.each([&](int t) {
      if (t == 0) *to = static_cast<int32_t>(block.index());
    });
  }
};

/// Blocks add to one word by atomics, and in doing so wait for nothing.
struct CarefulBlocks {
  int32_t* to;

  template <class Block>
  void operator()(Block& block) const {
    block.each([&](int) { block.atomic_add(to, 1); });
  }
};

/// A thread asks for the value of another, which a GPU would not give it.
struct ForeignLocal {
  template <class Block>
  void operator()(Block& block) const {
    typename Block::template Local<int32_t> own(block);
    block.each([&](int t) { own[t == 0 ? 1 : t] = t; });
  }
};

class PlantedRaces : public testing::RacesTest {
 protected:
  void SetUp() override {
    RacesTest::SetUp();
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // runs the program again
  }
  std::vector<int32_t> words_ = std::vector<int32_t>(64);
};
using PlantedRacesDeathTest = PlantedRaces;

TEST_F(PlantedRacesDeathTest, NeighboursWithinAPhaseAreFound) {
  for (const int distance : {1, 32}) {
    EXPECT_EXIT(
        {
          run_in_threads(RacyNeighbours{words_.data(), distance}, 1, 64, kSharedBytes);
          std::exit(0);
        },
        ::testing::ExitedWithCode(kStatusOfRaces), "ThreadSanitizer: data race");
  }
}

TEST_F(PlantedRacesDeathTest, BlocksOnOneWordAreFound) {
  for (const int64_t blocks : {2, 5}) {
    EXPECT_EXIT(
        {
          run_in_threads(RacyBlocks{words_.data()}, blocks, 8, 0);
          std::exit(0);
        },
        ::testing::ExitedWithCode(kStatusOfRaces), "ThreadSanitizer: data race");
  }
}

TEST_F(PlantedRacesDeathTest, ValuesOfOtherThreadsAreFound) {
  EXPECT_EXIT(run_in_threads(ForeignLocal{}, 1, 64, 0), ::testing::KilledBySignal(SIGABRT), "");
}

TEST_F(PlantedRaces, BarriersAndAtomicsAreNoRaces) {
  run_in_threads(CarefulNeighbours{words_.data()}, 1, 64, kSharedBytes);
  for (int t = 0; t < 64; ++t) EXPECT_EQ(words_[t], t + (t + 1) % 64);
  words_[0] = 0;
  run_in_threads(CarefulBlocks{words_.data()}, 5, 64, 0);
  EXPECT_EQ(words_[0], 5 * 64);
}

}  // namespace
}  // namespace moesaic
