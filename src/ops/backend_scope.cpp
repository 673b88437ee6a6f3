// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/backend_scope.h"

#include <ATen/Context.h>

#include <cstdlib>

#include "moesaic/base/error.h"

namespace moesaic {

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
