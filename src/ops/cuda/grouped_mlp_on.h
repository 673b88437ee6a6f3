// SPDX-License-Identifier: Apache-2.0
// Grouped MLP on a device: the library's products, and between them passes for bias, activation and
// gradients. `hidden` keeps the first product without its bias, which the backward pass adds again.
// `Device` starts kernels: the current stream of a GPU (operators.cpp), or the serial device of a
// test.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <algorithm>

#include "../kernels/expert_rows.h"
#include "../kernels/move_rows.h"
#include "../mlp_operators.h"
#include "expert_products.h"
#include "tensor_data.h"

namespace moesaic::ops::on_device {

using at::Tensor;
using kernels::Act;

/// Returns the tensor contiguous and aligned to 16 bytes, for vectors and grouped GEMMs.
inline Tensor ready(const Tensor& tensor) {
  const Tensor dense = tensor.contiguous();
  return reinterpret_cast<uintptr_t>(dense.const_data_ptr()) % 16 == 0 ? dense : dense.clone();
}

/// Starts the passes over rows of experts.
template <class Device>
class ExpertPasses {
 public:
  ExpertPasses(const Device& device, const Tensor& offsets, int64_t rows, Act kind)
      : device_(device), offsets_(offsets.contiguous()), rows_(rows), kind_(kind) {}

  /// Writes act(from + bias), or from + bias, to `to`, which may be `from`.
  void activate(const Tensor& from, const Tensor& bias, const Tensor& to) const {
    activate(from, bias, to, kind_);
  }
  void add_bias(const Tensor& bias, const Tensor& to) const {
    activate(to, bias, to, Act::identity);
  }

  /// Replaces grad = d loss / d act(h), h = from + bias, by d loss / d h; writes act(h) to `active`
  /// and sums of d loss / d h to grad_bias.
  void differentiate(const Tensor& from, const Tensor& bias, const Tensor& grad,
                     const Tensor& active, const Tensor& grad_bias) const {
    const Tensor partial = partial_sums(from);
    with_rows({from, bias, grad, active}, [&](auto tag, auto count) {
      using T = typename decltype(tag)::type;
      kernels::with_activation(kind_, [&](auto act) {
        using Kernel = kernels::DifferentiateRows<T, decltype(count)::value, decltype(act)::value>;
        start(Kernel{pass(from.size(1)), in<T>(from), in<T>(bias), out<T>(grad), out<T>(active),
                     out<kernels::Sum<T>>(partial)},
              Kernel::shared_bytes());
      });
    });
    add_partial_sums(partial, grad_bias);
  }

  /// Writes the sums over each expert's rows to `to` [K, columns].
  void sum_rows(const Tensor& from, const Tensor& to) const {
    const Tensor partial = partial_sums(from);
    with_rows({from}, [&](auto tag, auto count) {
      using T = typename decltype(tag)::type;
      using Kernel = kernels::SumTiles<T, decltype(count)::value>;
      start(Kernel{pass(from.size(1)), in<T>(from), out<kernels::Sum<T>>(partial)},
            Kernel::shared_bytes());
    });
    add_partial_sums(partial, to);
  }

  /// Zeros the rows past the last offset.
  void clear_unused(const Tensor& rows) const {
    with_rows({rows}, [&](auto tag, auto count) {
      using T = typename decltype(tag)::type;
      start(kernels::ClearRows<T, decltype(count)::value>{
          out<T>(rows), in<int32_t>(offsets_) + experts(), rows_, rows.size(1)});
    });
  }

  /// Zeros the elements [K, ...] of experts without rows.
  void clear_idle(const Tensor& of_experts) const {
    with_row_type(of_experts, [&](auto tag) {
      using T = typename decltype(tag)::type;
      start(kernels::ClearIdleExperts<T>{out<T>(of_experts), in<int32_t>(offsets_), experts(),
                                         of_experts.numel() / std::max(experts(), 1)});
    });
  }

 private:
  int32_t experts() const { return static_cast<int32_t>(offsets_.size(0) - 1); }
  kernels::ExpertPass pass(int64_t columns) const {
    return {in<int32_t>(offsets_), experts(), rows_, columns};
  }
  Tensor partial_sums(const Tensor& rows) const {
    return at::empty({pass(rows.size(1)).tiles(), rows.size(1)},
                     rows.options().dtype(sum_type(rows.scalar_type())));
  }
  void add_partial_sums(const Tensor& partial, const Tensor& to) const {
    with_row_type(to, [&](auto tag) {
      using T = typename decltype(tag)::type;
      start(kernels::SumPartials<T>{pass(to.size(1)), in<kernels::Sum<T>>(partial), out<T>(to)});
    });
  }
  template <class Kernel>
  void start(const Kernel& kernel, int64_t shared_bytes = 0) const {
    device_.template start<kernels::kPassThreads>(kernel, kernel.blocks(), kernels::kPassThreads,
                                                  shared_bytes);
  }
  void activate(const Tensor& from, const Tensor& bias, const Tensor& to, Act kind) const {
    with_rows({from, bias, to}, [&](auto tag, auto count) {
      using T = typename decltype(tag)::type;
      kernels::with_activation(kind, [&](auto act) {
        start(kernels::ActivateRows<T, decltype(count)::value, decltype(act)::value>{
            pass(from.size(1)), in<T>(from), in<T>(bias), out<T>(to)});
      });
    });
  }

  const Device& device_;
  Tensor offsets_;
  int64_t rows_;
  Act kind_;
};

/// Returns y [A, d] and `hidden` [A, m], or [0, m] unless it is kept.
template <class Device>
std::tuple<Tensor, Tensor> grouped_mlp_on(const Device& device, const GroupedMlpArguments& in,
                                          bool is_grouped) {
  const Tensor rows = ready(in.rows);
  const ExpertProducts products(in.offsets, is_grouped);
  const ExpertPasses passes(device, in.offsets, rows.size(0), static_cast<Act>(in.activation));
  const Tensor product = products.times(rows, ready(in.w1));
  const Tensor active = in.keep_hidden ? at::empty_like(product) : product;
  passes.activate(product, ready(in.b1), active);
  const Tensor y = products.times(active, ready(in.w2));
  if (in.add_b2) passes.add_bias(ready(in.b2), y);
  passes.clear_unused(y);
  if (!in.keep_hidden) return {y, at::empty({0, in.w1.size(2)}, rows.options())};
  passes.clear_unused(product);
  return {y, product};
}

template <class Device>
GroupedMlpGradients grouped_mlp_backward_on(const Device& device,
                                            const GroupedMlpBackwardArguments& in,
                                            bool is_grouped) {
  const Tensor grad = ready(in.grad), rows = ready(in.rows), hidden = ready(in.hidden);
  const Tensor w1 = ready(in.w1), b1 = ready(in.b1), w2 = ready(in.w2);
  const ExpertProducts products(in.offsets, is_grouped);
  const ExpertPasses passes(device, in.offsets, rows.size(0), static_cast<Act>(in.activation));
  const Tensor grad_hidden = products.times(grad, w2.transpose(1, 2));
  const Tensor active = at::empty_like(hidden), grad_b1 = at::empty_like(b1);
  passes.differentiate(hidden, b1, grad_hidden, active, grad_b1);
  const Tensor grad_w2 = products.by_rows(active, grad);
  const Tensor grad_w1 = products.by_rows(rows, grad_hidden);
  for (const Tensor& weight : {grad_w1, grad_w2}) passes.clear_idle(weight);
  const Tensor grad_rows = products.times(grad_hidden, w1.transpose(1, 2));
  passes.clear_unused(grad_rows);
  const Tensor grad_b2 = at::empty({w2.size(0), w2.size(2)}, w2.options());
  passes.sum_rows(grad, grad_b2);
  return {grad_rows, grad_w1, grad_b1, grad_w2, grad_b2};
}

}  // namespace moesaic::ops::on_device
