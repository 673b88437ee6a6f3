// SPDX-License-Identifier: Apache-2.0
// What the program says, and with which code it ends, where system calls fail (support/faults.h).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "integration/program.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

class ProgramFaults : public ProgramTest {
 protected:
  /// Trains three steps more of a small run, in which a call on a file below `folder` fails.
  ProgramResult resume(const std::string& fault, const fs::path& folder) const {
    ProgramOptions options;
    if (!fault.empty()) {
      options.environment = {
          std::string("LD_PRELOAD=") + MOESAIC_FAULTS_LIBRARY,
          fmt::format("MOESAIC_FAULT={}:{}", fault, fs::canonical(folder).string())};
    }
    const std::string recipe =
        (fs::path(MOESAIC_TEST_SOURCE_DIR) / "models/clusters/recipes/smoke.json").string();
    return run_program(
        {"train", recipe, "phases.train.steps=6", "--out", text_path("run"), "--resume"}, options);
  }
};

TEST_F(ProgramFaults, ACheckpointThatCannotBeReadIsOneLineAndStays) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer wants to be the first library";
#endif
  ASSERT_EQ(resume("", path("")).exit_code, 0);
  const fs::path step = path("run") / "checkpoints/step_6";
  for (const char* error : {"EIO", "ESTALE", "EMFILE", "EACCES", "ENOMEM"}) {
    for (int n = 2; n < 6; ++n) {  // The first call only asks what to read.
      expect_one_line_error(resume(fmt::format("open:{}:{}", n, error), step), 1,
                            "step_6 may be whole, so it is not passed over");
      ASSERT_TRUE(fs::exists(step / "MANIFEST.json"));
    }
  }
  EXPECT_EQ(resume("", path("")).exit_code, 0);
}

}  // namespace
}  // namespace moesaic::testing
