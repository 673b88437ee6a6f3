// SPDX-License-Identifier: Apache-2.0
// The fake GPU refuses what a GPU would refuse, and what would go wrong unseen.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "fake_gpu/fake_gpu_fixture.h"
#include "moesaic/ops/device.h"
#include "ops/cuda/start.h"
#include "ops/kernels/route_rows.h"
#include "support/matchers.h"

extern "C" void __cudaRegisterFunction(void** binary, const char* key, char* device_name,
                                       const char* name, int thread_limit, uint3* thread,
                                       uint3* block, dim3* threads, dim3* blocks, int* warp);

namespace moesaic {
namespace {

constexpr size_t kKilobyte = 1024;

class LaunchChecks : public testing::FakeGpuTest {
 protected:
  static cudaError_t launch(const char* key, dim3 blocks, dim3 threads, size_t shared_bytes = 0) {
    return cudaLaunchKernel(key, blocks, threads, nullptr, shared_bytes, nullptr);
  }
  /// Returns the key of a kernel that looks like one of another library.
  static const char* some_kernel() {
    static const char key = 0;
    static char name[] = "some_kernel";
    __cudaRegisterFunction(nullptr, &key, name, name, -1, nullptr, nullptr, nullptr, nullptr,
                           nullptr);
    return &key;
  }
};

TEST_F(LaunchChecks, LaunchesWithinTheLimitsPass) {
  EXPECT_EQ(launch(some_kernel(), 1, 1024, 48 * kKilobyte), cudaSuccess);
  EXPECT_EQ(launch(some_kernel(), dim3(2147483647, 65535, 65535), dim3(8, 2, 64)), cudaSuccess);
  EXPECT_EQ(counts().launches, 2u);
}

TEST_F(LaunchChecks, BlocksAndGridsHaveLimits) {
  const char* const kernel = some_kernel();
  EXPECT_EQ(launch(kernel, 1, 1025), cudaErrorInvalidConfiguration);
  EXPECT_THAT(take_errors(), HasSubstr("threads of a block: some_kernel"));
  EXPECT_EQ(launch(kernel, 1, dim3(1, 1, 65)), cudaErrorInvalidConfiguration);
  EXPECT_THAT(take_errors(), HasSubstr("threads of a block"));
  EXPECT_EQ(launch(kernel, 0, 32), cudaErrorInvalidConfiguration);
  EXPECT_THAT(take_errors(), HasSubstr("blocks of a grid"));
  EXPECT_EQ(launch(kernel, dim3(1, 65536), 32), cudaErrorInvalidConfiguration);
  EXPECT_THAT(take_errors(), HasSubstr("blocks of a grid"));
  launch(kernel, 1, 1025);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  take_errors();
}

TEST_F(LaunchChecks, MuchSharedMemoryNeedsTheAttribute) {
  const char* const kernel = some_kernel();
  EXPECT_EQ(launch(kernel, 1, 32, 49 * kKilobyte), cudaErrorInvalidConfiguration);
  EXPECT_THAT(take_errors(), HasSubstr("shared memory without cudaFuncSetAttribute"));
  const auto allow = [&](int kilobytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                kilobytes * static_cast<int>(kKilobyte));
  };
  EXPECT_EQ(allow(227), cudaSuccess);
  EXPECT_EQ(launch(kernel, 1, 32, 227 * kKilobyte), cudaSuccess);
  EXPECT_EQ(launch(kernel, 1, 32, 228 * kKilobyte), cudaErrorInvalidConfiguration);
  EXPECT_THAT(take_errors(), HasSubstr("more shared memory than the chip has"));
  EXPECT_EQ(allow(228), cudaErrorInvalidValue);
  EXPECT_THAT(take_errors(), HasSubstr("more shared memory than the chip has"));
}

TEST_F(LaunchChecks, UnregisteredFunctionsAreRefused) {
  static const char unknown = 0;
  EXPECT_EQ(launch(&unknown, 1, 32), cudaErrorInvalidDeviceFunction);
  EXPECT_THAT(take_errors(), HasSubstr("unregistered function"));
}

TEST_F(LaunchChecks, OurKernelsHaveTheirLaunchBounds) {
  if (!has_cuda_operators()) GTEST_SKIP() << "built without operators for a GPU";
  const auto start = [](int threads) {
    ops::kernels::start<256>(ops::kernels::ExpandKept{}, 1, threads, 0, nullptr);
  };
  start(256);
  EXPECT_EQ(take_errors(), "");
  start(288);
  EXPECT_THAT(take_errors(), HasSubstr("more threads than __launch_bounds__: void moesaic::"));
}

TEST_F(LaunchChecks, CopiesEndWithTheirAllocation) {
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 4 * kKilobyte), cudaSuccess);
  std::vector<char> host(8 * kKilobyte);
  EXPECT_EQ(cudaMemcpy(host.data(), device, 4 * kKilobyte, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(take_errors(), "");
  cudaMemcpy(host.data(), device, 8 * kKilobyte, cudaMemcpyDefault);
  EXPECT_THAT(take_errors(), HasSubstr("copy past the end of an allocation"));
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST_F(LaunchChecks, ItemIsAWaitAndForbiddenInACapture) {
  const at::Tensor value = testing::on_fake({1}, at::kFloat);
  const FakeGpuCounts outside = counts_of([&] { value.item<float>(); });
  EXPECT_EQ(outside.waits, 1u);
  EXPECT_EQ(outside.copies_to_host, 1u);

  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  EXPECT_THROW(value.item<float>(), c10::Error);
  graph.capture_end();
  EXPECT_THAT(take_errors(), HasSubstr("in a capture"));
}

TEST_F(LaunchChecks, WorkOfTheDefaultStreamIsForbiddenInACapture) {
  const at::Tensor value = testing::on_fake({1}, at::kFloat);
  at::cuda::CUDAGraph graph;
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  graph.capture_begin();
  EXPECT_EQ(launch(some_kernel(), 1, 32), cudaErrorStreamCaptureImplicit);
  graph.capture_end();
  EXPECT_THAT(take_errors(), HasSubstr("launch on the default stream in a capture"));
}

}  // namespace
}  // namespace moesaic
