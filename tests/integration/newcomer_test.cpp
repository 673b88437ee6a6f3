// SPDX-License-Identifier: Apache-2.0
// What someone types who has not read the pages: one line that says what to type instead.
#include <gtest/gtest.h>

#include "integration/program.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

class Newcomer : public ProgramTest {};

TEST_F(Newcomer, WhatIsNoRecipe) {
  const auto named = run_program({"train", "smoke"});
  expect_one_line_error(named, 2, "models/vmoe/recipes/smoke.json");
  expect_one_line_error(run_program({"train", "no-such-thing-at-all"}), 2, "moesaic list recipes");
  fs::create_directories(path("images/train"));
  expect_one_line_error(run_program({"train", text_path("images")}), 2,
                        "phases.0.data=" + text_path("images"));
  fs::create_directories(path("old/checkpoints"));
  write("old/config.json", "{}");
  expect_one_line_error(run_program({"train", text_path("old")}), 2, "/old/config.json --out ");
  write("README.md", "no tensors, only words");
  const auto words = run_program({"inspect", text_path("README.md")});
  expect_one_line_error(words, 1, "README.md: not a safetensors file");
  EXPECT_EQ(words.err.find("bytes long"), std::string::npos) << words.err;
}

TEST_F(Newcomer, AFileInPlaceOfAFolder) {
  const std::string recipe =
      (fs::path(MOESAIC_TEST_SOURCE_DIR) / "models/clusters/recipes/smoke.json").string();
  expect_one_line_error(run_program({"train", recipe, "--out", "/dev/full/x"}), 2,
                        "--out: '/dev/full' is not a folder");
  expect_one_line_error(run_program({"eval", "/dev/full/x"}), 2, "'/dev/full' is not a folder");
  expect_one_line_error(run_program({"reproduce", "clusters/table1", "--out", "/dev/full/x"}), 2,
                        "--out: '/dev/full' is not a folder");
}

TEST_F(Newcomer, TheArgumentIsBlamed) {
  const std::string recipe =
      (fs::path(MOESAIC_TEST_SOURCE_DIR) / "models/clusters/recipes/smoke.json").string();
  expect_one_line_error(run_program({"train", recipe, "model=null", "init="}), 2,
                        "argument 'init=");
  expect_one_line_error(
      run_program({"reproduce", "clusters/table1", "probes=[]", "--out", text_path("out")}), 2,
      "argument 'probes=[]': no row has the metric");
  for (const char* device : {"tpu", "gpu"}) {
    expect_one_line_error(
        run_program({"train", recipe, "--device", device, "--dry-run"}), 2,
        device == std::string("gpu") ? "did you mean 'cuda'?" : "choose one of cpu, cuda");
  }
}

}  // namespace
}  // namespace moesaic::testing
