// SPDX-License-Identifier: Apache-2.0
// cuDNN, as far as convolutions and batch norms of LibTorch ask it: one way to compute everything,
// without memory of its own. Declared as in stubs.h; the numbers are cudnn_graph.h's.
#include <cstdint>
#include <cstring>

#include "stubs.h"

#define FAKE_GPU_NO_BYTES(name, arguments, bytes) \
  int name arguments {                            \
    *bytes = 0;                                   \
    return 0;                                     \
  }

extern "C" {

/// A version too old for attention, so that LibTorch takes its own kernels, which are counted.
size_t cudnnGetVersion() {
  constexpr size_t kWithoutAttention = 8900;
  return kWithoutAttention;
}
const char* cudnnGetErrorString(int) {
  return "an error of the fake GPU's cuDNN";
}

FAKE_GPU_CREATE(cudnnCreate)
FAKE_GPU_SUCCEED(cudnnSetStream)
FAKE_GPU_CREATE(cudnnCreateTensorDescriptor)
FAKE_GPU_SUCCEED(cudnnSetTensorNdDescriptor)
FAKE_GPU_SUCCEED(cudnnDestroyTensorDescriptor)

int cudnnBackendCreateDescriptor(int, void** description) {
  return cudnnCreate(description);
}
FAKE_GPU_SUCCEED(cudnnBackendDestroyDescriptor)
FAKE_GPU_SUCCEED(cudnnBackendSetAttribute)
FAKE_GPU_SUCCEED(cudnnBackendFinalize)
FAKE_GPU_PRODUCT(cudnnBackendExecute)
int cudnnBackendGetAttribute(void*, int name, int, int64_t room, int64_t* count, void* values) {
  constexpr int kHeuristicResults = 202, kEngine = 300, kPlanWorkspace = 402;
  const bool one = name == kHeuristicResults || name == kEngine || name == kPlanWorkspace;
  if (count != nullptr) *count = one ? 1 : 0;
  if (name == kPlanWorkspace && room > 0) std::memset(values, 0, sizeof(int64_t));
  return 0;
}

FAKE_GPU_PRODUCT(cudnnBatchNormalizationForwardTrainingEx)
FAKE_GPU_PRODUCT(cudnnBatchNormalizationForwardInference)
FAKE_GPU_PRODUCT(cudnnBatchNormalizationBackwardEx)
FAKE_GPU_NO_BYTES(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize,
                  (void*, int, int, void*, void*, void*, void*, void*, size_t* bytes), bytes)
FAKE_GPU_NO_BYTES(cudnnGetBatchNormalizationBackwardExWorkspaceSize,
                  (void*, int, int, void*, void*, void*, void*, void*, void*, void*, size_t* bytes),
                  bytes)
FAKE_GPU_NO_BYTES(cudnnGetBatchNormalizationTrainingExReserveSpaceSize,
                  (void*, int, int, void*, void*, size_t* bytes), bytes)

}  // extern "C"
