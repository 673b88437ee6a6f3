// SPDX-License-Identifier: Apache-2.0
// Plans of many processes from the command line: a recipe whose data are not here and whose network
// this machine could not train.

#include <regex>

#include "integration/processes.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

ProgramResult plan_processes(const Strings& changes, bool dry = true) {
  Strings arguments = {"train", recipe("vmoe/recipes/pretrain-imagenet21k.json"),
                       "precision=bfloat16"};
  if (dry) arguments.emplace_back("--dry-run");
  return run_program(joined(arguments, changes));
}

TEST(ScalingProgram, PlansManyProcesses) {
  const auto one = must_succeed(
      plan_processes({"phases.0.gradient_accumulation_steps=1", "--processes", "64", "--gpu",
                      "h200", "--expert-parallel", "8", "model.preset=vmoe/h14-every2",
                      "model.encoder.moe.num_experts=8"}));
  EXPECT_THAT(one.out, HasSubstr("processes     pretrain: 64 on h200 GPUs"));
  for (const char* line : {"images        64 of a batch of 4096", "\nmemory        of each: ",
                           "\n  gradients ", "\n  expert_gradients ", "\n  row_counts ",
                           "\n  rows ", "\n  metrics ", "\nstep ", "\nefficiency "}) {
    EXPECT_THAT(one.out, HasSubstr(line));
  }
  EXPECT_THAT(one.out, Not(HasSubstr("logits"))) << "each has whole groups of eight images";
  const auto together = plan_processes({"phases.0.gradient_accumulation_steps=1", "--processes",
                                        "64", "model.encoder.moe.num_group_images=0"});
  EXPECT_THAT(together.out, AllOf(HasSubstr("\n  logits "), HasSubstr("\n  logits_gradient ")));
  EXPECT_THAT(plan_processes({}).out, Not(HasSubstr("processes")));
}

TEST(ScalingProgram, ComparesNumbersOfProcesses) {
  const auto table =
      must_succeed(plan_processes({"--processes", "8,64", "phases.0.gradient_accumulation_steps=1",
                                   "activation_checkpointing=true"}));
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("efficiency   images/s"), HasSubstr("\n        8     512 "),
                    HasSubstr("\n       64      64 ")));
}

TEST(ScalingProgram, SaysWhatCannotBe) {
  const std::string whole = "phases.0.gradient_accumulation_steps=1";
  const auto refused = [](const Strings& changes, const std::string& text, bool dry = true) {
    const auto result = plan_processes(changes, dry);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr(text));
  };
  refused({"--processes", "48", whole},
          "a batch of 4096 images cannot be divided equally among 48 processes; choose a batch of "
          "4080 images, or 32 processes");
  refused({"--processes", "64"},
          " micro-batches cannot be divided equally among 64 processes; choose "
          "gradient_accumulation_steps=64");
  refused({"--processes", "64", whole, "--expert-parallel", "3"},
          "parallel.expert_parallel_size: 8 experts cannot be divided equally among 3 processes; "
          "choose 2");
  refused({"--processes", "4", whole, "--expert-parallel", "8"},
          "parallel.expert_parallel_size: 4 processes cannot be divided into groups of 8 that "
          "share experts; "
          "choose 4");
  refused({"--processes", "8", "--gpu", "H10", whole}, "unknown GPU 'H10'; did you mean 'h100'?");
  refused({"--processes", "0"}, "--processes: must be a whole number between 1 and ");
  refused({"--processes", "8,"}, "between 1 and 1048576, found ''");
  refused({"--processes", "8,4", whole, "parallel.num_replicas=4"},
          "parallel.num_replicas: 4 x 1 (parallel.expert_parallel_size) is 4 processes, but there "
          "are 8; choose "
          "parallel.num_replicas=8");
  refused({"--gpu", "h100"}, "--gpu is for a dry run; add --dry-run", false);
  refused({"--processes", "8"}, "--processes is for a dry run; add --dry-run", false);
  refused({"--expert-parallel", "8"}, "ask for 8; start as many by torchrun", false);
}

using SentBytes = ProgramTest;

TEST_F(SentBytes, AreThoseOfThePlan) {
  if (!have_fashion_mnist()) GTEST_SKIP() << "no Fashion-MNIST";
  write("run.json", R"({"name": "bytes", "checkpoint_every": 0, "evaluate_every": 0,
    "model": {"name": "vmoe", "image_size": 28, "channels": 1, "patch_size": 7,
      "hidden_size": 64, "num_classes": 10, "encoder": {"num_layers": 4, "num_heads": 4,
        "mlp_dim": 256, "moe": {"layers": [1, 3], "num_experts": 8,
          "router": {"num_selected_experts": 2}}}},
    "phases": [{"name": "train", "data": "fashion-mnist", "batch_size": 64, "evaluate": false,
      "optimizer": {"name": "sgd", "lr": 0.01}}]})");
  for (const std::string experts : {"1", "2"}) {
    SCOPED_TRACE(experts);
    const auto with = [&](Strings more) {
      more.insert(more.begin(), {"train", text_path("run.json"), "--expert-parallel", experts});
      return more;
    };
    const auto sent = [&](const std::string& steps) {
      const std::string out = text_path("run" + experts + "-" + steps);
      const auto results = run_in_processes(with({"phases.train.steps=" + steps, "--out", out}), 2);
      EXPECT_EQ(results[0].exit_code, 0) << results[0].err;
      return static_cast<double>(results[0].written_bytes + results[1].written_bytes);
    };
    const double few = sent("10"), many = sent("60");
    if (many == 0.0) GTEST_SKIP() << "this kernel does not count what a process writes";
    const double measured = (many - few) / 50 / 2;
    const auto plan =
        run_program(with({"phases.train.steps=60", "--dry-run", "--processes", "2,4"}));
    std::smatch found;  // Processes, images, memory and what is sent.
    const std::regex row(R"(\n +2 +32 +\S+ \S+ +([0-9.]+) MB)");
    ASSERT_TRUE(std::regex_search(plan.out, found, row)) << plan.out;
    const double planned = 1e6 * std::stod(found[1]);
    EXPECT_NEAR(measured / planned, 1.0, 0.05) << measured << " bytes a step of each process";
  }
}

}  // namespace
}  // namespace moesaic::testing
