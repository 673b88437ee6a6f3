// SPDX-License-Identifier: Apache-2.0
// Tests that need a GPU: skipped where there is none, and then named by tools/run_tests.py.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace moesaic::testing {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
  }
};

inline at::Tensor on_gpu(const at::Tensor& tensor) {
  return tensor.to(torch::kCUDA);
}
/// Back in the CPU's memory as float64, to be compared.
inline at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.detach().to(torch::kCPU).to(torch::kDouble);
}

}  // namespace moesaic::testing
