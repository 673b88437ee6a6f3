// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/meta_device.h"

#include <torch/library.h>

namespace moesaic {
namespace {

/// Calls the operator with the meta device in place of the one asked for, or of the default. An
/// operator that starts from a tensor keeps that tensor's device.
void make_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard beneath(c10::DispatchKey::DeferredInit);
  const auto& arguments = op.schema().arguments();
  bool has_source = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = torch::jit::peek(*stack, i, arguments.size());
    has_source |= value.isTensor() && value.toTensor().defined();
  }
  for (size_t i = 0; !has_source && i < arguments.size(); ++i) {
    if (arguments[i].name() != "device") continue;
    torch::jit::peek(*stack, i, arguments.size()) = c10::Device(c10::kMeta);
  }
  op.callBoxed(stack);
}

// The key exists for libraries that build modules without their memory; nothing else uses it here.
TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&make_on_meta>());
}

}  // namespace
}  // namespace moesaic
