// SPDX-License-Identifier: Apache-2.0
#include "linear.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty_like.h>

#include <cstring>

#include "expert_work.h"
#include "gradient_panels.h"
#include "large_memory.h"
#include "mlp_layer.h"
#include "panels.h"

namespace moesaic::ops {
namespace {

using at::Tensor;

/// rows [R, K] times `matrix` [K, C], plus bias [C] or null.
template <class Scalar>
void multiply_rows(const Tensor& rows, const PanelMatrix<Scalar>& matrix, const Scalar* bias,
                   Scalar* out) {
  const TileKernels<Scalar>& kernels = tile_kernels<Scalar>();
  const int64_t depth = matrix.rows, columns = matrix.columns, stride = spread<Scalar>(depth);
  const int64_t panel = whole_lines(kernels.columns * depth);
  const auto* from = rows.const_data_ptr<Scalar>();
  const int32_t offsets[] = {0, static_cast<int32_t>(rows.size(0))};
  for_blocks<Scalar>(offsets, 1, panel + std::min(kBlockRows, rows.size(0)) * stride,
                     [&](const Segment& s, Scalar* scratch) {
                       Scalar* const near = scratch + panel;
                       for (int64_t r = 0; r < s.rows(); ++r) {
                         std::memcpy(near + r * stride, from + (s.begin + r) * depth,
                                     depth * sizeof(Scalar));
                       }
                       const PanelMultiplier<Scalar> multiply{kernels, scratch};
                       multiply({s.rows(), depth, columns, near, stride, bias,
                                 out + s.begin * columns, columns, false, Prefetch{}},
                                matrix.at(0, 0, depth, 0), [](int64_t, int64_t) {});
                     });
}

}  // namespace

Tensor linear_cpu(const Tensor& x_Rd, const Tensor& weight_od, const Tensor& b_o) {
  Tensor y_Ro = empty_large({x_Rd.size(0), weight_od.size(0)}, x_Rd.options());
  AT_DISPATCH_FLOATING_TYPES(x_Rd.scalar_type(), "linear", [&] {
    multiply_rows<scalar_t>(x_Rd, weight_od.t().unsqueeze(0), b_o.const_data_ptr<scalar_t>(),
                            y_Ro.mutable_data_ptr<scalar_t>());
  });
  return y_Ro;
}

std::tuple<Tensor, Tensor> linear_backward_cpu(const Tensor& grad_Ro, const Tensor& x_Rd,
                                               const Tensor& weight_od) {
  Tensor grad_x = empty_large(x_Rd.sizes(), x_Rd.options());
  Tensor grad_weight = empty_large(weight_od.sizes(), weight_od.options());
  AT_DISPATCH_FLOATING_TYPES(x_Rd.scalar_type(), "linear_backward", [&] {
    multiply_rows<scalar_t>(grad_Ro, weight_od.unsqueeze(0), nullptr,
                            grad_x.mutable_data_ptr<scalar_t>());
    std::vector<GradientPanel<scalar_t>> panels;
    add_panels<scalar_t>({grad_Ro.const_data_ptr<scalar_t>(),
                          x_Rd.const_data_ptr<scalar_t>(),
                          grad_weight.mutable_data_ptr<scalar_t>(),
                          nullptr,
                          x_Rd.size(0),
                          weight_od.size(0),
                          weight_od.size(1),
                          0,
                          {}},
                         panels);
    compute_panels(panels, x_Rd);
  });
  return {grad_x, grad_weight};
}

}  // namespace moesaic::ops
