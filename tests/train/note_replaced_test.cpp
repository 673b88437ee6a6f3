// SPDX-License-Identifier: Apache-2.0
// Corrupt images are part of a run's state, and several processes count them together.
#include "moesaic/train/distributed_run.h"

#include <set>

#include "moesaic/train/gradient_phase.h"
#include "support/matchers.h"
#include "support/processes.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using test::run_processes;
using Indices = std::vector<int64_t>;

/// The images of `base`, some of which are corrupt.
class Damaged : public Dataset {
 public:
  Damaged(std::shared_ptr<const Dataset> base, std::set<int64_t> indices)
      : Dataset(base->info()), base_(std::move(base)), indices_(std::move(indices)) {}
  int64_t size() const override { return base_->size(); }
  int64_t label(int64_t index) const override { return base_->label(index); }
  void oriented_image(int64_t index, std::optional<bool>, uint8_t* out) const override {
    if (indices_.contains(index)) throw ImageError(fmt::format("{}.png: cut off", index));
    base_->image(index, out);
  }

 private:
  std::shared_ptr<const Dataset> base_;
  std::set<int64_t> indices_;
};

/// Two epochs of three steps with a checkpoint of each.
std::string damaged_recipe() {
  return std::string(R"({"name": "damaged", "seed": 5, "checkpoint_every": 1,
    "num_checkpoints": 100, "num_loader_threads": 0, "model": )") +
         kModel + R"(,
    "phases": [{"name": "train", "data": "three", "batch_size": 6, "steps": 6, "evaluate": false,
                "optimizer": {"name": "sgd", "lr": 0.1}, "augment": {"flip": true}}]})";
}

TrainerOptions options_with_damaged(const fs::path& out, const std::set<int64_t>& indices) {
  TrainerOptions options = options_for(out);
  options.open = [indices](std::string_view name, std::string_view split) {
    return std::make_shared<Damaged>(open_tiny(name, split),
                                     split == "train" ? indices : std::set<int64_t>());
  };
  return options;
}

std::string train_damaged(const fs::path& out, const std::vector<std::string>& changes = {}) {
  return test::said_by(
      [&] { Trainer(config_of(damaged_recipe(), changes), options_with_damaged(out, {7})).run(); });
}

Indices replaced_in(const fs::path& run, int step) {
  const fs::path state = run / fmt::format("checkpoints/step_{}/state.json", step);
  return nlohmann::json::parse(read_text(state)).at("phase_state").at("replaced").get<Indices>();
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(ReplacedImages, AreStateSoThatAResumedRunHasTheSameBits) {
  const TempDir folder;
  const std::string said = train_damaged(folder / "whole");
  EXPECT_EQ(count_of(said, "7.png: cut off; the next image replaces it"), 1);
  EXPECT_THAT(replaced_in(folder / "whole", 3), ElementsAre(7));
  copy_killed_after(folder / "whole", 3, folder / "resumed");
  // The image is sound again: what was replaced says the state alone.
  Trainer(config_of(damaged_recipe()), options_for(folder / "resumed", true)).run();
  expect_same_step(folder / "whole", folder / "resumed", 6);
}

TEST(ReplacedImages, AreTheSameInEveryStepForAnyThreads) {
  const TempDir folder;
  train_damaged(folder / "one");
  train_damaged(folder / "other", {"num_loader_threads=3"});
  for (int step = 1; step <= 6; ++step) expect_same_step(folder / "one", folder / "other", step);
}

TEST(ReplacedImages, AStateWithoutThemIsRead) {
  const nlohmann::ordered_json old = {{"epoch", 1}, {"batch", 2}, {"updates", 5}};
  const auto state = parse<GradientPhaseState>(Value::from_json(old, "state.json"));
  EXPECT_EQ(state.num_steps, 5);
  EXPECT_TRUE(state.replaced.empty());
}

TEST(ReplacedImages, OfAllProcessesAreInTheStateAndAreNamedOnce) {
  const TempDir folder;
  const RunConfig config = config_of(damaged_recipe());
  const std::string said = test::said_by([&] {
    run_processes(2, config.parallel, [&](const auto& processes) {
      TrainerOptions options = options_with_damaged(folder / "two", {7});
      options.processes = processes;
      Trainer(config, options).run();
    });
  });
  EXPECT_EQ(count_of(said, "7.png: cut off; the next image replaces it"), 1) << said;
  train_damaged(folder / "one");
  for (int step = 1; step <= 6; ++step) {
    EXPECT_EQ(replaced_in(folder / "one", step), replaced_in(folder / "two", step)) << step;
  }
}

/// A loader of 300 images, of which three may be corrupt.
Loader shared_loader() {
  return Loader(quarters("three", "train", 3, 300), {.batch_size = 300, .is_shared = true});
}

std::map<int64_t, std::string> without(const Indices& indices) {
  std::map<int64_t, std::string> replaced;
  for (const int64_t index : indices) replaced[index] = fmt::format("{}.png", index);
  return replaced;
}

TEST(SyncReplacedImages, TheFirstProcessThatMetAnImageWarnsAndAllReplaceIt) {
  ::testing::internal::CaptureStderr();
  run_processes(2, {}, [](const auto& processes) {
    Loader loader = shared_loader();
    Indices known;
    for (int step = 0; step < 2; ++step) {
      const auto replaced = without(processes->is_rank_zero() ? Indices{3} : Indices{3, 8});
      const int own = processes->is_rank_zero() ? 0 : 15 * step;
      EXPECT_EQ(sync_replaced_images(replaced, loader, processes.get(), known, own), 15 * step);
    }
    EXPECT_THAT(known, ElementsAre(3, 8));
    EXPECT_EQ(loader.next().replaced.size(), 2u);
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_of(said, "3.png; the next image replaces it"), 1) << said;
  EXPECT_EQ(count_of(said, "8.png; the next image replaces it"), 1) << said;
}

TEST(SyncReplacedImages, OneLimitHoldsForAllProcesses) {
  const auto note = [](const auto& processes) {
    Loader loader = shared_loader();
    Indices known;
    const auto replaced = without(processes->is_rank_zero() ? Indices{0, 1} : Indices{100, 101});
    sync_replaced_images(replaced, loader, processes.get(), known);
  };
  std::string error;
  test::said_by([&] { error = error_of([&] { run_processes(2, {}, note); }); });
  EXPECT_THAT(error, HasSubstr("4 of 300 images cannot be read, the last one being 101.png"));
}

}  // namespace
}  // namespace moesaic
