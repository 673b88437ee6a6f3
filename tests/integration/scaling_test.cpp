// SPDX-License-Identifier: Apache-2.0
// Plans of many processes from the command line: a recipe whose data are not here and whose network
// this machine could not train.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "integration/program.h"

namespace moesaic::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ProgramResult plan_processes(const std::vector<std::string>& changes, bool dry = true) {
  std::vector<std::string> arguments = {
      "train", MOESAIC_TEST_SOURCE_DIR "/models/vmoe/recipes/pretrain-imagenet21k.json",
      "precision=bfloat16"};
  if (dry) arguments.emplace_back("--dry-run");
  arguments.insert(arguments.end(), changes.begin(), changes.end());
  return run_program(arguments);
}

TEST(ScalingProgram, PlansManyProcesses) {
  const auto one = plan_processes({"phases.0.accumulate=1", "--processes", "64", "--gpu", "h200",
                                   "--expert-parallel", "8", "model.preset=vmoe/h14-every2",
                                   "model.encoder.moe.num_experts=8"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr("processes     pretrain: 64 on h200 GPUs"));
  for (const char* line : {"images        64 of a batch of 4096", "\nmemory        of each: ",
                           "\n  gradients ", "\n  expert_gradients ", "\n  row_counts ",
                           "\n  rows ", "\n  metrics ", "\nstep ", "\nefficiency "}) {
    EXPECT_THAT(one.out, HasSubstr(line));
  }
  EXPECT_THAT(one.out, Not(HasSubstr("logits"))) << "each has whole groups of eight images";
  const auto together = plan_processes(
      {"phases.0.accumulate=1", "--processes", "64", "model.encoder.moe.group_images=0"});
  EXPECT_THAT(together.out, AllOf(HasSubstr("\n  logits "), HasSubstr("\n  logits_gradient ")));
  EXPECT_THAT(plan_processes({}).out, Not(HasSubstr("processes")));
}

TEST(ScalingProgram, ComparesNumbersOfProcesses) {
  const auto table =
      plan_processes({"--processes", "8,64", "phases.0.accumulate=1", "recompute=true"});
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("efficiency   images/s"), HasSubstr("\n        8     512 "),
                    HasSubstr("\n       64      64 ")));
}

TEST(ScalingProgram, SaysWhatCannotBe) {
  const std::string whole = "phases.0.accumulate=1";
  const auto refused = [](const std::vector<std::string>& changes, const std::string& text,
                          bool dry = true) {
    const auto result = plan_processes(changes, dry);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr(text));
  };
  refused({"--processes", "48", whole}, "equal parts of a batch of 4096 images; choose 32");
  refused({"--processes", "64"}, "choose phases.pretrain.accumulate=64");
  refused({"--processes", "64", whole, "--expert-parallel", "3"},
          "3 processes cannot share the 8 experts of block 1 in equal parts; choose 2");
  refused({"--processes", "4", whole, "--expert-parallel", "8"},
          "4 processes cannot be parted into groups of 8 that share experts; choose 4");
  refused({"--processes", "8", "--gpu", "H10", whole}, "unknown GPU 'H10'; did you mean 'h100'?");
  refused({"--processes", "0"}, "--processes: must be a whole number between 1 and ");
  refused({"--processes", "8,"}, "between 1 and 1048576, found ''");
  refused({"--gpu", "h100"}, "--gpu plans processes on paper; add --dry-run", false);
  refused({"--processes", "8"}, "--processes plans processes on paper; add --dry-run", false);
  refused({"--expert-parallel", "8"}, "ask for 8; start them by torchrun", false);
}

}  // namespace
}  // namespace moesaic::testing
