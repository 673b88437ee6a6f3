// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/device.h"

#include <ATen/Context.h>

#include <cstdlib>

#include "base/support.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

constexpr const char* kWorkspace = "CUBLAS_WORKSPACE_CONFIG";

struct Settings {
  bool deterministic = at::globalContext().deterministicAlgorithms();
  bool warns_only = at::globalContext().deterministicAlgorithmsWarnOnly();
  bool benchmark = at::globalContext().benchmarkCuDNN();
  bool tf32_products = at::globalContext().allowTF32CuBLAS();
  bool tf32_convolutions = at::globalContext().allowTF32CuDNN();
  bool operator==(const Settings&) const = default;
};

class BackendScopeTest : public ::testing::Test {
 protected:
  const test::ScopedEnv workspace_{kWorkspace, ":4096:8"};
};

TEST_F(BackendScopeTest, SetsAGpuAndPutsBackWhatWas) {
  const Settings before;
  {
    const BackendScope scope(at::kCUDA, {.deterministic = true, .wants_cudnn_benchmark = true});
    EXPECT_EQ(Settings(), (Settings{true, false, false, false, false}));
  }
  EXPECT_EQ(Settings(), before);
  {
    const BackendScope scope(at::kCUDA, {.wants_cudnn_benchmark = true, .tf32 = true});
    EXPECT_EQ(Settings(), (Settings{false, false, true, true, true}));
  }
  EXPECT_EQ(Settings(), before);
}

TEST_F(BackendScopeTest, ProductsOnAGpuMayBeExactForAWhile) {
  const BackendScope scope(at::kCUDA, {.tf32 = true});
  {
    const NoTf32 exact(at::kCUDA);
    EXPECT_FALSE(Settings().tf32_products);
    const NoTf32 again(at::kCUDA);
  }
  EXPECT_TRUE(Settings().tf32_products);
  const NoTf32 elsewhere(at::kCPU);
  EXPECT_TRUE(Settings().tf32_products);
}

TEST_F(BackendScopeTest, LeavesTheCpuAlone) {
  unsetenv(kWorkspace);
  const Settings before;
  {
    const BackendScope scope(at::kCPU, {.deterministic = true, .wants_cudnn_benchmark = true});
    EXPECT_EQ(Settings(), before);
    at::globalContext().setBenchmarkCuDNN(!before.benchmark);  // By another thread.
  }
  EXPECT_NE(Settings(), before);
  at::globalContext().setBenchmarkCuDNN(before.benchmark);
}

TEST_F(BackendScopeTest, SaysWhatCublasNeeds) {
  check_backend(at::kCUDA, true);
  setenv(kWorkspace, ":1:1", 1);
  EXPECT_THAT(test::usage_of([] { check_backend(at::kCUDA, true); }),
              HasSubstr("CUBLAS_WORKSPACE_CONFIG=:4096:8 (or :16:8) in the environment, found "
                        "':1:1'"));
  check_backend(at::kCUDA, false);
  check_backend(at::kCPU, true);
}

}  // namespace
}  // namespace moesaic
