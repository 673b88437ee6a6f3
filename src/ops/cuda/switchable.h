// SPDX-License-Identifier: Apache-2.0
// Kernels that MOESAIC_CUDA_OFF can replace by the CPU's. This header needs no GPU: tests run the
// same code on the host.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "../check.h"
#include "moesaic/ops/device.h"

namespace moesaic::ops {

/// A name as an argument of a template.
template <size_t Size>
struct Name {
  char text[Size];
  consteval Name(const char (&from)[Size]) { std::copy_n(from, Size, text); }
};

inline at::Tensor on_device_of(const at::Tensor& tensor, at::Device device) {
  return tensor.to(device);
}
template <class... Tensors>
std::tuple<Tensors...> on_device_of(const std::tuple<Tensors...>& tensors, at::Device device) {
  return std::apply([&](const auto&... each) { return std::tuple<Tensors...>{each.to(device)...}; },
                    tensors);
}

/// Kernel of the operator moesaic::<Part><Suffix>: the one given or, where `Part` is turned off,
/// the CPU's on copies of the tensors.
template <Name Part, auto Kernel, Name Suffix = "">
struct Switchable;
template <Name Part, class Out, class... In, Out (*Kernel)(const at::Tensor&, In...), Name Suffix>
struct Switchable<Part, Kernel, Suffix> {
  static Out run(const at::Tensor& first, In... others) {
    if (!cuda_off(Part.text)) return Kernel(first, std::forward<In>(others)...);
    static const auto op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow((std::string("moesaic::") + Part.text + Suffix.text).c_str(), "")
            .template typed<Out(const at::Tensor&, In...)>();
    const at::AutoDispatchBelowADInplaceOrView guard;
    return on_device_of(op.call(first.cpu(), on_host(std::forward<In>(others))...), first.device());
  }

 private:
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
