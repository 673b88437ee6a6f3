// SPDX-License-Identifier: Apache-2.0
// Registration and calls of operators of the dispatcher, written once for all of them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "check.h"

namespace moesaic::ops {

/// The operator `Named::kName`, "moesaic::...", with the arguments of its schema.
template <class Named, class Signature>
struct Dispatched;
template <class Named, class Out, class... Arguments>
struct Dispatched<Named, Out(Arguments...)> {
  static constexpr const char* kName = Named::kName;
  using Result = Out;

  /// Calls the operator through the dispatcher. Throws where the schema has other arguments.
  static Out call(Arguments... arguments) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow(kName, "")
                               .template typed<Out(Arguments...)>();
    return op.call(std::forward<Arguments>(arguments)...);
  }

  /// Calls it through an autograd function, for registration.
  template <class Function>
  static Out apply(Arguments... arguments) {
    return Function::apply(std::forward<Arguments>(arguments)...);
  }
};

/// An operator whose arguments are the fields of the struct `In`, in the order of the schema. A
/// function check(const In&) throws Error where they are invalid.
template <class In, class Signature>
struct Operator;
template <class In, class Out, class... Arguments>
struct Operator<In, Out(Arguments...)> : Dispatched<In, Out(Arguments...)> {
  /// Adapts `kernel`, which takes checked arguments, to the schema for registration.
  template <auto kernel>
  static Out run(Arguments... arguments) {
    const In in{arguments...};
    check(in);
    return kernel(in);
  }
};

/// An operator of tensors, then options one by one. A schema has no structs, so the options of a
/// call are packed into arguments and unpacked from them by a `Packing`, written once per operator:
///
///   static constexpr const char* kName = "moesaic::...";
///   static void check(const at::Tensor&..., const Options&);  // throws where they are invalid
///   static std::tuple<...> pack(const Options& options);  // in the order of the schema
///   static Options unpack(...);                           // takes the same arguments
template <class Packing, class Signature,
          class Unpack = std::remove_pointer_t<decltype(&Packing::unpack)>>
struct OptionsOperator;
template <class Packing, class Out, class... Tensors, class Options, class... Arguments>
struct OptionsOperator<Packing, Out(Tensors...), Options(Arguments...)>
    : Dispatched<Packing, Out(Tensors..., Arguments...)> {
  using Dispatched<Packing, Out(Tensors..., Arguments...)>::call;

  /// Adapts `kernel`, which takes at least float32 and options, all checked, to the schema for
  /// registration.
  template <auto kernel>
  static Out run(Tensors... tensors, Arguments... arguments) {
    const auto checked = [](const auto& options, const auto&... wide) {
      Packing::check(wide..., options);
      return kernel(wide..., options);
    };
    return checked(Packing::unpack(std::move(arguments)...), halves_in_float32(tensors)...);
  }

  static Out call(Tensors... tensors, const Options& options) {
    return std::apply([&](const auto&... packed) { return call(tensors..., packed...); },
                      Packing::pack(options));
  }

  /// Convert options to and from the form that an autograd function saves for its backward pass.
  static c10::IValue saved(const Options& options) { return Packing::pack(options); }
  static Options restored(const c10::IValue& value) {
    return std::apply(&Packing::unpack,
                      value.to<decltype(Packing::pack(std::declval<Options>()))>());
  }
};

/// Defines an operator with its shape function and what autograd calls: nothing for the operator of
/// a gradient, whose own derivative throws instead of counting as 0.
template <class Op, auto shapes, auto... autograd>
void define(torch::Library& m, const char* schema) {
  m.def(schema);
  m.impl(Op::kName, torch::dispatch(c10::DispatchKey::Meta, Op::template run<shapes>));
  if constexpr (sizeof...(autograd) > 0) {
    m.impl(Op::kName, torch::dispatch(c10::DispatchKey::Autograd, autograd...));
  } else {
    m.impl(Op::kName, torch::dispatch(c10::DispatchKey::Autograd,
                                      torch::autograd::autogradNotImplementedFallback()));
  }
}

/// Registers `kernel`, which takes checked arguments, for the device of the library block.
template <class Op, auto kernel>
void implement(torch::Library& m) {
  m.impl(Op::kName, Op::template run<kernel>);
}

}  // namespace moesaic::ops
