// SPDX-License-Identifier: Apache-2.0
// The schema and two formulas: one for tensors of the CPU, which loops over the experts, and one
// for other devices and for tracing, which does not read the routing.
#include "moesaic/ops/filter_experts.h"

#include <torch/library.h>
#include <torch/torch.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "check.h"
#include "moesaic/base/error.h"
#include "moesaic/ops/grouped_mlp.h"

namespace moesaic {
namespace ops {
namespace {

using at::Tensor;

void check_filter_experts(const Tensor& x, const Tensor& offsets, const Tensor& token,
                          const Tensor& w, const Tensor& b, int64_t outputs, int64_t activation) {
  constexpr const char* kOp = "filter_experts";
  check_shape(kOp, "x", x, {-1, -1, -1});
  check_values(kOp, "x", x);
  for (const auto& [name, index] : {std::pair{"offsets", &offsets}, std::pair{"token", &token}}) {
    check_index(kOp, name, *index, {-1}, x);
  }
  if (offsets.sym_size(0) < 1) fail("filter_experts: offsets must not be empty");
  check_like(kOp, "w", w, {offsets.sym_size(0) - 1, x.sym_size(2), -1}, x);
  check_like(kOp, "b", b, {w.sym_size(0), w.sym_size(2)}, x);
  if (outputs < 1 || w.sym_size(2) < 1 || w.sym_size(2) % outputs != 0) {
    fail("filter_experts: {} filters cannot be divided equally among {} outputs",
         c10::str(w.sym_size(2)), c10::str(outputs));
  }
  check_row_count(kOp, token.sym_size(0), x.sym_size(1));
  check_activation(kOp, activation);
  if (x.sym_size(0) == 0 && token.sym_size(0) > 0)
    fail("filter_experts: x is empty, but token is not");
}

// Eq. 3.1 for the rows of one expert after the other, in pieces whose numbers stay in the caches.
// An expert without rows has an empty piece, so that its gradients are zeros.
Tensor filters_by_expert(Tensor x, const Tensor& offsets, const Tensor& token, Tensor w, Tensor b,
                         int64_t outputs, Activation activation) {
  check_offsets("filter_experts", "offsets", offsets, token.size(0));
  check_values_between("filter_experts", "token", token, 0, std::max<int64_t>(1, x.size(0)));
  if (activation == Activation::identity) {  // Sums over patches and filters come first.
    b = b.unflatten(1, {outputs, -1}).sum(2) * x.size(1);
    w = w.unflatten(2, {outputs, -1}).sum(3);
    x = x.sum(1, /*keepdim=*/true);
  }
  constexpr int64_t kPieceNumbers = 1 << 18;
  const int64_t patches = x.size(1), width = x.size(2), filters = w.size(2);
  const int64_t rows =
      std::max<int64_t>(1, kPieceNumbers / std::max<int64_t>(1, patches * filters));
  const Tensor begins = offsets.contiguous();
  const auto* const begin = begins.const_data_ptr<int32_t>();
  // Parts of unbind() have one gradient together, those of select() a stack of zeros each.
  const std::vector<Tensor> w_dJ = w.unbind(0), b_J = b.unbind(0);
  std::vector<Tensor> y;
  for (int64_t e = 0; e < w.size(0); ++e) {
    const auto expert = static_cast<size_t>(e);
    int64_t first = begin[e];
    do {
      const int64_t count = std::min<int64_t>(rows, begin[e + 1] - first);
      const Tensor seen =
          x.index_select(0, token.narrow(0, first, count)).view({count * patches, width});
      y.push_back(apply_activation(at::addmm(b_J[expert], seen, w_dJ[expert]), activation)
                      .view({count, patches, outputs, filters / outputs})
                      .sum(at::IntArrayRef{1, 3}));
      first += count;
    } while (first < begin[e + 1]);
  }
  y.push_back(x.new_zeros({token.size(0) - begin[w.size(0)], outputs}));
  return at::cat(y);
}

// Patches are the rows of grouped_mlp. Its second layer [J, d'] sums the filters of each output in
// one column; d' is the patches' width, raised to the number of outputs.
Tensor filters_by_grouped_mlp(const Tensor& x, const Tensor& offsets, const Tensor& token,
                              const Tensor& w, const Tensor& b, int64_t outputs,
                              Activation activation) {
  const c10::SymInt patches = x.sym_size(1), filters = w.sym_size(2);
  const c10::SymInt width = x.sym_size(2).max(outputs), wider = width - x.sym_size(2);
  const Tensor rows =
      at::constant_pad_nd_symint(x.index_select(0, token), std::vector<c10::SymInt>{0, wider});
  const Tensor w1 = at::constant_pad_nd_symint(w, std::vector<c10::SymInt>{0, 0, 0, wider});
  const Tensor output = at::arange(filters, offsets.options().dtype(at::kLong))
                            .div(filters / outputs, "floor")
                            .unsqueeze(1);
  const Tensor w2 = at::zeros_symint({filters, width}, w.options()).scatter(1, output, 1.0);
  const Tensor y =
      grouped_mlp(rows.reshape_symint({-1, width}), offsets * patches,
                  {w1, b, w2.unsqueeze(0).expand_symint({w.sym_size(0), -1, -1}).contiguous(),
                   at::zeros_symint({w.sym_size(0), width}, w.options())},
                  activation);
  return y.narrow(1, 0, outputs).reshape_symint({token.sym_size(0), patches, outputs}).sum(1);
}

/// Returns y [A, C] and an empty tensor: the schema's `hidden` and `keep_hidden` are of versions
/// whose own kernels kept numbers for the backward pass.
std::tuple<Tensor, Tensor> filters(const Tensor& x, const Tensor& offsets, const Tensor& token,
                                   const Tensor& w, const Tensor& b, int64_t outputs,
                                   int64_t activation, bool) {
  check_filter_experts(x, offsets, token, w, b, outputs, activation);
  const auto kind = static_cast<Activation>(activation);
  // Tensors of a tracer are Python's: they have the CPU's device and no values.
  const bool has_values = x.is_cpu() && !x.key_set().has(c10::DispatchKey::Python);
  const Tensor y = has_values ? filters_by_expert(x, offsets, token, w, b, outputs, kind)
                              : filters_by_grouped_mlp(x, offsets, token, w, b, outputs, kind);
  return {y, at::empty_symint({0}, x.options())};
}

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def(
      "filter_experts(Tensor x, Tensor offsets, Tensor token, Tensor w, Tensor b, int outputs, "
      "int activation, bool keep_hidden) -> (Tensor y, Tensor hidden)",
      filters);
}

}  // namespace
}  // namespace ops

at::Tensor filter_experts(const at::Tensor& x_TPd, const Routing& routing,
                          const FilterWeights& weights, int64_t outputs, Activation activation) {
  return std::get<0>(ops::filters(x_TPd, routing.offsets, routing.token, weights.w, weights.b,
                                  outputs, static_cast<int64_t>(activation), false));
}

}  // namespace moesaic
