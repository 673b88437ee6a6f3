// SPDX-License-Identifier: Apache-2.0
// Tests of this folder run the GPU's kernels by threads of the host under ThreadSanitizer, which
// only this program is compiled with: LibTorch and the library, which make inputs and results to
// compare with, are not.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "support/threaded_block.h"

namespace moesaic::testing {

/// Number of races that ThreadSanitizer has reported in this process.
int reported_races();

class RacesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);  // Its own threads would be slower here.
    before_ = reported_races();
  }
  void TearDown() override { EXPECT_EQ(reported_races(), before_); }

 private:
  int before_ = 0;
};

}  // namespace moesaic::testing
