// SPDX-License-Identifier: Apache-2.0
// Every thread takes its part of the rows through both products (mlp_layer.h); inference never
// writes [A, m]. The weights' gradients sum over all rows of an expert: there the threads share out
// the panels of the gradients instead.
#include "moesaic/ops/grouped_mlp.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "../check.h"
#include "gradient_panels.h"
#include "large_memory.h"
#include "mlp_layer.h"
#include "mlp_layer_bfloat16.h"

namespace moesaic::ops {
namespace {

using at::Tensor;

int64_t filled_rows(const Tensor& offsets) {
  return offsets.const_data_ptr<int32_t>()[offsets.size(0) - 1];
}

struct MlpGradients {
  Tensor rows, w1, b1, w2, b2;
};

template <class Scalar>
std::vector<GradientPanel<Scalar>> gradient_panels(const Tensor& offsets, const Tensor& rows,
                                                   const Tensor& grad, const Tensor& active,
                                                   const Tensor& grad_hidden,
                                                   const MlpGradients& out) {
  const auto* begins = offsets.const_data_ptr<int32_t>();
  const int64_t d = rows.size(1), m = active.size(1);
  std::vector<GradientPanel<Scalar>> panels;
  for (int64_t e = 0; e + 1 < offsets.size(0); ++e) {
    const int64_t first = begins[e], count = begins[e + 1] - begins[e];
    const Scalar* x = rows.const_data_ptr<Scalar>() + first * d;
    const Scalar* gy = grad.const_data_ptr<Scalar>() + first * d;
    const Scalar* a = active.const_data_ptr<Scalar>() + first * m;
    const Scalar* gh = grad_hidden.const_data_ptr<Scalar>() + first * m;
    const auto add = [&](const Scalar* left, const Scalar* right, const Tensor& gradient,
                         const Tensor& sums, int64_t p, int64_t q) {
      Scalar* const to = gradient.mutable_data_ptr<Scalar>() + e * p * q;
      Scalar* const totals = sums.mutable_data_ptr<Scalar>() + e * q;
      add_panels<Scalar>({left, right, to, totals, count, p, q, 0, {}}, panels);
    };
    add(x, gh, out.w1, out.b1, d, m);
    add(a, gy, out.w2, out.b2, m, d);
  }
  return panels;
}

std::tuple<Tensor, Tensor> forward_cpu(const Tensor& rows_in, const Tensor& offsets,
                                       const Tensor& w1_in, const Tensor& b1_in,
                                       const Tensor& w2_in, const Tensor& b2_in, int64_t activation,
                                       bool keep_hidden);

struct MlpOperands {
  Tensor rows, w1, b1, w2, b2;
};

/// Computes in float32 in training and on processors without bfloat16 products.
std::tuple<Tensor, Tensor> forward_bfloat16(const MlpOperands& in, const Tensor& offsets,
                                            int64_t activation, bool keep_hidden) {
  if (keep_hidden || !Bfloat16Layer::possible(in.w1)) {
    auto [y, hidden] =
        forward_cpu(in.rows.to(at::kFloat), offsets, in.w1.to(at::kFloat), in.b1.to(at::kFloat),
                    in.w2.to(at::kFloat), in.b2.to(at::kFloat), activation, keep_hidden);
    return {y.to(at::kBFloat16), hidden.to(at::kBFloat16)};
  }
  Tensor y = at::empty(in.rows.sizes(), in.rows.options());
  const Bfloat16Layer layer{in.w1, in.w2, static_cast<Activation>(activation)};
  const Bfloat16Layer::ForwardArrays arrays{
      in.rows.const_data_ptr<at::BFloat16>(), nullptr, in.b1.const_data_ptr<at::BFloat16>(),
      in.b2.const_data_ptr<at::BFloat16>(), y.mutable_data_ptr<at::BFloat16>()};
  for_blocks<float>(offsets.const_data_ptr<int32_t>(), offsets.size(0) - 1,
                    layer.forward_scratch(std::min(kBlockRows, in.rows.size(0))),
                    [&](const Segment& s, float* scratch) { layer.forward(s, arrays, scratch); });
  y.slice(0, filled_rows(offsets)).zero_();
  return {y, at::empty({0, in.w1.size(2)}, y.options())};
}

std::tuple<Tensor, Tensor> forward_cpu(const Tensor& rows_in, const Tensor& offsets_in,
                                       const Tensor& w1_in, const Tensor& b1_in,
                                       const Tensor& w2_in, const Tensor& b2_in, int64_t activation,
                                       bool keep_hidden) {
  check_grouped_mlp(rows_in, offsets_in, w1_in, b1_in, w2_in, b2_in, activation);
  const Tensor offsets = offsets_in.contiguous();
  const Tensor rows = rows_in.contiguous(), w1 = packable(w1_in), w2 = packable(w2_in);
  const Tensor b1 = b1_in.contiguous(), b2 = b2_in.contiguous();
  if (rows.scalar_type() == at::kBFloat16) {
    return forward_bfloat16({rows, w1, b1, w2, b2}, offsets, activation, keep_hidden);
  }
  Tensor y = empty_large(rows.sizes(), rows.options());
  Tensor hidden = empty_large({keep_hidden ? rows.size(0) : 0, w1.size(2)}, rows.options());
  AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "grouped_mlp", [&] {
    const MlpLayer<scalar_t> layer{w1, w2, static_cast<Activation>(activation)};
    const typename MlpLayer<scalar_t>::ForwardArrays arrays{
        rows.const_data_ptr<scalar_t>(),
        nullptr,
        b1.const_data_ptr<scalar_t>(),
        b2.const_data_ptr<scalar_t>(),
        y.mutable_data_ptr<scalar_t>(),
        keep_hidden ? hidden.mutable_data_ptr<scalar_t>() : nullptr};
    for_blocks<scalar_t>(
        offsets.const_data_ptr<int32_t>(), offsets.size(0) - 1,
        layer.forward_scratch(std::min(kBlockRows, rows.size(0))),
        [&](const Segment& s, scalar_t* scratch) { layer.forward(s, arrays, scratch); });
  });
  y.slice(0, filled_rows(offsets)).zero_();
  if (keep_hidden) hidden.slice(0, filled_rows(offsets)).zero_();
  return {y, hidden};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward_cpu(
    const Tensor& grad_in, const Tensor& rows_in, const Tensor& offsets_in, const Tensor& hidden,
    const Tensor& w1_in, const Tensor& b1_in, const Tensor& w2_in, int64_t activation) {
  check_grouped_mlp_backward(grad_in, rows_in, offsets_in, hidden, w1_in, b1_in, w2_in, activation);
  const Tensor offsets = offsets_in.contiguous();
  if (rows_in.scalar_type() == at::kBFloat16) {
    auto [rows, w1, b1, w2, b2] =
        backward_cpu(grad_in.to(at::kFloat), rows_in.to(at::kFloat), offsets, hidden.to(at::kFloat),
                     w1_in.to(at::kFloat), b1_in.to(at::kFloat), w2_in.to(at::kFloat), activation);
    return {rows.to(at::kBFloat16), w1.to(at::kBFloat16), b1.to(at::kBFloat16),
            w2.to(at::kBFloat16), b2.to(at::kBFloat16)};
  }
  const Tensor grad = grad_in.contiguous(), rows = rows_in.contiguous();
  const Tensor w1 = packable(w1_in), w2 = packable(w2_in);
  const auto options = rows.options();
  MlpGradients out{empty_large(rows.sizes(), options), empty_large(w1.sizes(), options),
                   at::empty({w1.size(0), w1.size(2)}, options), empty_large(w2.sizes(), options),
                   at::empty({w2.size(0), w2.size(2)}, options)};
  const Tensor seen = hidden.contiguous();
  Tensor active = empty_large(seen.sizes(), options);
  Tensor grad_hidden = empty_large(seen.sizes(), options);
  AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "grouped_mlp_backward", [&] {
    const MlpLayer<scalar_t> layer{w1, w2, static_cast<Activation>(activation)};
    const typename MlpLayer<scalar_t>::BackwardArrays arrays{
        grad.const_data_ptr<scalar_t>(), seen.const_data_ptr<scalar_t>(),
        grad_hidden.mutable_data_ptr<scalar_t>(), active.mutable_data_ptr<scalar_t>(),
        out.rows.mutable_data_ptr<scalar_t>()};
    for_blocks<scalar_t>(
        offsets.const_data_ptr<int32_t>(), offsets.size(0) - 1,
        layer.backward_scratch(std::min(kBlockRows, rows.size(0))),
        [&](const Segment& s, scalar_t* scratch) { layer.backward(s, arrays, scratch); });
    auto panels = gradient_panels<scalar_t>(offsets, rows, grad, active, grad_hidden, out);
    compute_panels(panels, rows);
  });
  out.rows.slice(0, filled_rows(offsets)).zero_();
  return {out.rows, out.w1, out.b1, out.w2, out.b2};
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("grouped_mlp", forward_cpu);
  m.impl("grouped_mlp_backward", backward_cpu);
}

}  // namespace
}  // namespace moesaic::ops
