// SPDX-License-Identifier: Apache-2.0
// What the program says, and with which code it ends, where system calls fail (support/faults.h).
#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "data/png_bytes.h"
#include "integration/program.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

/// Returns options with which a call on `place`, or on a file below it, fails; default options if
/// `fault` is empty.
ProgramOptions with_fault(const std::string& fault, const fs::path& place) {
  if (fault.empty()) return {};
  return {
      .environment = {std::string("LD_PRELOAD=") + MOESAIC_FAULTS_LIBRARY,
                      fmt::format("MOESAIC_FAULT={}:{}", fault, fs::canonical(place).string())}};
}

class ProgramFaults : public ProgramTest {
 protected:
  /// Trains three steps more of a small run, in which a call on a file below `folder` fails.
  ProgramResult resume(const std::string& fault, const fs::path& folder) const {
    return run_program({"train", recipe("clusters/recipes/smoke.json"), "phases.train.steps=6",
                        "--out", text_path("run"), "--resume"},
                       with_fault(fault, folder));
  }
};

TEST_F(ProgramFaults, ACheckpointThatCannotBeReadIsOneLineAndStays) {
  SKIP_WITH_SANITIZER("AddressSanitizer wants to be the first library");
  must_succeed(resume("", path("")));
  const fs::path step = path("run") / "checkpoints/step_6";
  for (const char* error : {"EIO", "ESTALE", "EMFILE", "EACCES", "ENOMEM"}) {
    for (int n = 2; n < 6; ++n) {  // The first call only asks what to read.
      expect_one_line_error(resume(fmt::format("open:{}:{}", n, error), step), 1,
                            "step_6 may be intact, so it is not skipped");
      ASSERT_TRUE(fs::exists(step / "MANIFEST.json"));
    }
  }
  must_succeed(resume("", path("")));
}

TEST_F(ProgramFaults, AMappedFileThatGetsShorterIsOneLine) {
  SKIP_WITH_SANITIZER("AddressSanitizer wants to be the first library");
  const std::string header = R"({"w":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}})";
  write("a.safetensors", std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') +
                             header + std::string(100000, '\1'));
  const std::string file = fs::canonical(path("a.safetensors")).string();
  expect_one_line_error(run_program({"inspect", file}, with_fault("close:1:empty", file)), 1,
                        file + ": cannot be read any more; it got shorter, or its disk failed");
}

/// Runs on twelve image files, each of which every epoch reads.
class ImageFaults : public ProgramTest {
 protected:
  ImageFaults() {
    for (uint32_t i = 0; i < 12; ++i) {
      test::Bytes pixels(size_t{3} * 16 * 16);
      for (size_t p = 0; p < pixels.size(); ++p) {
        pixels[p] = static_cast<uint8_t>((i * 40 + p * 37) % 251);
      }
      const std::string name = fmt::format("images/train/{}/{}.png", i % 2 ? "b" : "a", i);
      test::write_file(path(name), test::png_bytes(16, 16, pixels));
      if (i == 0) test::write_file(path("images/val/a/0.png"), test::read_file(path(name)));
    }
    write("run.json", R"({"name": "files", "seed": 3, "checkpoint_every": 0,
        "model": {"name": "vmoe", "image_size": 16, "channels": 3, "patch_size": 8,
          "hidden_size": 16, "num_classes": 2, "encoder": {"num_layers": 2, "num_heads": 2,
            "mlp_dim": 32, "moe": {"layers": [1], "num_experts": 4,
              "router": {"num_selected_experts": 2}}}},
        "phases": [{"name": "train", "data": ")" +
                          text_path("images") + R"(", "preprocess": {"size": 16},
          "batch_size": 4, "steps": 6, "evaluate": false,
          "optimizer": {"name": "adamw", "lr": 1e-3}, "augment": {"flip": true}}]})");
  }

  fs::path image() const { return fs::canonical(path("images/train/a/4.png")); }
  ProgramResult train(const std::string& out, const std::string& fault = "") const {
    return run_program({"train", text_path("run.json"), "--out", text_path(out)},
                       with_fault(fault, image()));
  }
  std::string bits(const std::string& run) const {
    std::string all;
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
      all += test::get(path(run) / "checkpoints/train" / file);
    }
    return all;
  }
};

TEST_F(ImageFaults, OneThatPassesChangesNoBit) {
  SKIP_WITH_SANITIZER("AddressSanitizer wants to be the first library");
  must_succeed(train("whole"));

  for (const std::string fault : {"open:1:EIO", "read:1:EIO", "open:2:ESTALE"}) {
    const auto result = must_succeed(train(fault, fault));
    EXPECT_THAT(result.err, AllOf(HasSubstr(image().filename().string() + ": cannot "),
                                  HasSubstr("; retrying in 0.1 s"), Not(HasSubstr("replaces it"))));
    EXPECT_TRUE(bits(fault) == bits("whole")) << fault;
  }
}

TEST_F(ImageFaults, OneThatStaysEndsTheRunWithALineAndIsNoDamage) {
  SKIP_WITH_SANITIZER("AddressSanitizer wants to be the first library");
  const auto result =
      train("run", "open:2+:EIO");  // The first is for the run's record of its data.
  EXPECT_EQ(result.exit_code, 1);
  const std::string what = image().filename().string() + ": cannot open: Input/output error";
  const size_t error = result.err.find("error: ");
  ASSERT_NE(error, std::string::npos) << result.err;
  const std::string last = result.err.substr(error);
  EXPECT_THAT(last, AllOf(HasSubstr("phase 'train', step "), HasSubstr(what)));
  EXPECT_EQ(std::count(last.begin(), last.end(), '\n'), 1) << last;
  EXPECT_THAT(result.err, AllOf(HasSubstr("; retrying in 1.6 s"), Not(HasSubstr("corrupt")),
                                Not(HasSubstr("replaces it"))));
}

TEST_F(ImageFaults, AReaderThatClosesThePipeStopsTheRunAsASignalDoes) {
  const auto result =
      run_command({"bash", "-c", "\"$@\" 2>&1 | head -n 2; exit ${PIPESTATUS[0]}", "bash",
                   MOESAIC_PROGRAM, "train", text_path("run.json"), "phases.0.steps=1000000",
                   "phases.0.evaluate=true", "--out", text_path("run")});
  EXPECT_EQ(result.exit_code, 128 + SIGPIPE) << result.out << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2) << result.out;
  must_succeed({"inspect", text_path("run")});
}

}  // namespace
}  // namespace moesaic::testing
