// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"

namespace moesaic {
namespace ops {
namespace {

/// Casts the operator's tensors, except integers, to the type of autocast where it `lowers`, else
/// to float32, and calls it below autocast. `gate` keeps its type: combine takes float32 weights
/// for bfloat16 rows.
template <c10::DeviceType device, bool lowers>
void cast_and_call(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::ScalarType type = lowers ? at::autocast::get_autocast_dtype(device) : at::kFloat;
  const NoAutocastGuard no_autocast;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = torch::jit::peek(*stack, i, arguments.size());
    if (!value.isTensor() || arguments[i].name() == "gate") continue;
    value = at::autocast::cached_cast(type, value.toTensor(), device);
  }
  op.callBoxed(stack);
}

template <c10::DeviceType device>
void add_rules(torch::Library& m) {
  for (const char* name : {"grouped_mlp", "routed_mlp"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_and_call<device, true>>());
  }
  for (const char* name : {"route_token_choice", "route_expert_choice", "route_adaptive"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_and_call<device, false>>());
  }
}

TORCH_LIBRARY_IMPL(moesaic, AutocastCPU, m) {
  add_rules<c10::kCPU>(m);
}
TORCH_LIBRARY_IMPL(moesaic, Autocast, m) {
  add_rules<c10::kCUDA>(m);
}

}  // namespace
}  // namespace ops

Autocast::Autocast(const std::string& precision, c10::Device device)
    : is_enabled_(precision == "bfloat16"), device_(device.type()) {
  if (!is_enabled_ && precision != "float32") {
    const std::vector<std::string> names = {"float32", "bfloat16"};
    fail_usage("unknown precision '{}'; {}", precision, did_you_mean(precision, names));
  }
  if (!is_enabled_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device_);
  was_type_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, at::kBFloat16);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!is_enabled_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, was_type_);
}

}  // namespace moesaic
