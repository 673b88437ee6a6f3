// SPDX-License-Identifier: Apache-2.0
// On chips with fast bfloat16 products, bfloat16 uses LibTorch's grouped product between passes of
// this library; everything else uses this library's products, which apply bias and activation
// themselves. product_choice.h says how to choose others.
#include "moesaic/ops/grouped_mlp.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "../check.h"
#include "grouped_product.h"
#include "move_rows.h"
#include "product_choice.h"
#include "tensors.h"

namespace moesaic::ops {
namespace {

using at::Tensor;
using kernels::Act;
using kernels::ExpertRows;

/// Returns whether LibTorch's grouped product runs without a copy or a synchronisation with the
/// host: see its rules on dtypes, sizes and addresses.
bool has_grouped_mm(const Tensor& rows, const Tensor& w1, int64_t experts) {
  if (rows.scalar_type() != at::kBFloat16 || rows.size(0) == 0 || experts < 1 || experts > 1023)
    return false;
  if (rows.size(1) % 8 != 0 || w1.size(2) % 8 != 0 || w1.size(2) == 0) return false;
  int major = 0;
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, rows.device().index()));
  return major == 9 || major == 10;
}

/// Returns the products to use: the portable ones where the library's do not apply.
ProductChoice usable_product(const Tensor& rows, const Tensor& w1, int64_t experts) {
  const bool library =
      product_choice() == ProductChoice::library && has_grouped_mm(rows, w1, experts);
  return library ? ProductChoice::library : ProductChoice::portable;
}

bool aligned(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}

/// Returns the tensor contiguous and aligned to 16 bytes for vector loads.
Tensor ready(const Tensor& tensor) {
  const Tensor dense = tensor.contiguous();
  return aligned(dense) ? dense : dense.clone();
}

/// Arguments that every step shares: offsets, rows and the stream.
struct Step {
  Tensor offsets;
  ExpertRows at;
  cudaStream_t stream;

  Step(const Tensor& offsets_in, int64_t rows, cudaStream_t stream_)
      : offsets(offsets_in.contiguous()),
        at{in<int32_t>(offsets), static_cast<int32_t>(offsets.size(0) - 1), rows},
        stream(stream_) {}

  /// Multiplies each expert's rows by its weights; rows past the last offset are not written.
  Tensor grouped(const Tensor& a, const Tensor& b) const {
    return at::_grouped_mm(a, b, offsets.slice(0, 1));
  }
};

struct Layers {
  Tensor w1, b1, w2, b2;
  Act kind;
};

template <class T>
void forward_own(const Step& step, const Tensor& rows, const Layers& layers, T* hidden,
                 const Tensor& active, const Tensor& y) {
  const int64_t d = rows.size(1), m = layers.w1.size(2);
  kernels::product_bias_activate<T>(step.at, in<T>(rows), in<T>(layers.w1), in<T>(layers.b1), d, m,
                                    layers.kind, hidden, out<T>(active), step.stream);
  kernels::product_bias<T>(step.at, in<T>(active), in<T>(layers.w2), in<T>(layers.b2), m, d,
                           out<T>(y), step.stream);
}

Tensor forward_grouped_mm(const Step& step, const Tensor& rows, const Layers& layers,
                          Tensor* hidden) {
  using T = kernels::BFloat16;
  const int64_t d = rows.size(1), m = layers.w1.size(2);
  const Tensor product = step.grouped(rows, layers.w1);
  Tensor active = hidden != nullptr ? at::empty_like(product) : product;
  kernels::pass_bias_activate<T>(step.at, in<T>(product), in<T>(layers.b1), m, layers.kind,
                                 hidden != nullptr ? out<T>(product) : nullptr, out<T>(active),
                                 step.stream);
  if (hidden != nullptr) *hidden = product;
  Tensor y = step.grouped(active, layers.w2);
  kernels::pass_bias<T>(step.at, in<T>(y), in<T>(layers.b2), d, out<T>(y), step.stream);
  return y;
}

std::tuple<Tensor, Tensor> forward_cuda(const Tensor& rows_in, const Tensor& offsets,
                                        const Tensor& w1, const Tensor& b1, const Tensor& w2,
                                        const Tensor& b2, int64_t activation, bool keep_hidden) {
  check_grouped_mlp(rows_in, offsets, w1, b1, w2, b2, activation);
  const at::AutoDispatchBelowADInplaceOrView guard;
  const DeviceScope device(rows_in);
  const Tensor rows = ready(rows_in);
  const Layers layers{ready(w1), ready(b1), ready(w2), ready(b2), static_cast<Act>(activation)};
  const int64_t bound = rows.size(0), m = w1.size(2);
  const Step step(offsets, bound, device.stream());
  Tensor hidden = at::empty({0, m}, rows.options());
  Tensor y;
  const ProductChoice choice = usable_product(rows, w1, step.at.experts);
  if (choice == ProductChoice::library) {
    y = forward_grouped_mm(step, rows, layers, keep_hidden ? &hidden : nullptr);
  } else {
    y = at::empty_like(rows);
    if (keep_hidden) hidden = at::empty({bound, m}, rows.options());
    const Tensor active = at::empty({bound, m}, rows.options());
    with_row_type(rows, [&](auto tag) {
      using T = typename decltype(tag)::type;
      forward_own<T>(step, rows, layers, keep_hidden ? out<T>(hidden) : nullptr, active, y);
    });
  }
  with_row_type(rows, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int32_t* const filled = step.at.offsets + step.at.experts;
    kernels::clear_rows<T>(out<T>(y), filled, bound, y.size(1), step.stream);
    if (keep_hidden) kernels::clear_rows<T>(out<T>(hidden), filled, bound, m, step.stream);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {y, hidden};
}

struct Gradients {
  Tensor rows, w1, b1, w2, b2;
};

struct BackwardInputs {
  Tensor grad, rows, hidden, w1, w2;
  Act kind;

  int64_t width() const { return rows.size(1); }
  int64_t between() const { return w1.size(2); }
};

template <class T>
void backward_own(const Step& step, const BackwardInputs& x, const Tensor& grad_hidden,
                  const Tensor& active, const Gradients& to) {
  const int64_t d = x.width(), m = x.between();
  kernels::product_activation_gradient<T>(step.at, in<T>(x.grad), in<T>(x.w2), in<T>(x.hidden), d,
                                          m, x.kind, out<T>(grad_hidden), out<T>(active),
                                          step.stream);
  kernels::product_transposed<T>(step.at, in<T>(grad_hidden), in<T>(x.w1), m, d, out<T>(to.rows),
                                 step.stream);
  kernels::product_of_rows<T>(step.at, in<T>(x.rows), in<T>(grad_hidden), d, m, out<T>(to.w1),
                              step.stream);
  kernels::product_of_rows<T>(step.at, in<T>(active), in<T>(x.grad), m, d, out<T>(to.w2),
                              step.stream);
}

/// Writes d loss / d hidden to `grad_hidden`.
void backward_grouped_mm(const Step& step, const BackwardInputs& x, Tensor& grad_hidden,
                         Gradients& to) {
  using T = kernels::BFloat16;
  const int64_t d = x.width(), m = x.between();
  grad_hidden = step.grouped(x.grad, x.w2.transpose(1, 2));
  const Tensor active = at::empty_like(grad_hidden);
  kernels::pass_activation_gradient<T>(step.at, in<T>(grad_hidden), in<T>(x.hidden), m, x.kind,
                                       out<T>(grad_hidden), out<T>(active), step.stream);
  to.rows = step.grouped(grad_hidden, x.w1.transpose(1, 2));
  to.w1 = step.grouped(x.rows.t(), grad_hidden);
  to.w2 = step.grouped(active.t(), x.grad);
  for (const Tensor* weight : {&to.w1, &to.w2}) {
    kernels::clear_idle_experts<T>(step.at, out<T>(*weight), d * m, step.stream);
  }
}

template <class T>
void bias_gradient(const Step& step, const Tensor& from, const Tensor& to) {
  const int64_t columns = from.size(1);
  const Tensor partial = at::empty({kernels::partial_sums(step.at, columns)},
                                   from.options().dtype(sum_type(from.scalar_type())));
  kernels::sum_expert_rows<T>(step.at, in<T>(from), columns, out<kernels::Sum<T>>(partial),
                              out<T>(to), step.stream);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward_cuda(
    const Tensor& grad, const Tensor& rows, const Tensor& offsets, const Tensor& hidden,
    const Tensor& w1, const Tensor& w2, int64_t activation) {
  check_grouped_mlp_backward(grad, rows, offsets, hidden, w1, w2, activation);
  const at::AutoDispatchBelowADInplaceOrView guard;
  const DeviceScope device(rows);
  const BackwardInputs x{ready(grad), ready(rows), ready(hidden),
                         ready(w1),   ready(w2),   static_cast<Act>(activation)};
  const int64_t bound = rows.size(0), d = x.width(), m = x.between();
  const Step step(offsets, bound, device.stream());
  Gradients to;
  to.b1 = at::empty({w1.size(0), m}, w1.options());
  to.b2 = at::empty({w2.size(0), d}, w2.options());
  Tensor grad_hidden;
  const ProductChoice choice = usable_product(rows, w1, step.at.experts);
  if (choice == ProductChoice::library) {
    backward_grouped_mm(step, x, grad_hidden, to);
  } else {
    to.rows = at::empty_like(x.rows);
    to.w1 = at::empty_like(x.w1);
    to.w2 = at::empty_like(x.w2);
    grad_hidden = at::empty_like(x.hidden);
  }
  with_row_type(rows, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (choice == ProductChoice::portable)
      backward_own<T>(step, x, grad_hidden, at::empty_like(x.hidden), to);
    kernels::clear_rows<T>(out<T>(to.rows), step.at.offsets + step.at.experts, bound, d,
                           step.stream);
    bias_gradient<T>(step, grad_hidden, to.b1);
    bias_gradient<T>(step, x.grad, to.b2);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {to.rows, to.w1, to.b1, to.w2, to.b2};
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("grouped_mlp", forward_cuda);
  m.impl("grouped_mlp_backward", backward_cuda);
}

}  // namespace
}  // namespace moesaic::ops
