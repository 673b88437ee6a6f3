// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/device.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"

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
               gpu ? "did you mean 'cuda'? CUDA_VISIBLE_DEVICES chooses the GPU"
                   : "choose one of cpu, cuda");
  }
  if (!has_cuda_operators()) {
    fail_usage(
        "device cuda: this build's operators run on the CPU only; use cpu, or build with "
        "MOESAIC_CUDA=ON");
  }
  if (!torch::cuda::is_available())
    fail_usage("device cuda: no GPU that LibTorch can use; use cpu");
  disabled_cuda_features();
}

const std::vector<std::string>& cuda_features() {
  static const std::vector<std::string> parts = {"route_token_choice", "route_expert_choice",
                                                 "dispatch",           "grouped_mlp",
                                                 kGroupedMm,           "combine"};
  return parts;
}

std::vector<std::string> disabled_cuda_features() {
  const char* const asked = std::getenv("MOESAIC_CUDA_OFF");
  std::vector<std::string> parts;
  std::istringstream list(asked == nullptr ? "" : asked);
  for (std::string part; std::getline(list, part, ',');) {
    if (std::ranges::find(cuda_features(), part) == cuda_features().end()) {
      fail_usage("MOESAIC_CUDA_OFF: unknown feature '{}'; {}", part,
                 did_you_mean(part, cuda_features()));
    }
    parts.push_back(part);
  }
  return parts;
}

bool is_cuda_feature_disabled(std::string_view part) {
  return std::getenv("MOESAIC_CUDA_OFF") != nullptr &&
         std::ranges::count(disabled_cuda_features(), part) > 0;
}

BackendScope::BackendScope(c10::Device device, BackendOptions options) {
  if (!device.is_cuda()) return;
  check_backend(device, options.deterministic);
  at::Context& context = at::globalContext();
  before_ = {context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(),
             context.benchmarkCuDNN(), context.allowTF32CuBLAS(), context.allowTF32CuDNN()};
  if (options.deterministic) context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setBenchmarkCuDNN(options.wants_cudnn_benchmark && !options.deterministic);
  context.setAllowTF32CuBLAS(options.tf32);
  context.setAllowTF32CuDNN(options.tf32);
}

BackendScope::~BackendScope() {
  if (!before_) return;
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(before_->deterministic, before_->warns_only);
  context.setBenchmarkCuDNN(before_->benchmark);
  context.setAllowTF32CuBLAS(before_->tf32_products);
  context.setAllowTF32CuDNN(before_->tf32_convolutions);
}

NoTf32::NoTf32(c10::Device device)
    : was_allowed_(device.is_cuda() && at::globalContext().allowTF32CuBLAS()) {
  if (was_allowed_) at::globalContext().setAllowTF32CuBLAS(false);
}

NoTf32::~NoTf32() {
  if (was_allowed_) at::globalContext().setAllowTF32CuBLAS(true);
}

void check_backend(c10::Device device, bool deterministic) {
  if (!deterministic || !device.is_cuda()) return;
  const char* const set = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  const std::string workspace = set == nullptr ? "" : set;
  if (workspace == ":4096:8" || workspace == ":16:8") return;
  fail_usage(
      "deterministic: cuBLAS is bit-identical only with CUBLAS_WORKSPACE_CONFIG=:4096:8 (or :16:8) "
      "in the environment, found '{}'; set it, or deterministic=false",
      workspace);
}

}  // namespace moesaic
