// SPDX-License-Identifier: Apache-2.0
// Link functions, of one number and of tensors.
#pragma once

#include <cmath>
#include <string_view>
#include <type_traits>

#include "moesaic/papers/gated.h"

namespace moesaic {

/// Throws Error (usage) naming the nearest link for an unknown name.
Link link_from_name(std::string_view name);

/// Returns g(z).
template <Link Kind, class Scalar>
Scalar link_at(Scalar z) {
  constexpr Scalar kLeak = Scalar(0.01);
  const Scalar zero = 0, one = 1;
  if constexpr (Kind == Link::identity) return z;
  if constexpr (Kind == Link::relu) return z > zero ? z : zero;
  if constexpr (Kind == Link::leaky_relu) return z > zero ? z : kLeak * z;
  if constexpr (Kind == Link::step) return z > zero ? one : zero;
  if constexpr (Kind == Link::tanh) return std::tanh(z);
  if constexpr (Kind == Link::sigmoid) return one / (one + std::exp(-z));
  return (z > zero ? z : zero) + std::log1p(std::exp(-std::abs(z)));  // softplus
}

/// Calls visit(std::integral_constant<Link, kind>()) for the link.
auto with_link(Link kind, const auto& visit) {
  switch (kind) {
    case Link::relu:
      return visit(std::integral_constant<Link, Link::relu>());
    case Link::leaky_relu:
      return visit(std::integral_constant<Link, Link::leaky_relu>());
    case Link::sigmoid:
      return visit(std::integral_constant<Link, Link::sigmoid>());
    case Link::tanh:
      return visit(std::integral_constant<Link, Link::tanh>());
    case Link::softplus:
      return visit(std::integral_constant<Link, Link::softplus>());
    case Link::step:
      return visit(std::integral_constant<Link, Link::step>());
    case Link::identity:
      break;
  }
  return visit(std::integral_constant<Link, Link::identity>());
}

/// Returns g of every number, differentiable.
at::Tensor apply_link(const at::Tensor& z, Link link);

}  // namespace moesaic
