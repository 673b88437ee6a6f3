// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/backend_scope.h"

#include <ATen/Context.h>

#include <cstdlib>
#include <string>

#include "moesaic/base/error.h"

namespace moesaic {

BackendScope::BackendScope(c10::Device device, BackendOptions options)
    : deterministic_(at::globalContext().deterministicAlgorithms()),
      warns_only_(at::globalContext().deterministicAlgorithmsWarnOnly()),
      benchmark_(at::globalContext().benchmarkCuDNN()) {
  if (!device.is_cuda()) return;
  check_backend(device, options.deterministic);
  at::Context& context = at::globalContext();
  if (options.deterministic) context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setBenchmarkCuDNN(options.repeats_convolutions && !options.deterministic);
}

BackendScope::~BackendScope() {
  at::globalContext().setDeterministicAlgorithms(deterministic_, warns_only_);
  at::globalContext().setBenchmarkCuDNN(benchmark_);
}

void check_backend(c10::Device device, bool deterministic) {
  if (!deterministic || !device.is_cuda()) return;
  const char* const set = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  const std::string workspace = set == nullptr ? "" : set;
  if (workspace == ":4096:8" || workspace == ":16:8") return;
  fail_usage(
      "deterministic: cuBLAS gives equal bits only with CUBLAS_WORKSPACE_CONFIG=:4096:8 (or :16:8) "
      "in the environment, found '{}'; set it, or deterministic=false",
      workspace);
}

}  // namespace moesaic
