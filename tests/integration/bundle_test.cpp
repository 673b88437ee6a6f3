// SPDX-License-Identifier: Apache-2.0
// What a bundle for another machine does with good and bad stages, tried on stubs of its
// programs: no bundle is built and nothing is measured.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <string>

#include "integration/program.h"
#include "integration/readme.h"
#include "moesaic/base/file.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

/// Trains one step; its doctor finds a wrong operator, its first benchmark takes too long.
constexpr const char* kProgram = R"(#!/bin/bash
case $1 in
  --version) echo 0.0.0 ;;
  doctor) head -c 100000 /dev/zero | tr '\0' '\n'; echo '✗ GPU dispatch'; echo '✓ layer'; exit 1 ;;
  train)
    while [ $# -gt 0 ]; do if [ "$1" = --out ]; then out=$2; fi; shift; done
    mkdir -p "$out"
    echo '{"kind": "train", "step": 1, "loss": 2.5, "grad_norm": 1}' >"$out/metrics.jsonl"
    echo 'pretrain: 32 images in 0:01, 32 images/s'; echo 'done: 1 step' ;;
  bench) echo "gpu/$2  0.1  0.2 ms" >&2; if [ "$2" = operators ]; then sleep 60; fi ;;
esac
)";

/// One suite passes, one ends by a signal, one has a test that fails.
constexpr const char* kTests = R"(#!/bin/bash
case $1 in
  --gtest_list_tests) printf 'main() of a.cc\nGood.\n  A\nOf/Bad.\n  B/0  # = "."\nTyped/0.  # int\n  C\n' ;;
  *=Of/Bad.\*) echo '[ RUN      ] Of/Bad.B/0'; kill -SEGV $$ ;;
  *=Typed/0.\*) echo '[  FAILED  ] Typed/0.C (1 ms)'; echo '[==========] 1 test ran.'; exit 1 ;;
  *) $MOESAIC_UNDER echo '[       OK ] Good.A (1 ms)'; echo '[==========] 1 test ran.' ;;
esac
)";

class RunGpu : public ProgramTest {
 protected:
  void SetUp() override {
    if (run_command({"python3", "--version"}).exit_code != 0) GTEST_SKIP() << "needs python3";
    fs::create_directories(path("bundle/share/moesaic/gpu"));
    fs::create_directories(path("bundle/bin"));
    fs::create_directories(path("tools"));
    fs::copy_file(source_path("tools/gpu/run_gpu.sh"), path("bundle/run_gpu.sh"));
    fs::copy_file(source_path("tools/gpu/compare.py"), path("bundle/share/moesaic/gpu/compare.py"));
    write("bundle/share/moesaic/gpu/peers.py", "print('row forward/loop 1 ms')\nprint('1 row')\n");
    write_program("bundle/moesaic", kProgram);
    write_program("bundle/tests_gpu", kTests);
    write_program("tools/compute-sanitizer",
                  "#!/bin/sh\necho '========= ERROR SUMMARY: 0 errors'\n");
  }

  void write_program(const std::string& name, const std::string& text) const {
    write(name, text);
    fs::permissions(path(name), fs::perms::owner_all);
  }

  /// A LibTorch of which there is no more than a bundle's start script looks at.
  void write_torch(const std::string& version) const {
    fs::create_directories(path("torch/lib"));
    fs::create_directories(path("torch/share/cmake/Torch"));
    write("torch/lib/libtorch_cuda.so", "");
    write("torch/share/cmake/Torch/TorchConfigVersion.cmake",
          fmt::format("set(PACKAGE_VERSION \"{}\")\n", version));
  }

  std::string run(const std::string& arguments, const std::string& before = "") const {
    return fmt::format("{} cd '{}' && PATH=$PWD/../tools:$PATH OUT=../out ./run_gpu.sh {}", before,
                       text_path("bundle"), arguments);
  }

  ProgramResult run_all(const std::string& arguments) const {
    return run_command({"bash", "-c", run(arguments, "export MOESAIC_DEVICE=cuda;")});
  }

  Strings results() const {
    Strings names;
    for (const auto& entry : fs::directory_iterator(path("out"))) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
};

/// Fails the test unless the summary has exactly one line of the stage, with this verdict and text.
void expect_stage(const std::string& summary, const std::string& stage, const std::string& verdict,
                  const std::string& text) {
  const std::regex line(fmt::format("(?:^|\n){} +{} +\\d+ s  ([^\n]*)", stage, verdict));
  std::smatch found;
  ASSERT_TRUE(std::regex_search(summary, found, line)) << stage << ":\n" << summary;
  EXPECT_THAT(found[1].str(), HasSubstr(text)) << stage;
  const std::string rest = found.suffix();
  EXPECT_FALSE(std::regex_search(rest, std::regex(fmt::format("\n{} +[a-z]", stage)))) << summary;
}

TEST_F(RunGpu, ReportsEveryStageInOneLineAndNoneStopsTheOthers) {
  const auto result = run_all("--limit 4");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.err, "");
  expect_stage(result.out, "machine", "passed", "0.0.0");
  expect_stage(result.out, "doctor", "failed", "✗ GPU dispatch");
  expect_stage(result.out, "tests Good", "passed", "1 passed, 0 failed, 0 skipped");
  expect_stage(result.out, "tests Of/Bad", "failed", "signal 11 after: [ RUN      ] Of/Bad.B/0");
  expect_stage(result.out, "tests Typed/0", "failed", "1 failed, 0 skipped; Typed/0.C");
  for (const char* training : {"float32", "bfloat16", "on the CPU", "speed"}) {
    expect_stage(result.out, fmt::format("train {}", training), "passed", "32 images/s");
  }
  expect_stage(result.out, "train compare", "passed", "float32 agrees (loss 0.0e+00");
  expect_stage(result.out, "bench operators", "time limit", "1 rows, 0 failed");
  expect_stage(result.out, "bench vmoe", "passed", "1 rows, 0 failed");
  expect_stage(result.out, "peers", "passed", "1 row");
  for (const char* tool : {"memcheck", "racecheck", "synccheck"}) {
    expect_stage(result.out, tool, "passed", "ERROR SUMMARY: 0 errors");
  }
  EXPECT_THAT(result.out, HasSubstr("\n12 passed, 4 failed, 0 not run; "));
  EXPECT_EQ(read_text(path("out/summary.txt")), result.out);
  EXPECT_THAT(read_text(path("out/bench.txt")), HasSubstr("gpu/operators  0.1  0.2 ms\n"))
      << "a row from before the time limit";
  EXPECT_EQ(results(), (Strings{"bench.txt", "machine.txt", "peers.txt", "sanitizers.txt",
                                "summary.txt", "tests.txt", "train.json", "train.txt"}));
}

TEST_F(RunGpu, SucceedsOnlyIfEveryStagePassed) {
  must_succeed(run_all("machine train peers"));
  const auto without = run_command({"bash", "-c", run("bench", "export MOESAIC_DEVICE=cpu;")});
  EXPECT_EQ(without.exit_code, 1);
  expect_stage(without.out, "bench", "not run", "there is no GPU");
  const auto late = run_all("--seconds 1 bench peers");
  EXPECT_EQ(late.exit_code, 1);
  expect_stage(late.out, "peers", "not run", "no time is left");
  expect_one_line_error(run_all("sanitisers"), 2, "unknown stage or option 'sanitisers'; stages");
  expect_one_line_error(run_all("--limit soon"), 2, "--limit needs a number of seconds");
}

TEST_F(RunGpu, GoesOnWhereItsDiskIsFull) {
  fs::create_directory(path("out"));
  const std::string mount = "mount -t tmpfs -o size=64k none " + text_path("out");
  if (run_command({"unshare", "-rm", "bash", "-c", mount}).exit_code != 0) {
    GTEST_SKIP() << "needs the right to mount a file system in a namespace of its own";
  }
  const std::string script =
      run("--limit 4; ls ../out | wc -l", mount + "; export MOESAIC_DEVICE=cuda;");
  const auto result = run_command({"unshare", "-rm", "bash", "-c", script});
  expect_stage(result.out, "machine", "passed", "0.0.0");
  expect_stage(result.out, "doctor", "failed", "✗ GPU dispatch; no space for its log in ");
  expect_stage(result.out, "tests Good", "failed", "1 passed, 0 failed, 0 skipped; no space");
  expect_stage(result.out, "bench operators", "time limit", "1 rows, 0 failed; no space");
  expect_stage(result.out, "peers", "failed", "1 row; no space");
  EXPECT_TRUE(result.out.ends_with("\n8\n")) << result.out;
}

TEST_F(RunGpu, SaysInOneLineWhichTorchIsMissing) {
  fs::remove(path("bundle/moesaic"));
  fs::copy_file(source_path("tools/gpu/start.sh"), path("bundle/moesaic"));
  write_program("bundle/bin/moesaic", "#!/bin/sh\necho \"$LD_LIBRARY_PATH\" \"$@\"\n");
  const auto start = [&](const std::string& variables) {
    return run_command(
        {"bash", "-c", fmt::format("{} '{}' list models", variables, text_path("bundle/moesaic"))});
  };
  expect_one_line_error(start("MOESAIC_PYTHON=no-python"), 1, "there is no no-python to ask");
  expect_one_line_error(start("MOESAIC_TORCH=/nowhere"), 1, "MOESAIC_TORCH=/nowhere: no folder");
  const std::string torch = "MOESAIC_TORCH=" + text_path("torch");
  write_torch("2.10.0");
  expect_one_line_error(start(torch), 1,
                        "needs LibTorch 2.11, " + text_path("torch") + " is LibTorch 2.10.0");
  write_torch("2.11.0");
  const auto started = must_succeed(start(torch));
  EXPECT_TRUE(started.out.starts_with(text_path("torch/lib"))) << started.out;
  EXPECT_TRUE(started.out.ends_with(" list models\n")) << started.out;
  fs::remove(path("torch/lib/libtorch_cuda.so"));
  expect_one_line_error(start(torch), 1, "needs LibTorch 2.11 with CUDA");

  const auto result = run_command(
      {"bash", "-c", run("machine doctor tests peers", "export MOESAIC_PYTHON=no-python;")});
  EXPECT_EQ(result.exit_code, 1);
  for (const char* stage : {"machine", "doctor"}) {
    expect_stage(result.out, stage, "failed", "there is no no-python to ask for torch");
  }
  expect_stage(result.out, "tests Good", "passed", "1 passed");
  expect_stage(result.out, "peers", "failed", "no-python");
}

}  // namespace
}  // namespace moesaic::testing
