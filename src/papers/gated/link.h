// SPDX-License-Identifier: Apache-2.0
// Link functions, of one number and of tensors.
#pragma once

#include <cmath>
#include <string_view>

#include "moesaic/papers/gated.h"

namespace moesaic {

/// Throws Error (usage) naming the nearest link for an unknown name.
Link link_from_name(std::string_view name);

/// Returns g(z).
template <class Scalar>
Scalar link_at(Link link, Scalar z) {
  constexpr Scalar kLeak = Scalar(0.01);
  const Scalar zero = 0, one = 1;
  if (link == Link::identity) return z;
  if (link == Link::relu) return z > zero ? z : zero;
  if (link == Link::leaky_relu) return z > zero ? z : kLeak * z;
  if (link == Link::step) return z > zero ? one : zero;
  if (link == Link::tanh) return std::tanh(z);
  if (link == Link::sigmoid) return one / (one + std::exp(-z));
  return (z > zero ? z : zero) + std::log1p(std::exp(-std::abs(z)));  // softplus
}

/// Returns g of every number, differentiable.
at::Tensor apply_link(const at::Tensor& z, Link link);

}  // namespace moesaic
