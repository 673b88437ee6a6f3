// SPDX-License-Identifier: Apache-2.0
// kill -9 at moments of chance over every smoke recipe, with a checkpoint after every step: what
// was saved is whole, and --resume ends with the bits of a run that nothing happened to.
// MOESAIC_KILLS says how many, 20 by default.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>

#include "integration/program.h"
#include "moesaic/base/file.h"
#include "moesaic/checkpoint/store.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

/// A run that nothing happens to.
struct WholeRun {
  std::string model, metrics;  ///< Bytes of its last network and of its metrics.jsonl.
  int milliseconds = 0;        ///< From its config.json to the last file that it wrote.
};

Strings smoke_recipes() {
  Strings recipes;
  for (const auto& family : fs::directory_iterator(fs::path(MOESAIC_TEST_SOURCE_DIR) / "models")) {
    if (!fs::is_directory(family.path() / "recipes")) continue;
    for (const auto& entry : fs::directory_iterator(family.path() / "recipes")) {
      if (entry.path().filename().string().starts_with("smoke")) {
        recipes.push_back(entry.path().string());
      }
    }
  }
  std::sort(recipes.begin(), recipes.end());
  return recipes;
}

int kills_wanted() {
  const char* wanted = std::getenv("MOESAIC_KILLS");
  return wanted == nullptr ? 20 : std::atoi(wanted);
}

std::string model_of(const fs::path& run) {
  const auto config = nlohmann::json::parse(read_text(run / "config.json"));
  const std::string last = config.at("phases").back().at("name");
  return read_text(run / "checkpoints" / last / "model.safetensors");
}

int milliseconds_of(const fs::path& run) {
  const auto begin = fs::last_write_time(run / "config.json");
  auto end = begin;
  for (const auto& entry : fs::recursive_directory_iterator(run)) {
    end = std::max(end, fs::last_write_time(entry.path()));
  }
  using std::chrono::milliseconds;
  return static_cast<int>(std::chrono::duration_cast<milliseconds>(end - begin).count());
}

class Kills : public ProgramTest {
 protected:
  ProgramResult train(const std::string& recipe, const fs::path& run, bool resume = false,
                      const ProgramOptions& options = {}) const {
    Strings arguments = {"train", recipe, "checkpoint_every=1", "--out", run.string()};
    if (resume) arguments.emplace_back("--resume");
    return run_program(arguments, options);
  }

  const WholeRun& whole(const std::string& recipe) {
    const auto [place, fresh] = whole_.try_emplace(recipe);
    if (fresh) {
      const fs::path run = path("whole");
      fs::remove_all(run);
      must_succeed(train(recipe, run));
      place->second = {model_of(run), read_text(run / "metrics.jsonl"), milliseconds_of(run)};
    }
    return place->second;
  }

  /// Starts runs until one is killed so long after it began, or sooner where it had ended by then.
  void kill_one(const std::string& recipe, const fs::path& run, int milliseconds) const {
    for (int tries = 0; tries < 30; ++tries, milliseconds /= 2) {
      fs::remove_all(run);
      const ProgramResult result = train(recipe, run, false,
                                         {.interrupt_after_ms = milliseconds,
                                          .interrupt_when = run / "config.json",
                                          .signal = SIGKILL});
      if (result.exit_code == 128 + SIGKILL) return;
      ASSERT_EQ(result.exit_code, 0) << result.err;
    }
    FAIL() << "no run was killed before its end";
  }

 private:
  std::map<std::string, WholeRun> whole_;
};

/// Expects that every checkpoint that has its name is whole. Returns whether there is one to go on
/// from.
bool saved_is_whole(const fs::path& run) {
  if (fs::exists(run / "best")) {
    EXPECT_NO_THROW(load_checkpoint(run / "best"));
  }
  if (!fs::exists(run / "checkpoints")) return false;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints")) {
    if (entry.path().filename().string().starts_with('.')) continue;
    EXPECT_NO_THROW(load_checkpoint(entry.path())) << entry.path();
  }
  return !step_checkpoints(run / "checkpoints").empty();
}

/// Metrics of a run that was killed before its first checkpoint are kept beside those of the next.
void expect_no_leftovers(const fs::path& run, bool began_again) {
  for (const auto& entry : fs::recursive_directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    if (began_again && name == "metrics.jsonl.old") continue;
    EXPECT_TRUE(name == ".lock" || !name.starts_with('.')) << entry.path();
    for (const char* end : {".part", ".old", ".damaged"}) {
      EXPECT_FALSE(name.ends_with(end)) << entry.path();
    }
  }
}

TEST_F(Kills, LoseNothingThatWasSavedAtAnyMomentOfAnySmokeRecipe) {
  if (!have_fashion_mnist()) GTEST_SKIP() << "needs Fashion-MNIST";
  const Strings recipes = smoke_recipes();
  ASSERT_GE(recipes.size(), 5U);
  std::mt19937 random(std::random_device{}());
  const fs::path run = path("run");
  const int count = kills_wanted();
  int went_on = 0;
  for (int i = 0; i < count && !HasFailure(); ++i) {
    const std::string& recipe = recipes[static_cast<size_t>(i) % recipes.size()];
    const WholeRun& wanted = whole(recipe);
    const int moment = std::uniform_int_distribution<int>(0, wanted.milliseconds)(random);
    SCOPED_TRACE(fmt::format("{}, killed after {} ms or less", recipe, moment));
    ASSERT_NO_FATAL_FAILURE(kill_one(recipe, run, moment));
    const bool goes_on = saved_is_whole(run);
    if (goes_on) {
      ++went_on;
      must_succeed({"inspect", run.string()});
    }
    must_succeed(train(recipe, run, true));
    EXPECT_TRUE(model_of(run) == wanted.model) << "another network";
    EXPECT_TRUE(read_text(run / "metrics.jsonl") == wanted.metrics) << "other metrics";
    expect_no_leftovers(run, !goes_on);
  }
  std::printf("%d kills, %d of them after the first checkpoint\n", count, went_on);
}

}  // namespace
}  // namespace moesaic::testing
