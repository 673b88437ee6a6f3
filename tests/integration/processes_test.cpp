// SPDX-License-Identifier: Apache-2.0
// Several processes of the program, started as torchrun, mpirun and srun do.
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>

#include "data/png_bytes.h"
#include "integration/processes.h"

namespace moesaic::testing {
namespace {

using ProcessesTest = ProgramTest;
using Strings = std::vector<std::string>;
using nlohmann::json;

std::string recipe(const std::string& name) {
  return (std::filesystem::path(MOESAIC_TEST_SOURCE_DIR) / "models" / name).string();
}

std::string bytes_in(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<json> train_lines(const std::filesystem::path& run) {
  std::vector<json> lines;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    json parsed = json::parse(line);
    if (parsed["kind"] == "train") lines.push_back(std::move(parsed));
  }
  return lines;
}

void expect_same_losses(const std::filesystem::path& one, const std::filesystem::path& other) {
  const std::vector<json> a = train_lines(one), b = train_lines(other);
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i]["loss"], y = b[i]["loss"];
    EXPECT_EQ(a[i]["step"], b[i]["step"]);
    EXPECT_LE(std::abs(x - y), 1e-5 * std::abs(x)) << "step " << a[i]["step"];
  }
}

Strings clusters(const Strings& more) {
  Strings arguments = {"train", recipe("clusters/recipes/smoke.json"), "log_every=1",
                       "phases.train.stop=null"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// Expects the processes to end with one line in all.
void expect_one_line_of_all(const std::vector<ProgramResult>& results, const std::string& text,
                            int without = -1) {
  std::string all;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (static_cast<int>(rank) == without) continue;
    EXPECT_NE(results[rank].exit_code, 0) << rank;
    std::istringstream lines(results[rank].err);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("error") != std::string::npos) all += line + "\n";
    }
  }
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 1) << all;
  EXPECT_NE(all.find(text), std::string::npos) << all;
}

TEST_F(ProcessesTest, TwoAndFourMakeTheLossesOfOne) {
  const auto one = run_program(clusters({"--out", text_path("one")}));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const auto two = run_in_processes(clusters({"--out", text_path("two")}), 2);
  ASSERT_EQ(two[0].exit_code, 0) << two[0].err;
  EXPECT_EQ(two[1].err, "");
  expect_same_losses(path("one"), path("two"));
  const auto four =
      run_in_processes(clusters({"--out", text_path("four"), "--expert-parallel", "2"}), 4);
  ASSERT_EQ(four[0].exit_code, 0) << four[0].err;
  expect_same_losses(path("one"), path("four"));
}

TEST_F(ProcessesTest, ACheckpointOfSomeIsGoneOnWithByOthers) {
  const auto one = run_program(clusters({"--out", text_path("one")}));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const Strings arguments = clusters({"--out", text_path("run"), "--expert-parallel", "2"});
  std::filesystem::create_directories(path("run"));
  const auto four = run_in_processes(arguments, 4, {1, 15, path("run/checkpoints/step_3")});
  EXPECT_EQ(four[0].exit_code, 143) << four[0].err;
  EXPECT_EQ(four[3].exit_code, 143) << four[3].err;
  EXPECT_NE(four[0].err.find("saved; go on with"), std::string::npos) << four[0].err;
  const auto rest = run_program(clusters({"--out", text_path("run"), "--resume"}));
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  expect_same_losses(path("one"), path("run"));
}

TEST_F(ProcessesTest, AKilledProcessEndsAllAndIsNamed) {
  const Strings arguments = clusters({"--out", text_path("run"), "phases.train.steps=100000",
                                      "phases.train.batch_size=3000", "parallel.timeout=10"});
  const auto results = run_in_processes(arguments, 3, {1, 9, path("run/checkpoints/step_30")});
  EXPECT_EQ(results[1].exit_code, 137);
  expect_one_line_of_all(results, "process 1 (", 1);
  expect_one_line_of_all(results, "was lost near step ", 1);
}

/// A process whose training goes on until it is ended.
Strings endless(const std::string& out, int timeout = 10) {
  return clusters({"--out", out, "phases.train.steps=100000", "phases.train.batch_size=4000",
                   "parallel.timeout=" + std::to_string(timeout), "--expert-parallel", "2"});
}

/// Runs a script that starts two processes by $program with RANK in the environment.
ProgramResult run_script_of_two(const Strings& arguments, const std::string& script) {
  ProgramOptions options;
  options.environment = {"WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "OMP_NUM_THREADS=1",
                         "MASTER_PORT=" + std::to_string(free_port())};
  Strings command = {"/bin/sh", "-c", script, "sh", MOESAIC_PROGRAM};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_command(command, options);
}

/// Process `stopped` is stopped while it trains, and ended once the other is.
void expect_missed(const std::filesystem::path& run, int stopped) {
  SCOPED_TRACE(stopped);
  const std::string script = R"(
    RANK=$((1 - $RANK)) "$@" & other=$!; "$@" & stopped=$!
    while kill -0 $other && ! ls $FOLDER/checkpoints/step_?? >/dev/null 2>&1; do sleep 0.05; done
    kill -STOP $stopped; wait $other; code=$?; kill -KILL $stopped; exit $code)";
  const ProgramResult result =
      run_script_of_two(endless(run.string()), "export RANK=" + std::to_string(stopped) +
                                                   " FOLDER=" + run.string() + script);
  expect_one_line_of_all({result}, "process " + std::to_string(stopped) + " (");
  expect_one_line_of_all({result}, "was lost near step ");
}

TEST_F(ProcessesTest, AStoppedProcessEndsAllAndIsNamed) {
  expect_missed(path("a"), 1);
  expect_missed(path("b"), 0);  // Which serves the store.
}

TEST_F(ProcessesTest, APauseShorterThanTheTimeoutEndsNothing) {
  const Strings arguments =
      clusters({"--out", text_path("run"), "phases.train.steps=200", "--expert-parallel", "2"});
  const ProgramResult result = run_script_of_two(arguments, "FOLDER=" + text_path("run") + R"(
    RANK=0 "$@" & first=$!; RANK=1 "$@" & second=$!
    while kill -0 $first && ! ls $FOLDER/checkpoints/step_?? >/dev/null 2>&1; do sleep 0.05; done
    kill -STOP $second; sleep 15; kill -CONT $second; wait $second && wait $first)");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(train_lines(path("run")).size(), 200U);
}

// Of a network of 8 million numbers, whose sums depend on the number of threads.
TEST_F(ProcessesTest, WithOtherNumbersOfThreadsAreEqual) {
  if (!have_fashion_mnist()) GTEST_SKIP() << "needs Fashion-MNIST";
  Strings arguments = {"train", smoke_recipe(), "model.hidden_size=512",
                       "model.encoder.mlp_dim=2048", "phases.pretrain.steps=2",
                       "phases.finetune.steps=2", "phases.recover.steps=2", "--out",
                       text_path("run"), "--resume"};
  Fate fate{1};
  fate.environment = {"OMP_NUM_THREADS=2", "ATEN_CPU_CAPABILITY=default"};
  for (const char* steps : {"2", "3"}) {  // The second run goes on from what the first one saved.
    arguments.push_back("phases.recover.steps=" + std::string(steps));
    const auto results = run_in_processes(arguments, 2, fate);
    ASSERT_EQ(results[0].exit_code, 0) << results[0].err << results[1].err;
    ASSERT_EQ(results[1].exit_code, 0) << results[1].err;
  }
  const auto results = run_in_processes({"eval", text_path("run"), "--json"}, 2, fate);
  EXPECT_EQ(results[0].exit_code, 0) << results[0].err << results[1].err;
}

TEST_F(ProcessesTest, OneThatReadsSlowlyIsWaitedFor) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer wants to be the first library";
#endif
  Strings arguments =
      clusters({"--out", text_path("run"), "phases.train.steps=6", "parallel.timeout=5"});
  ASSERT_EQ(run_in_processes(arguments, 2)[0].exit_code, 0);
  arguments.insert(arguments.end(), {"phases.train.steps=9", "--resume"});
  Fate fate{1};
  const std::string folder = std::filesystem::canonical(path("run/checkpoints")).string();
  fate.environment = {std::string("LD_PRELOAD=") + MOESAIC_FAULTS_LIBRARY,
                      "MOESAIC_FAULT=open:3:slow:" + folder};
  const auto results = run_in_processes(arguments, 2, fate);
  ASSERT_EQ(results[0].exit_code, 0) << results[0].err << results[1].err;
  EXPECT_NE(results[0].err.find("going on from"), std::string::npos) << results[0].err;
}

TEST_F(ProcessesTest, FewDescriptorsAreRaisedOrNamed) {
  Fate fate{1};
  fate.shell = R"(ulimit -Sn 40; exec "$@")";
  const Strings arguments = clusters({"--out", text_path("a"), "parallel.init_timeout=10"});
  EXPECT_EQ(run_in_processes(arguments, 4, fate)[0].exit_code, 0);
  fate.shell = R"(ulimit -n 20; exec "$@")";
  const auto results = run_in_processes(arguments, 4, fate);
  EXPECT_EQ(results[1].exit_code, 1);
  EXPECT_NE(results[1].err.find("too many open files: 4 processes need"), std::string::npos)
      << results[1].err;
  EXPECT_NE(results[1].err.find("raise the limit (ulimit -n)"), std::string::npos);
}

TEST_F(ProcessesTest, AMeetingOnOneMachineIsOpenToNoOther) {
  const ProgramResult result =
      run_script_of_two(endless(text_path("run")), "FOLDER=" + text_path("run") + R"(
    RANK=0 "$@" & first=$!; RANK=1 "$@" & second=$!
    while kill -0 $first && ! ls $FOLDER/checkpoints/step_?? >/dev/null 2>&1; do sleep 0.05; done
    own=$(for p in $first $second; do readlink /proc/$p/fd/* | sed -n 's/socket:\[\(.*\)\]//p'; done)
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

TEST_F(ProcessesTest, AWarningOfOneIsWrittenOnceWithItsNumber) {
  for (int i = 0; i < 12; ++i) {
    const test::Bytes pixels(size_t{3} * 8 * 8, static_cast<uint8_t>(20 * i));
    const std::string name = (i % 2 ? "b/" : "a/") + std::to_string(i) + ".png";
    test::write_file(path("images/train/" + name), test::png_bytes(8, 8, pixels));
    test::write_file(path("images/val/" + name), test::png_bytes(8, 8, pixels));
  }
  write("images/train/a/6.png", "no image");
  write("run.json", R"({"name": "files", "checkpoint_every": 0,
      "model": {"name": "vmoe", "image_size": 8, "channels": 3, "patch_size": 4, "hidden_size": 8,
        "classes": 2, "encoder": {"num_layers": 1, "num_heads": 1, "mlp_dim": 8,
          "moe": {"layers": [0], "num_experts": 2, "router": {"num_selected_experts": 1}}}},
      "phases": [{"name": "train", "data": ")" +
                        text_path("images") + R"(", "preprocess": {"size": 8}, "batch_size": 4,
        "epochs": 1, "optimizer": {"name": "adamw", "lr": 1e-3}}]})");
  std::set<std::string> places;
  for (const char* seed : {"1", "2", "3", "4"}) {
    const auto two = run_in_processes({"train", text_path("run.json"), "--out", text_path(seed),
                                       "seed=" + std::string(seed)},
                                      2);
    ASSERT_EQ(two[0].exit_code, 0) << two[0].err;
    ASSERT_EQ(two[1].exit_code, 0) << two[1].err;
    const std::string all = two[0].err + two[1].err;
    EXPECT_EQ(count_in(all, "takes its place"), 1U) << all;
    if (!two[1].err.empty()) {
      EXPECT_EQ(two[1].err.find("warning: process 1: "), 0U) << two[1].err;
    }
    places.insert(two[1].err.empty() ? "0" : "1");
  }
  EXPECT_EQ(places.size(), 2U) << "the image was always in the part of one process";
}

TEST_F(ProcessesTest, AWarningOfAllIsWrittenOnceAndALogThatIsAskedForByEach) {
  const Strings arguments = clusters({"--out", text_path("run"), "evaluate_batch_size=41"});
  const auto two = run_in_processes(arguments, 2);
  EXPECT_NE(two[0].err.find("warning: "), std::string::npos) << two[0].err;
  EXPECT_EQ(two[1].err, "");
  Fate fate{1};
  fate.environment = {"MOESAIC_LOG=info"};
  fate.arguments = clusters({"--out", text_path("a")});
  const auto asked = run_in_processes(fate.arguments, 2, fate);
  EXPECT_EQ(asked[1].err.find("process 1: train, step "), 0U) << asked[1].err;
}

TEST_F(ProcessesTest, TorchrunLearnsWhyOneFailed) {
  Fate fate{1};
  fate.environment = {"TORCHELASTIC_ERROR_FILE=" + text_path("error.json")};
  fate.arguments = clusters({"--out", text_path("run"), "model.experts=9"});
  run_in_processes(clusters({"--out", text_path("run")}), 2, fate);
  const json error = json::parse(bytes_in(path("error.json")));
  EXPECT_NE(error["message"]["message"].get<std::string>().find("another recipe"),
            std::string::npos)
      << error;
  EXPECT_GT(std::stoll(error["message"]["extraInfo"]["timestamp"].get<std::string>()), 0);
}

TEST_F(ProcessesTest, OneThatIsKilledInASaveLosesNothing) {
  const auto one = run_program(clusters({"--out", text_path("one")}));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  Fate fate{1};  // Killed once files of a checkpoint behind step 3 are being written.
  fate.shell = R"("$@" & p=$!; cd )" + text_path("run") + R"(/checkpoints
                  while kill -0 $p 2>/dev/null; do
                    for folder in .step_*; do
                      if [ -e step_3 ] && [ -e "$folder" ]; then kill -KILL $p; fi
                    done
                  done; wait $p)";
  std::filesystem::create_directories(path("run/checkpoints"));
  const Strings arguments = clusters({"--out", text_path("run"), "--expert-parallel", "2"});
  const auto two = run_in_processes(arguments, 2, fate);
  expect_one_line_of_all(two, "process 1 (", 1);
  const auto rest = run_program(clusters({"--out", text_path("run"), "--resume"}));
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  expect_same_losses(path("one"), path("run"));
}

TEST_F(ProcessesTest, ADiskThatIsFullForOneEndsAllAndItSaysSo) {
  Fate fate{1};
  fate.shell = R"(trap '' XFSZ; ulimit -f 1; exec "$@")";
  const auto results = run_in_processes(endless(text_path("run")), 2, fate);
  expect_one_line_of_all(results, "process 1 of 2: ");
  expect_one_line_of_all(results, "File too large");
  for (const auto& entry : std::filesystem::directory_iterator(path("run/checkpoints"))) {
    EXPECT_EQ(entry.path().filename().string().front(), '.')
        << entry;  // Removed at the next start.
  }
}

TEST_F(ProcessesTest, EvaluateAndTimeOneNetworkOnly) {
  for (const char* seed : {"1", "2"}) {
    const auto run = run_program(clusters({"--out", text_path(seed), "seed=" + std::string(seed)}));
    ASSERT_EQ(run.exit_code, 0) << run.err;
  }
  for (const char* verb : {"eval", "bench"}) {
    Fate fate{1};
    fate.arguments = {verb, text_path("2")};
    expect_one_line_of_all(run_in_processes({verb, text_path("1")}, 2, fate),
                           "process 1 has another network than process 0");
  }
}

TEST_F(ProcessesTest, OneWithAnotherVerbOrStartIsNamed) {
  Fate fate{1};
  fate.arguments = {"eval", text_path("run")};
  expect_one_line_of_all(run_in_processes(clusters({"--out", text_path("run")}), 2, fate),
                         "process 1 has another verb than process 0 (eval and train)");
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
  EXPECT_NE(result.err.find("process 1 of 2: two processes say that they are number 1 of 2"),
            std::string::npos)
      << result.err;
}

TEST_F(ProcessesTest, ADryRunPlansThatManyOnce) {
  const Strings plan = {"train", recipe("vmoe/recipes/smoke.json"), "--dry-run"};
  const auto results = run_in_processes(plan, 2);
  ASSERT_EQ(results[0].exit_code, 0) << results[0].err;
  ASSERT_EQ(results[1].exit_code, 0) << results[1].err;
  EXPECT_EQ(results[1].out + results[1].err, "");
  Strings on_paper = plan;
  on_paper.insert(on_paper.end(), {"--processes", "2"});
  EXPECT_EQ(results[0].out, run_program(on_paper).out);
  EXPECT_NE(results[0].out.find(": 2 on h100 GPUs"), std::string::npos) << results[0].out;
}

TEST_F(ProcessesTest, EvaluateTogetherWhatOneDoes) {
  const auto run = run_program(clusters({"--out", text_path("run")}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
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
  EXPECT_NE(whole[0].err.find("choose a multiple of 2 images"), std::string::npos) << whole[0].err;
  EXPECT_EQ(whole[1].err, "");
}

TEST_F(ProcessesTest, PartsOfACheckpointNeedAFolderThatAllShare) {
  const ProgramResult result =
      run_script_of_two(clusters({"--out", "run", "--expert-parallel", "2"}),
                        "cd " + text_path("") + R"( && mkdir -p a b
         (cd a && RANK=1 "$@") & first=$!; cd b && RANK=0 "$@"; code=$?; wait $first; exit $code)");
  expect_one_line_of_all({result}, "give --out on a file system that all share");
}

TEST_F(ProcessesTest, WhatIsWrongIsSaidOnce) {
  expect_one_line_of_all(run_in_processes(clusters({"--out", text_path("a")}), 3),
                         "3 processes cannot have equal parts of a batch of 4000 images");
  expect_one_line_of_all(
      run_in_processes(clusters({"--out", text_path("a"), "--expert-parallel", "2"}), 3),
      "2 processes cannot share the experts");
  expect_one_line_of_all(
      run_in_processes(
          clusters({"--out", text_path("a"), "model.experts=9", "--expert-parallel", "2"}), 2),
      "2 processes cannot have equal shares of 9 experts");
  expect_one_line_of_all(
      run_in_processes(
          clusters(
              {"--out", text_path("a"), "--expert-parallel", "2",
               R"(phases.train.on_entry={"prune": {"keep": 3, "criterion": "router-magnitude"}})"}),
          2),
      "2 processes cannot have equal shares of 3 experts");
  expect_one_line_of_all(
      run_in_processes(clusters({"--out", text_path("a"), "parallel.data=4"}), 2),
      "choose parallel.data=2");
  expect_one_line_of_all(
      run_in_processes({"data", "pack", "cifar10", "--shards", "2", "--out", text_path("a")}, 2),
      "data pack: this takes one process, and 2 were started");
  EXPECT_FALSE(std::filesystem::exists(path("a")));
}

TEST_F(ProcessesTest, WhatIsWrongInOneIsSaidByIt) {
  Fate fate{1};
  fate.arguments = {"train", text_path("not-there.json")};
  const auto results =
      run_in_processes(clusters({"--out", text_path("a"), "parallel.init_timeout=15"}), 2, fate);
  EXPECT_EQ(results[1].exit_code, 2);
  EXPECT_EQ(results[1].err.find("error: process 1 of 2: "), 0U) << results[1].err;
  EXPECT_NE(results[1].err.find("not-there.json"), std::string::npos) << results[1].err;
  EXPECT_NE(results[0].err.find("number 1 did not come within 15 seconds"), std::string::npos)
      << results[0].err;
}

TEST_F(ProcessesTest, OneThatSharesExpertsOtherwiseIsNamed) {
  Fate fate{1};
  fate.arguments = clusters({"--out", text_path("a"), "--expert-parallel", "2"});
  expect_one_line_of_all(run_in_processes(clusters({"--out", text_path("a")}), 2, fate),
                         "process 1 belongs to 2 processes that share experts by 2, process 0 to 2 "
                         "processes that share experts by 1");
}

TEST_F(ProcessesTest, AServerThatDoesNotAnswerEndsTheWait) {
  const HeldPort silent;
  ProgramOptions options;
  options.environment = {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                         "MASTER_PORT=" + std::to_string(silent.number())};
  expect_one_line_error(
      run_program(clusters({"--out", text_path("a"), "parallel.init_timeout=5"}), options), 1,
      "process 0 is not to be met there within 5 seconds");
}

TEST_F(ProcessesTest, ASignalEndsOneThatWaitsForTheOthers) {
  ProgramOptions options;
  options.environment = {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                         "MASTER_PORT=" + std::to_string(free_port())};
  options.interrupt_after_ms = 3000;         // It meets by then, or nearly.
  options.interrupt_when = MOESAIC_PROGRAM;  // Which is there.
  options.signal = 15;
  const auto result = run_program(clusters({"--out", text_path("a")}), options);
  EXPECT_EQ(result.exit_code, 143) << result.err;
}

TEST_F(ProcessesTest, TimeACheckpointTogether) {
  const auto trained = run_program(clusters({"--out", text_path("run")}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto results = run_in_processes(
      {"bench", text_path("run"), "--batch-sizes", "4", "--seconds", "0", "--json"}, 2);
  ASSERT_EQ(results[0].exit_code, 0) << results[0].err;
  ASSERT_EQ(results[1].exit_code, 0) << results[1].err;
  EXPECT_EQ(results[1].out, "");
  EXPECT_EQ(results[0].json()["processes"], 2) << results[0].out;
}

TEST_F(ProcessesTest, VariablesAndPortsAreChecked) {
  const Strings arguments = clusters({"--out", text_path("a")});
  expect_one_line_error(run_program(arguments, {.environment = {"RANK=0"}}), 2,
                        "RANK is set and WORLD_SIZE is not");
  expect_one_line_error(run_program(clusters({"--out", text_path("a"), "--expert-parallel", "2"})),
                        2, "one process was started");
  ProgramOptions options;
  options.environment = {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0"};
  expect_one_line_error(run_program(arguments, options), 2, "MASTER_ADDR is not set");
  // The first process of another machine speaks too, since process 0 may know its own name.
  options.environment = {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1",
                         "OMPI_COMM_WORLD_LOCAL_RANK=0"};
  expect_one_line_error(run_program(arguments, options), 2, "MASTER_ADDR is not set");
  options.environment.back() = "OMPI_COMM_WORLD_LOCAL_RANK=1";
  const auto follower = run_program(arguments, options);
  EXPECT_EQ(follower.exit_code, 2);
  EXPECT_EQ(follower.err, "");
  const HeldPort held;
  options.environment = {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                         "MASTER_PORT=" + std::to_string(held.number())};
  expect_one_line_error(run_program(arguments, options), 2, "the port is in use");
}

TEST_F(ProcessesTest, AnotherExperimentIsRefused) {
  const Strings arguments = {"reproduce", "clusters/figure3", "--scale", "quick",
                             "--out",     text_path("a"),     "runs=1"};
  Fate fate{1};
  fate.arguments = arguments;
  fate.arguments.back() = "runs=2";
  expect_one_line_of_all(run_in_processes(arguments, 2, fate),
                         "process 1 has another experiment than process 0");
  EXPECT_FALSE(std::filesystem::exists(path("a/runs.json")));
}

TEST_F(ProcessesTest, RunsOfAnExperimentAreSharedOut) {
  const auto arguments = [&](const std::string& out) {
    return Strings{"reproduce", "clusters/figure3", "--scale", "quick", "--json",
                   "--out",     text_path(out)};
  };
  const auto one = run_program(arguments("one"));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const auto two = run_in_processes(arguments("two"), 2);
  ASSERT_EQ(two[0].exit_code, 0) << two[0].err;
  ASSERT_EQ(two[1].exit_code, 0) << two[1].err;
  EXPECT_EQ(two[1].out, "");
  EXPECT_EQ(one.json()["rows"], two[0].json()["rows"]);
  EXPECT_FALSE(std::filesystem::exists(path("two/runs-1.json")));
}

/// torchrun of the environment that tools/setup.sh makes.
std::filesystem::path torchrun() {
  const char* const venv = std::getenv("MOESAIC_VENV");
  const char* const home = std::getenv("HOME");
  const std::filesystem::path base =
      venv != nullptr ? std::filesystem::path(venv)
                      : std::filesystem::path(home == nullptr ? "/" : home) / ".cache/moesaic/venv";
  return base / "bin/torchrun";
}

/// Runs two processes by torchrun; `before` is a part of their script, in which $$ stands for $.
ProgramResult by_torchrun(const Strings& arguments, const std::string& before) {
  Strings command = {torchrun().string(),
                     "--no-python",
                     "--nproc-per-node",
                     "2",
                     "--master-port",
                     std::to_string(free_port()),
                     "--max-restarts",
                     "2",
                     "/bin/sh",
                     "-c",
                     before + "exec \"$@\"",
                     "sh",
                     MOESAIC_PROGRAM};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_command(command);
}

/// Returns a script that sends a signal to process `rank` of the first attempt once the run has a
/// checkpoint.
std::string signal_at_checkpoint(const std::filesystem::path& run, int rank, const char* signal) {
  return "if [ $RANK = " + std::to_string(rank) +
         " ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then P=$$$$; (while ! ls " + run.string() +
         "/checkpoints/step_* >/dev/null 2>&1; do sleep 0.05; done; kill -" + signal +
         " $P) & fi; ";
}

TEST_F(ProcessesTest, TorchrunStartsThemAgainAfterAKill) {
  if (!std::filesystem::exists(torchrun())) GTEST_SKIP() << "no " << torchrun();
  const auto start = [&](const std::string& out, const std::string& before) {
    return by_torchrun(clusters({"phases.train.steps=60", "--resume", "--out", text_path(out)}),
                       before);
  };
  const auto undisturbed = start("whole", "");
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;
  // Process 1 dies once there is a checkpoint, and only in the first attempt.
  const auto restarted = start("killed", signal_at_checkpoint(path("killed"), 1, "KILL"));
  ASSERT_EQ(restarted.exit_code, 0) << restarted.err;
  EXPECT_NE(restarted.err.find("going on from"), std::string::npos) << restarted.err;
  const std::string file = "checkpoints/step_60/model.safetensors";
  EXPECT_TRUE(bytes_in(path("whole") / file) == bytes_in(path("killed") / file));
  EXPECT_FALSE(bytes_in(path("whole") / file).empty());
}

TEST_F(ProcessesTest, TorchrunEndsNoneBeforeItSaidWhatASignalSaved) {
  if (!std::filesystem::exists(torchrun())) GTEST_SKIP() << "no " << torchrun();
  const auto stopped =
      by_torchrun(endless(text_path("run")), signal_at_checkpoint(path("run"), 0, "TERM"));
  EXPECT_NE(stopped.exit_code, 0);
  EXPECT_NE(stopped.err.find("saved; go on with"), std::string::npos) << stopped.err;
}

}  // namespace
}  // namespace moesaic::testing
