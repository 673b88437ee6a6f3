// SPDX-License-Identifier: Apache-2.0
// Which of two checkpoints came first, as they themselves tell.

#include <fmt/format.h>

#include "base/support.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "support/matchers.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using PruneCheckpointOrder = test::InFolder;

/// Saves a checkpoint of a run that has come to a phase and a step.
void save_of_run(const fs::path& folder, const std::string& init, int64_t phase, int64_t step) {
  const auto model = small_vmoe(small_vmoe_config(), static_cast<uint64_t>(step));
  const nlohmann::ordered_json run = {
      {"name", init.empty() ? "all" : "second"}, {"seed", 1}, {"init", init}, {"phases", {1, 2}}};
  save_checkpoint(folder, {.config = {{"model", model->config()}, {"run", run}},
                           .state = {{"phase_index", phase}, {"step", step}},
                           .model = state_of(*model)});
}

std::string warnings_of_pruning(const fs::path& pretrained, const fs::path& finetuned,
                                const std::string& criterion = "router-norm-change") {
  const test::TempDir folder;
  return test::said_by([&] {
    prune_checkpoint({.finetuned = finetuned,
                      .pretrained = pretrained,
                      .out = folder / "out",
                      .prune = {.criterion = criterion, .keep = KeepSpec::count(2)}});
  });
}

TEST_F(PruneCheckpointOrder, IsWarnedOfWhereTheCheckpointsSayThatItIsReversed) {
  const fs::path first = folder / "first", last = folder / "last", other = folder / "other";
  save_of_run(first, "", 0, 60);
  save_of_run(last, "", 1, 100);
  save_of_run(other, first.string(), 0, 40);
  for (const auto& [before, after] : {std::pair(first, last), std::pair(first, other)}) {
    EXPECT_EQ(warnings_of_pruning(before, after), "");
    EXPECT_THAT(warnings_of_pruning(after, before),
                AllOf(HasSubstr("warning: prune: --pretrained " + after.string()),
                      HasSubstr("looks newer than --finetuned"), HasSubstr("swap the two")));
  }
}

TEST_F(PruneCheckpointOrder, NetworksWithEqualRoutersAreWarnedOfOnce) {
  const fs::path same = folder / "same";
  save_of_run(same, "", 0, 60);
  const std::string said = warnings_of_pruning(same, same);
  const std::string warning = "router-norm-change gives every expert 0, so the first ones are kept";
  const size_t place = said.find(warning);
  ASSERT_NE(place, said.npos) << said;
  EXPECT_EQ(said.find("block 1: " + warning, place + 1), said.npos) << said;
}

TEST_F(PruneCheckpointOrder, OfARecoveredNetworkAfterThePrunedOneIsRight) {
  const fs::path whole = folder / "whole", pruned = folder / "pruned",
                 recovered = folder / "recovered";
  save_of_run(whole, "", 0, 60);
  prune_checkpoint({.finetuned = whole,
                    .out = pruned,
                    .prune = {.criterion = "magnitude", .keep = KeepSpec::count(4)}});
  Checkpoint trained = load_checkpoint(pruned);  // Training forgets that it was pruned.
  trained.state = {{"step", 10}};
  save_checkpoint(recovered, trained);
  EXPECT_THAT(warnings_of_pruning(pruned, recovered), Not(HasSubstr("swap the two")));
  EXPECT_THAT(warnings_of_pruning(recovered, whole, "router-magnitude"),
              HasSubstr("experts; swap the two if their order is a mistake"))
      << "a criterion that looks at one network does not use the other";
  EXPECT_THAT(test::usage_of([&] { warnings_of_pruning(recovered, whole); }),
              HasSubstr(fmt::format("prune: --pretrained {} has 4 experts in block 1, --finetuned "
                                    "{} has 6; a pretrained network has at least as many; swap "
                                    "the two?",
                                    recovered.string(), whole.string())));
}

TEST_F(PruneCheckpointOrder, MayHaveAPrunedNetworkFirstThatHasAllExpertsOfTheOther) {
  const auto save_kept = [&](const char* name, const std::vector<int64_t>& kept) {
    VMoEConfig config = small_vmoe_config();
    if (!kept.empty()) config.encoder.moe.kept_experts = {{"1", kept}, {"3", kept}};
    const auto model = small_vmoe(config, folder.names().size() + 1);
    save_checkpoint(folder / name,
                    {.config = {{"model", model->config()}}, .model = state_of(*model)});
    return folder / name;
  };
  const fs::path four = save_kept("four", {0, 2, 3, 5}), three = save_kept("three", {0, 2, 5}),
                 others = save_kept("others", {0, 1, 2, 5});
  for (const char* criterion : {"router-norm-change", "neuron-magnitude-change"}) {
    EXPECT_EQ(warnings_of_pruning(four, three, criterion), "");
    EXPECT_THAT(test::usage_of([&] { warnings_of_pruning(four, others, criterion); }),
                AllOf(HasSubstr("lacks expert 1 in block 1"), HasSubstr("is not pruned")));
  }
}

TEST_F(PruneCheckpointOrder, OfTwoRunsOfOneRecipeIsNotToldByTheirSteps) {
  save_of_run(folder / "once", "pruned/a", 0, 60);
  save_of_run(folder / "again", "pruned/b", 0, 40);
  EXPECT_EQ(warnings_of_pruning(folder / "once", folder / "again"), "");
}

TEST(FindPretrained, IsTheLastPhaseOnOtherDataElseTheLastThatTrainedElseTheStart) {
  const test::TempDir folder;
  using Json = nlohmann::ordered_json;
  const auto phase = [](const char* name, const char* data, int64_t steps) {
    return Json{{"name", name}, {"data", data}, {"steps", steps}};
  };
  const auto save_run = [&](std::vector<Json> phases, const std::string& init) {
    const fs::path run = folder / ("run" + std::to_string(folder.names().size()));
    fs::create_directories(run / "checkpoints");
    const auto model = small_vmoe();
    for (size_t i = 0; i < phases.size(); ++i) {
      const Checkpoint checkpoint{
          .config = {{"model", model->config()}, {"run", {{"phases", phases}, {"init", init}}}},
          .state = {{"phase_index", i}, {"step", i}},
          .model = state_of(*model)};
      save_checkpoint(run / "checkpoints" / phases[i].at("name").get<std::string>(), checkpoint);
      save_checkpoint(run / "checkpoints" / ("step_" + std::to_string(i)), checkpoint);
    }
    return run;
  };
  const fs::path four = save_run({phase("pre", "all", 9), phase("fine", "some", 9),
                                  phase("prune", "some", 0), phase("recover", "some", 9)},
                                 "");
  EXPECT_EQ(find_pretrained(four), four / "checkpoints/pre");
  EXPECT_EQ(find_pretrained(four / "checkpoints/fine"), four / "checkpoints/pre");
  EXPECT_EQ(find_pretrained(four / "checkpoints/pre"), "");
  const fs::path same =
      save_run({phase("a", "all", 9), phase("b", "all", 9), phase("c", "all", 9)}, "");
  EXPECT_EQ(find_pretrained(same), same / "checkpoints/b");
  EXPECT_EQ(find_pretrained(save_run({phase("tune", "some", 9)}, four.string())), four);
  EXPECT_EQ(find_pretrained(save_run({phase("tune", "some", 9)}, "no/such/place")), "");
}

}  // namespace
}  // namespace moesaic
