// SPDX-License-Identifier: Apache-2.0
// Tests that count what the library asks of a GPU, by the fake one of support/fake_gpu: skipped
// unless LD_PRELOAD loaded it, as tools/run_tests.py and ctest do.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <ostream>
#include <string>

#include "support/fake_gpu/fake_gpu.h"

namespace moesaic::testing {

class FakeGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (find<decltype(&fake_gpu_reset)>("fake_gpu_reset") == nullptr) {
      GTEST_SKIP() << "run it with LD_PRELOAD=fake_gpu/libcuda.so.1 of the build folder";
    }
    reset();
  }
  /// What a GPU would have refused fails a test that does not take it.
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_EQ(take_errors(), "");
  }

  static void reset() { find<decltype(&fake_gpu_reset)>("fake_gpu_reset")(); }
  static FakeGpuCounts counts() {
    FakeGpuCounts now;
    find<decltype(&fake_gpu_counts)>("fake_gpu_counts")(&now);
    return now;
  }
  /// Returns what was wrong since the last call, and forgets it together with all counts.
  static std::string take_errors() {
    const std::string errors = find<decltype(&fake_gpu_errors)>("fake_gpu_errors")();
    reset();
    return errors;
  }

  /// Counts the work's second run: the first one sets up what LibTorch keeps for later.
  static FakeGpuCounts counts_of(const std::function<void()>& work) {
    work();
    const std::string before = take_errors();
    EXPECT_EQ(before, "");
    work();
    return counts();
  }

 private:
  template <class Function>
  static Function find(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  }
};

inline void expect_no_wait(const FakeGpuCounts& counts) {
  EXPECT_EQ(counts.waits, 0u);
  EXPECT_EQ(counts.copies_to_host, 0u);
}

/// Returns a tensor on the GPU; what is in it does not matter.
inline at::Tensor on_fake(at::IntArrayRef shape, at::ScalarType type = at::kBFloat16,
                          bool learns = false) {
  return at::empty(shape, at::device(at::kCUDA).dtype(type)).set_requires_grad(learns);
}

}  // namespace moesaic::testing
