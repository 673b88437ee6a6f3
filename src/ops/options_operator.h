// SPDX-License-Identifier: Apache-2.0
// Operators of the dispatcher whose arguments are tensors, then options one by one. A schema has no
// structs, so the options of a call are packed into arguments and unpacked from them by a
// `Packing`, written once per operator:
//
//   static constexpr const char* kName = "moesaic::...";
//   static std::tuple<...> pack(const Options& options);  // in the order of the schema
//   static Options unpack(...);                           // takes the same arguments
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "widened.h"

namespace moesaic::ops {

template <class Packing, class Kernel,
          class Unpack = std::remove_pointer_t<decltype(&Packing::unpack)>>
struct OptionsOperator;

/// Operator Return(Tensors..., arguments of Packing).
template <class Packing, class Return, class... Tensors, class Options, class... Arguments>
struct OptionsOperator<Packing, Return(Tensors...), Options(Arguments...)> {
  /// Adapts `kernel`, which takes options and at least float32, to the arguments of the schema for
  /// registration.
  template <auto kernel>
  static Return unpacked(Tensors... tensors, Arguments... arguments) {
    return kernel(widened(tensors)..., Packing::unpack(std::move(arguments)...));
  }

  /// Calls the operator through the dispatcher. Throws where the schema has other arguments.
  static Return call(Tensors... tensors, const Options& options) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow(Packing::kName, "")
                               .template typed<Return(Tensors..., Arguments...)>();
    return std::apply([&](const auto&... packed) { return op.call(tensors..., packed...); },
                      Packing::pack(options));
  }

  /// Convert options to and from the form that an autograd function saves for its backward pass.
  static c10::IValue saved(const Options& options) { return Packing::pack(options); }
  static Options restored(const c10::IValue& value) {
    return std::apply(&Packing::unpack,
                      value.to<decltype(Packing::pack(std::declval<Options>()))>());
  }
};

}  // namespace moesaic::ops
