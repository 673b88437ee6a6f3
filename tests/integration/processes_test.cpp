// SPDX-License-Identifier: Apache-2.0
// Several processes of the program, started as torchrun, mpirun and srun do.
#include <set>

#include "data/png_bytes.h"
#include "integration/processes.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

using ProcessesTest = ProgramTest;
using nlohmann::json;

TEST_F(ProcessesTest, TwoAndFourMakeTheLossesOfOne) {
  const auto one = must_succeed(clusters({"--out", text_path("one")}));
  const auto two = run_in_processes(clusters({"--out", text_path("two")}), 2);
  ASSERT_EQ(two[0].exit_code, 0) << two[0].err;
  EXPECT_THAT(two[0].err, HasSubstr("training on 2 processes\n"));
  EXPECT_THAT(one.err, Not(HasSubstr("training on")));
  EXPECT_EQ(two[1].err, "");
  expect_same_losses(path("one"), path("two"));
  const auto four =
      run_in_processes(clusters({"--out", text_path("four"), "--expert-parallel", "2"}), 4);
  ASSERT_EQ(four[0].exit_code, 0) << four[0].err;
  expect_same_losses(path("one"), path("four"));
}

TEST_F(ProcessesTest, ACheckpointOfSomeIsGoneOnWithByOthers) {
  must_succeed(clusters({"--out", text_path("one")}));
  const Strings arguments = clusters({"--out", text_path("run"), "--expert-parallel", "2"});
  std::filesystem::create_directories(path("run"));
  const auto four = run_in_processes(arguments, 4, {1, 15, path("run/checkpoints/step_3")});
  EXPECT_EQ(four[0].exit_code, 143) << four[0].err;
  EXPECT_EQ(four[3].exit_code, 143) << four[3].err;
  EXPECT_THAT(four[0].err, HasSubstr("saved; resume with"));
  must_succeed(clusters({"--out", text_path("run"), "--resume"}));
  expect_same_losses(path("one"), path("run"));
}

// Of a network of 8 million numbers, whose sums depend on the number of threads: what processes
// compare at a start and at a resume must not depend on that. Trained networks may.
TEST_F(ProcessesTest, OfOtherNumbersOfThreadsStartAndResumeTogether) {
  if (!have_fashion_mnist()) GTEST_SKIP() << "needs Fashion-MNIST";
  Strings arguments = {"train",
                       smoke_recipe(),
                       "model.hidden_size=512",
                       "model.encoder.mlp_dim=2048",
                       "--out",
                       text_path("run"),
                       "--resume"};
  for (const std::string phase : {"pretrain", "finetune", "prune", "recover"}) {
    arguments.push_back("phases." + phase + ".evaluate=false");
    if (phase != "prune") arguments.push_back("phases." + phase + ".steps=2");
  }
  const Fate fate{.rank = 1, .environment = {"OMP_NUM_THREADS=2", "ATEN_CPU_CAPABILITY=default"}};
  all_must_succeed(run_in_processes(arguments, 2, fate));  // Starts.
  all_must_succeed(run_in_processes(arguments, 2, fate));  // Reads the finished run.
}

TEST_F(ProcessesTest, AMeetingOnOneMachineIsOpenToNoOther) {
  const ProgramResult result =
      run_script_of_two(endless(text_path("run")), "FOLDER=" + text_path("run") + R"(
    RANK=0 "$@" & first=$!; RANK=1 "$@" & second=$!
    while kill -0 $first && ! ls $FOLDER/checkpoints/step_?? >/dev/null 2>&1; do sleep 0.05; done
    own=$(for p in $first $second; do readlink /proc/$p/fd/* | sed -n 's/socket:\[\(.*\)\]/\1/p'; done)
    for inode in $own; do
      cat /proc/$first/net/tcp /proc/$first/net/tcp6 |
        awk -v inode=$inode '$10 == inode && $4 == "0A" { print $2 }'
    done; kill -TERM $first; wait $first; wait $second; exit 0)");
  std::istringstream addresses(result.out);
  int count = 0;
  for (std::string line; std::getline(addresses, line);) {
    if (line.size() != 13 || line[8] != ':') continue;
    ++count;
    EXPECT_EQ(line.substr(0, 8), "0100007F");
  }
  EXPECT_GE(count, 3) << result.out << result.err;  // The store, and a group of each process.
}

size_t count_in(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// Twelve images of two classes to train on, and the same to test.
void write_images(const std::filesystem::path& folder) {
  for (int i = 0; i < 12; ++i) {
    const test::Bytes pixels(size_t{3} * 8 * 8, static_cast<uint8_t>(20 * i));
    const std::string name = (i % 2 ? "b/" : "a/") + std::to_string(i) + ".png";
    for (const char* split : {"train", "val"}) {
      test::write_file(folder / split / name, test::png_bytes(8, 8, pixels));
    }
  }
}

constexpr const char* kSmall = R"({"name": "vmoe", "image_size": 8, "channels": 3, "patch_size": 4,
    "hidden_size": 8, "num_classes": 2, "encoder": {"num_layers": 1, "num_heads": 1, "mlp_dim": 8,
      "moe": {"layers": [0], "num_experts": 2, "router": {"num_selected_experts": 1}}}})";

/// Settings of a phase on these images.
std::string phase_on(const std::filesystem::path& images) {
  return R"("data": ")" + images.string() + R"(", "preprocess": {"size": 8}, "batch_size": 4,
      "optimizer": {"name": "adamw", "lr": 1e-3})";
}

TEST_F(ProcessesTest, AWarningOfOneIsWrittenOnceWithItsNumber) {
  write_images(path("images"));
  write("images/train/a/6.png", "no image");
  write("run.json", R"({"name": "files", "checkpoint_every": 0, "model": )" + std::string(kSmall) +
                        R"(, "phases": [{"name": "train", )" + phase_on(path("images")) +
                        R"(, "epochs": 1}]})");
  std::set<std::string> places;
  for (const char* seed : {"1", "2", "3", "4"}) {
    const auto two = all_must_succeed(run_in_processes(
        {"train", text_path("run.json"), "--out", text_path(seed), "seed=" + std::string(seed)},
        2));
    const std::string all = two[0].err + two[1].err;
    EXPECT_EQ(count_in(all, "replaces it"), 1U) << all;
    if (!two[1].err.empty()) {
      EXPECT_THAT(two[1].err, StartsWith("warning: process 1: "));
    }
    places.insert(two[1].err.empty() ? "0" : "1");
  }
  EXPECT_EQ(places.size(), 2U) << "the image was always in the part of one process";
}

TEST_F(ProcessesTest, AWarningOfAllIsWrittenOnceAndALogThatIsAskedForByEach) {
  const Strings arguments = clusters({"--out", text_path("run"), "evaluate_batch_size=41"});
  const auto two = run_in_processes(arguments, 2);
  EXPECT_THAT(two[0].err, HasSubstr("warning: "));
  EXPECT_EQ(two[1].err, "");
  Fate fate{1};
  fate.environment = {"MOESAIC_LOG=info"};
  fate.arguments = clusters({"--out", text_path("a")});
  const auto asked = run_in_processes(fate.arguments, 2, fate);
  EXPECT_THAT(asked[1].err, StartsWith("process 1: train, step "));
}

TEST_F(ProcessesTest, EvaluateAndTimeOneNetworkOnly) {
  for (const char* seed : {"1", "2"}) {
    must_succeed(clusters({"--out", text_path(seed), "seed=" + std::string(seed)}));
  }
  for (const char* verb : {"eval", "bench"}) {
    const Fate fate{.rank = 1, .arguments = {verb, text_path("2")}};
    expect_one_line_of_all(run_in_processes({verb, text_path("1")}, 2, fate),
                           "process 1 has another network than process 0");
  }
}

TEST_F(ProcessesTest, OneWithAnotherVerbOrStartIsNamed) {
  Fate fate{1};
  fate.arguments = {"eval", text_path("run")};
  expect_one_line_of_all(run_in_processes(clusters({"--out", text_path("run")}), 2, fate),
                         "process 1 has another subcommand than process 0 (eval and train)");
  fate.arguments = clusters({"--out", text_path("run"), "--resume"});
  expect_one_line_of_all(run_in_processes(clusters({"--out", text_path("run")}), 2, fate),
                         "process 1 has another start than process 0 (--resume and no --resume)");
}

TEST_F(ProcessesTest, TwoOfOneNumberAreRefused) {
  const ProgramResult result =
      run_script_of_two(clusters({"--out", text_path("run"), "phases.train.steps=60"}),
                        R"(RANK=0 "$@" & first=$!; RANK=1 "$@" & second=$!; RANK=1 "$@"
                           third=$?; wait $second; second=$?; wait $first || exit 99
                           [ $((second * third)) = 0 ] && exit $((second + third)); exit 98)");
  EXPECT_EQ(result.exit_code, 2) << result.err;  // Of the one that came later.
  EXPECT_THAT(result.err, HasSubstr("process 1 of 2: two processes have rank 1 of 2"));
}

TEST_F(ProcessesTest, ADryRunPlansThatManyOnce) {
  const Strings plan = {"train", recipe("vmoe/recipes/smoke.json"), "--dry-run"};
  const auto results = all_must_succeed(run_in_processes(plan, 2));
  EXPECT_EQ(results[1].out + results[1].err, "");
  EXPECT_EQ(results[0].out, run_program(joined(plan, {"--processes", "2"})).out);
  EXPECT_THAT(results[0].out, HasSubstr(": 2 on h100 GPUs"));
}

TEST_F(ProcessesTest, EvaluateTogetherWhatOneDoes) {
  must_succeed(clusters({"--out", text_path("run")}));
  const Strings arguments = {"eval", text_path("run"), "--json", "--batch-size", "40"};
  json one = run_program(arguments).json();
  const auto two = run_in_processes(arguments, 2);
  EXPECT_EQ(two[1].out, "");
  json together = two[0].json();
  // Products of other numbers of rows may round otherwise.
  for (const char* real : {"loss", "calibration_error"}) {
    EXPECT_NEAR(one.at(real), together.at(real), 1e-6) << real;
  }
  for (json* result : {&one, &together}) {
    for (const char* name : {"loss", "calibration_error", "images_per_second"}) result->erase(name);
  }
  EXPECT_EQ(one, together);
  const auto whole = run_in_processes({"eval", text_path("run"), "--batch-size", "41"}, 2);
  EXPECT_THAT(whole[0].err, HasSubstr("choose a multiple of 2 images"));
  EXPECT_EQ(whole[1].err, "");
}

TEST_F(ProcessesTest, PartsOfACheckpointNeedAFolderThatAllShare) {
  const ProgramResult result =
      run_script_of_two(clusters({"--out", "run", "--expert-parallel", "2"}),
                        "cd " + text_path("") + R"( && mkdir -p a b
         (cd a && RANK=1 "$@") & first=$!; cd b && RANK=0 "$@"; code=$?; wait $first; exit $code)");
  expect_one_line_of_all({result}, "give --out on a file system that all processes share");
}

TEST_F(ProcessesTest, WhatIsWrongIsSaidOnce) {
  const auto refuse = [&](int count, const Strings& settings, const std::string& text) {
    expect_one_line_of_all(
        run_in_processes(clusters(joined({"--out", text_path("a")}, settings)), count), text);
  };
  refuse(3, {}, "a batch of 4000 images cannot be divided equally among 3 processes");
  refuse(3, {"--expert-parallel", "2"},
         "3 processes cannot be divided into groups of 2 that share experts; choose 1");
  refuse(2, {"model.num_experts=9", "--expert-parallel", "2"},
         "9 experts cannot be divided equally among 2 processes");
  refuse(2,
         {"--expert-parallel", "2",
          R"(phases.train.on_entry={"prune": {"keep": 3, "criterion": "router-magnitude"}})"},
         "3 experts cannot be divided equally among 2 processes");
  refuse(2, {"parallel.num_replicas=4"}, "choose parallel.num_replicas=2");
  expect_one_line_of_all(
      run_in_processes({"data", "pack", "cifar10", "--shards", "2", "--out", text_path("a")}, 2),
      "data pack runs in one process, but 2 were started; start one");
  EXPECT_FALSE(std::filesystem::exists(path("a")));
}

TEST_F(ProcessesTest, WhatIsWrongInOneIsSaidByIt) {
  const Fate fate{.rank = 1, .arguments = {"train", text_path("not-there.json")}};
  const auto results =
      run_in_processes(clusters({"--out", text_path("a"), "parallel.init_timeout=15"}), 2, fate);
  EXPECT_EQ(results[1].exit_code, 2);
  EXPECT_THAT(results[1].err, StartsWith("error: process 1 of 2: "));
  EXPECT_THAT(results[1].err, HasSubstr("not-there.json"));
  EXPECT_THAT(results[0].err, HasSubstr("number 1 did not connect within 15 seconds"));
}

TEST_F(ProcessesTest, OneThatSharesExpertsOtherwiseIsNamed) {
  const Fate fate{.rank = 1,
                  .arguments = clusters({"--out", text_path("a"), "--expert-parallel", "2"})};
  expect_one_line_of_all(
      run_in_processes(clusters({"--out", text_path("a")}), 2, fate),
      "process 1 is one of 2 processes with parallel.expert_parallel_size=2, process 0 of 2 "
      "processes with parallel.expert_parallel_size=1; start all by one command");
}

TEST_F(ProcessesTest, TimeACheckpointTogether) {
  must_succeed(clusters({"--out", text_path("run")}));
  const auto results = all_must_succeed(run_in_processes(
      {"bench", text_path("run"), "--batch-sizes", "4", "--seconds", "0", "--json"}, 2));
  EXPECT_EQ(results[1].out, "");
  EXPECT_EQ(results[0].json()["processes"], 2) << results[0].out;
}

TEST_F(ProcessesTest, VariablesAndPortsAreChecked) {
  const Strings arguments = clusters({"--out", text_path("a")});
  expect_usage_error(arguments, "RANK is set and WORLD_SIZE is not", {.environment = {"RANK=0"}});
  expect_usage_error(clusters({"--out", text_path("a"), "--expert-parallel", "2"}),
                     "one process was started");
  ProgramOptions options;
  options.environment = {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0"};
  expect_usage_error(arguments, "MASTER_ADDR is not set", options);
  // The first process of another machine speaks too, since process 0 may know its own name.
  options.environment = {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1",
                         "OMPI_COMM_WORLD_LOCAL_RANK=0"};
  expect_usage_error(arguments, "MASTER_ADDR is not set", options);
  options.environment.back() = "OMPI_COMM_WORLD_LOCAL_RANK=1";
  const auto follower = run_program(arguments, options);
  EXPECT_EQ(follower.exit_code, 2);
  EXPECT_EQ(follower.err, "");
  const HeldPort held;
  options.environment = {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                         "MASTER_PORT=" + std::to_string(held.number())};
  expect_usage_error(arguments, "the port is in use", options);
}

TEST_F(ProcessesTest, AnotherExperimentIsRefused) {
  const Strings arguments = {"reproduce", "clusters/figure3", "--scale",   "quick",
                             "--out",     text_path("a"),     "num_runs=1"};
  Fate fate{1};
  fate.arguments = arguments;
  fate.arguments.back() = "num_runs=2";
  expect_one_line_of_all(run_in_processes(arguments, 2, fate),
                         "process 1 has another experiment than process 0");
  EXPECT_FALSE(std::filesystem::exists(path("a/runs.json")));
}

TEST_F(ProcessesTest, RunsOfAnExperimentAreSharedOut) {
  const auto arguments = [&](const std::string& out) {
    return Strings{"reproduce", "clusters/figure3", "--scale", "quick", "--json",
                   "--out",     text_path(out)};
  };
  const auto one = must_succeed(arguments("one"));
  const auto two = all_must_succeed(run_in_processes(arguments("two"), 2));
  EXPECT_EQ(two[1].out, "");
  EXPECT_EQ(one.json()["rows"], two[0].json()["rows"]);
  EXPECT_FALSE(std::filesystem::exists(path("two/runs-1.json")));
}

// What is timed at the end of a sweep, process 0 times alone: the others have ended by then.
TEST_F(ProcessesTest, ASignalToTheTimingOfASweepEndsProcess0Alone) {
  write_images(path("images"));
  const std::string data = phase_on(path("images"));
  write("sweep.json", R"({"name": "small", "kind": "runs", "description": "a test", "num_runs": 1,
      "train": {"name": "run", "checkpoint_every": 0, "num_loader_threads": 0, "model": )" +
                          std::string(kSmall) + R"(, "phases": [
        {"name": "pretrain", )" +
                          data + R"(, "steps": 2},
        {"name": "finetune", )" +
                          data + R"(, "steps": 2}]},
      "keep": [1], "criteria": ["router-norm-change"],
      "recover": {"name": "recover", )" +
                          data + R"(, "steps": 1},
      "export": {"num_experts": 1, "criterion": "router-norm-change"}})");
  const auto arguments = [&](const std::string& rounds) {
    return joined({"reproduce", text_path("sweep.json"), "throughput.batch_size=4"},
                  {"throughput.num_rounds=" + rounds, "--out", text_path("out")});
  };
  // The exported network, which it times too, is the last file before.
  const auto stopped =
      run_in_processes(arguments("1000000000"), 2, {0, 15, path("out/model.ts.pt")});
  EXPECT_EQ(stopped[0].exit_code, 143) << stopped[0].err;
  EXPECT_EQ(stopped[1].exit_code, 0) << stopped[1].err;
  EXPECT_FALSE(std::filesystem::exists(path("out/results.json")));
  const std::string runs = bytes_in(path("out/runs.json"));
  all_must_succeed(run_in_processes(arguments("1"), 2));
  EXPECT_EQ(bytes_in(path("out/runs.json")), runs) << "nothing is made again";
  EXPECT_TRUE(std::filesystem::exists(path("out/results.json")));
}

}  // namespace
}  // namespace moesaic::testing
