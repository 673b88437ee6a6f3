// SPDX-License-Identifier: Apache-2.0
// Kernels that MOESAIC_CUDA_OFF can replace by the CPU's. This header needs no GPU: tests run the
// same code on the host.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "../mlp_operators.h"
#include "moesaic/ops/device.h"

namespace moesaic::ops {

inline at::Tensor on_device_of(const at::Tensor& tensor, at::Device device) {
  return tensor.to(device);
}
template <class... Tensors>
std::tuple<Tensors...> on_device_of(const std::tuple<Tensors...>& tensors, at::Device device) {
  return std::apply([&](const auto&... each) { return std::tuple<Tensors...>{each.to(device)...}; },
                    tensors);
}

/// Kernel of an operator of operator.h: the one given or, where the operator is turned off, the
/// CPU's on copies of the tensors. Gradients are turned off with their operator.
template <class Op, auto Kernel>
struct Switchable;
template <class Op, class Out, class... In, Out (*Kernel)(const at::Tensor&, In...)>
struct Switchable<Op, Kernel> {
  static Out run(const at::Tensor& first, In... others) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    if (!is_cuda_feature_disabled(part())) return Kernel(first, std::forward<In>(others)...);
    return on_device_of(Op::call(first.cpu(), on_host(std::forward<In>(others))...),
                        first.device());
  }

 private:
  static std::string_view part() {
    std::string_view name = Op::kName;
    name.remove_prefix(name.find("::") + 2);
    return name.substr(0, name.find("_backward"));
  }
  static at::Tensor on_host(const at::Tensor& tensor) { return tensor.cpu(); }
  static OptionalTensor on_host(const OptionalTensor& tensor) {
    return tensor.has_value() ? OptionalTensor(tensor->cpu()) : tensor;
  }
  template <class T>
  static T&& on_host(T&& other) {
    return std::forward<T>(other);
  }
};

}  // namespace moesaic::ops
