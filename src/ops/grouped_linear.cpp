// SPDX-License-Identifier: Apache-2.0
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "cuda/expert_products.h"
#include "mlp_operators.h"
#include "moesaic/ops/autocast.h"

namespace moesaic {

using at::Tensor;

Tensor ops::linear_by_expert(const Tensor& rows, const Tensor& offsets, const Tensor& w,
                             const Tensor& b) {
  const Tensor host = offsets.to(at::kCPU, at::kLong);
  const auto* const begins = host.const_data_ptr<int64_t>();
  const int64_t experts = w.size(0);
  // The gradient of w[e] would be a tensor as large as w, for each expert.
  const std::vector<Tensor> w_e = w.unbind(0), b_e = b.unbind(0);
  std::vector<Tensor> parts;
  for (int64_t e = 0; e < experts; ++e) {
    const auto i = static_cast<size_t>(e);
    parts.push_back(
        at::addmm(b_e[i], rows.narrow(0, begins[e], begins[e + 1] - begins[e]), w_e[i]));
  }
  parts.push_back(rows.new_zeros({rows.size(0) - begins[experts], w.size(2)}));
  return at::cat(parts);
}

// A grouped GEMM writes neither rows past the last offset nor gradients of experts without
// rows: at::where() takes zeros for the outputs and for the weights' gradients, whatever the memory
// holds. Biases are a product with one-hot rows, whose gradient needs no sort.
Tensor ops::linear_by_grouped_mm(const Tensor& rows, const Tensor& offsets, const Tensor& w,
                                 const Tensor& b) {
  const Tensor ends = offsets.slice(0, 1);
  const Tensor row = at::arange(rows.size(0), offsets.options()).unsqueeze(1);
  const Tensor first = offsets.slice(0, 0, -1);
  const Tensor one_hot = row.ge(first) & row.lt(ends);  // [A, K]
  const Tensor filled = row.lt(ends.slice(0, -1));      // [A, 1]
  const Tensor has_rows = ends.gt(first).view({-1, 1, 1});
  const Tensor product = at::_grouped_mm(rows, at::where(has_rows, w, 0), ends);
  return at::where(filled, product + at::mm(one_hot.to(b.scalar_type()), b), 0);
}

Tensor grouped_linear(const Tensor& rows_Ap, const Tensor& offsets_K, const Tensor& w_Kpq,
                      const Tensor& b_Kq) {
  const auto device = rows_Ap.device().type();
  const bool lowers = at::autocast::is_autocast_enabled(device);
  const auto cast = [&](const Tensor& t) {
    return lowers ? at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device)
                  : t;
  };
  const Tensor rows = cast(rows_Ap), w = cast(w_Kpq), b = cast(b_Kq);
  const NoAutocastGuard no_autocast;
  return ops::groups_products(rows, w) ? ops::linear_by_grouped_mm(rows, offsets_K, w, b)
                                       : ops::linear_by_expert(rows, offsets_K, w, b);
}

}  // namespace moesaic
