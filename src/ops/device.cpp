// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/device.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/cuda.h>

#include "moesaic/base/error.h"

namespace moesaic {

bool has_cuda_operators() {
  const auto op = c10::Dispatcher::singleton().findSchema({"moesaic::grouped_mlp", ""});
  return op && op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

void check_device(const std::string& device) {
  if (device == "cpu") return;
  if (device != "cuda") {  // Others are a letter from "cpu" and mean something else.
    const bool gpu = device == "gpu" || device.starts_with("cuda");
    fail_usage("unknown device '{}'; {}", device,
               gpu ? "did you mean 'cuda'?" : "choose one of cpu, cuda");
  }
  if (!has_cuda_operators()) {
    fail_usage(
        "device cuda: this build's operators run on the CPU only; use cpu, or build with "
        "MOESAIC_CUDA=ON");
  }
  if (!torch::cuda::is_available())
    fail_usage("device cuda: no GPU that LibTorch can use; use cpu");
}

}  // namespace moesaic
