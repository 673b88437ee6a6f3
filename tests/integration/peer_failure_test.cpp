// SPDX-License-Identifier: Apache-2.0
// Processes of the program of which one is killed, stopped, slow or fails.
#include <cstdlib>
#include <sstream>

#include "integration/processes.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

using PeerFailures = ProgramTest;
using nlohmann::json;

TEST_F(PeerFailures, AKilledProcessEndsAllAndIsNamed) {
  const Strings arguments = clusters({"--out", text_path("run"), "phases.train.steps=100000",
                                      "phases.train.batch_size=3000", "parallel.timeout=10"});
  const auto results = run_in_processes(arguments, 3, {1, 9, path("run/checkpoints/step_30")});
  EXPECT_EQ(results[1].exit_code, 137);
  expect_one_line_of_all(results, "process 1 (", 1);
  expect_one_line_of_all(results, "failed near step ", 1);
}

/// Process `stopped` is stopped while it trains, and ended once the other is.
void expect_missed(const std::filesystem::path& run, int stopped) {
  SCOPED_TRACE(stopped);
  const std::string script = R"(
    RANK=$((1 - $RANK)) "$@" & other=$!; "$@" & stopped=$!
    while kill -0 $other && ! ls $FOLDER/checkpoints/step_??? >/dev/null 2>&1; do sleep 0.05; done
    kill -STOP $stopped; wait $other; code=$?; kill -KILL $stopped; exit $code)";
  const ProgramResult result =
      run_script_of_two(endless(run.string()), "export RANK=" + std::to_string(stopped) +
                                                   " FOLDER=" + run.string() + script);
  expect_one_line_of_all({result}, "process " + std::to_string(stopped) + " (");
  expect_one_line_of_all({result}, "failed near step ");
}

TEST_F(PeerFailures, AStoppedProcessEndsAllAndIsNamed) {
  expect_missed(path("a"), 1);
  expect_missed(path("b"), 0);  // Which serves the store.
}

// The pause lasts until the other one's training has slept through a hundred looks at which threads
// beside it, which could miss the paused one, had been awake.
TEST_F(PeerFailures, APauseShorterThanTheTimeoutEndsNothing) {
  const Strings arguments = clusters({"--out", text_path("run"), "phases.train.steps=200",
                                      "--expert-parallel", "2", "parallel.timeout=600"});
  must_succeed(run_script_of_two(arguments, "FOLDER=" + text_path("run") + R"(
    RANK=0 "$@" & first=$!; RANK=1 "$@" & second=$!
    while kill -0 $first && ! ls $FOLDER/checkpoints/step_?? >/dev/null 2>&1; do sleep 0.05; done
    kill -STOP $second
    woken() { cat "$@" | awk '/^voluntary/ {n += $2} END {print n}'; }
    looks=0; trained=0; last=0
    while kill -0 $first && [ $looks -lt 100 ]; do
      sleep 0.05; trains=$(woken /proc/$first/status); all=$(woken /proc/$first/task/*/status)
      if [ $trains != $trained ]; then looks=0
      elif [ $all -gt $last ]; then looks=$((looks + 1)); fi
      trained=$trains; last=$all
    done
    [ ! -e $FOLDER/checkpoints/step_200 ] || exit 9
    kill -CONT $second; wait $second && wait $first)"));
  EXPECT_EQ(train_lines(path("run")).size(), 200U);
}

TEST_F(PeerFailures, OneThatReadsSlowlyIsWaitedFor) {
  SKIP_WITH_SANITIZER("AddressSanitizer wants to be the first library");
  Strings arguments =
      clusters({"--out", text_path("run"), "phases.train.steps=6", "parallel.timeout=5"});
  ASSERT_EQ(run_in_processes(arguments, 2)[0].exit_code, 0);
  for (const char* last : {"train", "step_6"}) {
    std::filesystem::remove_all(path("run/checkpoints") / last);
  }
  arguments.emplace_back("--resume");
  Fate fate{1};
  const std::string folder = std::filesystem::canonical(path("run/checkpoints")).string();
  fate.environment = {std::string("LD_PRELOAD=") + MOESAIC_FAULTS_LIBRARY,
                      "MOESAIC_FAULT=open:3:slow:" + folder};
  const auto results = run_in_processes(arguments, 2, fate);
  ASSERT_EQ(results[0].exit_code, 0) << results[0].err << results[1].err;
  EXPECT_THAT(results[0].err, HasSubstr("resuming from"));
}

TEST_F(PeerFailures, FewDescriptorsAreRaisedOrNamed) {
  Fate fate{1};
  fate.shell = R"(ulimit -Sn 40; exec "$@")";
  Strings arguments = clusters({"--out", text_path("a")});
  EXPECT_EQ(run_in_processes(arguments, 2, fate)[0].exit_code, 0);
  fate.shell = R"(ulimit -n 12; exec "$@")";
  arguments.emplace_back("parallel.init_timeout=5");
  const auto results = run_in_processes(arguments, 2, fate);
  EXPECT_EQ(results[1].exit_code, 1);
  EXPECT_THAT(results[1].err, HasSubstr("and this one may have 12"));
  EXPECT_THAT(results[1].err, HasSubstr("raise the limit (ulimit -n)"));
}

// Gloo's own thread would reach the limit, and other processes see a connection that is reset.
TEST_F(PeerFailures, FewDescriptorsForSixEndWithTheLimit) {
  Fate fate{5};
  fate.shell = R"(ulimit -n 48; exec "$@")";
  const auto results =
      run_in_processes(clusters({"--out", text_path("a"), "parallel.init_timeout=5"}), 6, fate);
  EXPECT_EQ(results[5].exit_code, 1);
  EXPECT_THAT(results[5].err, HasSubstr("and this one may have 48"));
  EXPECT_THAT(results[0].err, HasSubstr("number 5 did not connect"));
}

// Process 0 of 20 would have 144 open: 2 x 19 of two groups, 4 x 20 of the store's, and its own.
TEST_F(PeerFailures, DescriptorsOfTheStoreCountBeforeProcessesMeet) {
  const Strings command =
      joined({"/bin/sh", "-c", R"(ulimit -n 140; exec "$@")", "sh", MOESAIC_PROGRAM},
             clusters({"--out", text_path("a"), "phases.train.batch_size=100",
                       "parallel.init_timeout=5"}));
  expect_one_line_error(
      run_command(command, {.environment = {"RANK=0", "WORLD_SIZE=20", "MASTER_ADDR=127.0.0.1",
                                            "MASTER_PORT=" + std::to_string(free_port())}}),
      1, "and this one may have 140; raise the");
}

TEST_F(PeerFailures, OneThatIsKilledInASaveLosesNothing) {
  must_succeed(clusters({"--out", text_path("one")}));
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
  must_succeed(clusters({"--out", text_path("run"), "--resume"}));
  expect_same_losses(path("one"), path("run"));
}

// Process 0 waits for the part of the other, and no step of training would miss it.
TEST_F(PeerFailures, OneThatIsKilledInTheLastSaveIsMissedAtOnce) {
  Fate fate{1};
  fate.shell = R"("$@" & p=$!; cd )" + text_path("run") + R"(/checkpoints
                  while kill -0 $p 2>/dev/null; do
                    for folder in .train*; do [ -e "$folder" ] && kill -KILL $p; done
                  done; wait $p)";
  std::filesystem::create_directories(path("run/checkpoints"));
  const auto two = run_in_processes(clusters({"--out", text_path("run"), "checkpoint_every=0",
                                              "parallel.timeout=60", "--expert-parallel", "2"}),
                                    2, fate);
  expect_one_line_of_all(two, "process 1 (", 1);
  expect_one_line_of_all(two, " failed near ", 1);
}

TEST_F(PeerFailures, ADiskThatIsFullForOneEndsAllAndItSaysSo) {
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

TEST_F(PeerFailures, AServerThatDoesNotAnswerEndsTheWait) {
  const HeldPort silent;
  expect_one_line_error(
      run_program(clusters({"--out", text_path("a"), "parallel.init_timeout=5"}),
                  {.environment = {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                   "MASTER_PORT=" + std::to_string(silent.number())}}),
      1, "process 0 did not answer within 5 seconds");
}

TEST_F(PeerFailures, ASignalEndsOneThatWaitsForTheOthers) {
  // Once it listens, the state 0A, at the port where it waits.
  const auto result = run_script_of_two(clusters({"--out", text_path("a")}), R"(
    RANK=0 "$@" & p=$!; listens=$(printf ':%04X [0:]* 0A ' $MASTER_PORT)
    while kill -0 $p && ! grep -q "$listens" /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done
    kill -TERM $p; wait $p)");
  EXPECT_EQ(result.exit_code, 143) << result.err;
}

TEST_F(PeerFailures, TorchrunLearnsWhyOneFailed) {
  Fate fate{1};
  fate.environment = {"TORCHELASTIC_ERROR_FILE=" + text_path("error.json")};
  fate.arguments = clusters({"--out", text_path("run"), "model.num_experts=9"});
  run_in_processes(clusters({"--out", text_path("run")}), 2, fate);
  const json error = json::parse(bytes_in(path("error.json")));
  EXPECT_THAT(error["message"]["message"].get<std::string>(), HasSubstr("another recipe")) << error;
  EXPECT_GT(std::stoll(error["message"]["extraInfo"]["timestamp"].get<std::string>()), 0);
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
  const Strings started =
      joined({"/bin/sh", "-c", before + "exec \"$@\"", "sh", MOESAIC_PROGRAM}, arguments);
  return run_command(joined({torchrun().string(), "--no-python", "--nproc-per-node", "2",
                             "--master-port", std::to_string(free_port()), "--max-restarts", "2"},
                            started));
}

/// Returns a script that sends a signal to process `rank` of the first attempt once the run has a
/// checkpoint.
std::string signal_at_checkpoint(const std::filesystem::path& run, int rank, const char* signal) {
  return "if [ $RANK = " + std::to_string(rank) +
         " ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then P=$$$$; (while ! ls " + run.string() +
         "/checkpoints/step_* >/dev/null 2>&1; do sleep 0.05; done; kill -" + signal +
         " $P) & fi; ";
}

TEST_F(PeerFailures, TorchrunStartsThemAgainAfterAKill) {
  if (!std::filesystem::exists(torchrun())) GTEST_SKIP() << "no " << torchrun();
  const auto start = [&](const std::string& out, const std::string& before) {
    return by_torchrun(clusters({"phases.train.steps=60", "--resume", "--out", text_path(out)}),
                       before);
  };
  must_succeed(start("whole", ""));
  // Process 1 dies once there is a checkpoint, and only in the first attempt.
  const auto restarted =
      must_succeed(start("killed", signal_at_checkpoint(path("killed"), 1, "KILL")));
  EXPECT_THAT(restarted.err, HasSubstr("resuming from"));
  const std::string file = "checkpoints/step_60/model.safetensors";
  EXPECT_TRUE(bytes_in(path("whole") / file) == bytes_in(path("killed") / file));
  EXPECT_FALSE(bytes_in(path("whole") / file).empty());
}

TEST_F(PeerFailures, TorchrunEndsNoneBeforeItSaidWhatASignalSaved) {
  if (!std::filesystem::exists(torchrun())) GTEST_SKIP() << "no " << torchrun();
  const auto stopped =
      by_torchrun(endless(text_path("run")), signal_at_checkpoint(path("run"), 0, "TERM"));
  EXPECT_NE(stopped.exit_code, 0);
  EXPECT_THAT(stopped.err, HasSubstr("saved; resume with"));
}

}  // namespace
}  // namespace moesaic::testing
