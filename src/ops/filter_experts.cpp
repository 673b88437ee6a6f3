// SPDX-License-Identifier: Apache-2.0
// Schema, checks, shape function and gradient. Where the inputs require gradients, and on other
// devices, the experts run as MLPs whose second layer sums filters.
#include "moesaic/ops/filter_experts.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include "check.h"
#include "filters_by_grouped_mlp.h"
#include "moesaic/base/error.h"
#include "moesaic/ops/grouped_mlp.h"
#include "widened.h"

namespace moesaic {
namespace ops {
namespace {

using at::Tensor;
using FilterTensors = std::tuple<Tensor, Tensor>;
using FilterSignature = FilterTensors(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                      const Tensor&, int64_t, int64_t, bool);
using FilterBackwardSignature = FilterTensors(const Tensor&, const Tensor&, const Tensor&,
                                              const Tensor&, const Tensor&, const Tensor&,
                                              const Tensor&, int64_t);

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  // `hidden` is for the backward pass: the activation's inputs [A * P * J] in the kernel's layout,
  // except those that are recomputed, or without an activation the sums of the patches [A * d].
  // Without `keep_hidden` it is empty unless a gradient is required.
  m.def(
      "filter_experts(Tensor x, Tensor offsets, Tensor token, Tensor w, Tensor b, int outputs, "
      "int activation, bool keep_hidden) -> (Tensor y, Tensor hidden)");
  m.def(
      "filter_experts_backward(Tensor grad, Tensor x, Tensor offsets, Tensor token, Tensor hidden, "
      "Tensor w, Tensor b, int activation) -> (Tensor w, Tensor b)");
}

FilterTensors call_filters(const Tensor& x, const Tensor& offsets, const Tensor& token,
                           const Tensor& w, const Tensor& b, int64_t outputs, int64_t activation,
                           bool keep_hidden) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::filter_experts", "")
                             .typed<FilterSignature>();
  return op.call(x, offsets, token, w, b, outputs, activation, keep_hidden);
}

FilterTensors call_filters_backward(const Tensor& grad, const Tensor& x, const Tensor& offsets,
                                    const Tensor& token, const Tensor& hidden, const Tensor& w,
                                    const Tensor& b, int64_t activation) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::filter_experts_backward", "")
                             .typed<FilterBackwardSignature>();
  return op.call(grad, x, offsets, token, hidden, w, b, activation);
}

}  // namespace

c10::SymInt kept_numbers(const Tensor& x, const Tensor& token, const Tensor& w,
                         int64_t activation) {
  constexpr int64_t kMaxKept = int64_t{1} << 21;  // Above this size the numbers leave the caches.
  if (static_cast<Activation>(activation) == Activation::identity) {
    return token.sym_size(0) * x.sym_size(2);
  }
  return (token.sym_size(0) * x.sym_size(1) * w.sym_size(2)).min(kMaxKept);
}

void check_filter_experts(const Tensor& x, const Tensor& offsets, const Tensor& token,
                          const Tensor& w, const Tensor& b, const c10::SymInt& outputs,
                          int64_t activation) {
  constexpr const char* kOp = "filter_experts";
  check_shape(kOp, "x", x, {-1, -1, -1});
  check_values(kOp, "x", x);
  for (const auto& [name, index] : {std::pair{"offsets", &offsets}, std::pair{"token", &token}}) {
    check_shape(kOp, name, *index, {-1});
    check_index(kOp, name, *index);
    check_same_device(kOp, name, *index, x);
  }
  if (offsets.sym_size(0) < 1) fail("filter_experts: offsets must not be empty");
  check_shape(kOp, "w", w, {offsets.sym_size(0) - 1, x.sym_size(2), -1});
  check_shape(kOp, "b", b, {w.sym_size(0), w.sym_size(2)});
  for (const auto& [name, weight] : {std::pair{"w", &w}, std::pair{"b", &b}}) {
    check_same_dtype(kOp, name, *weight, x);
    check_same_device(kOp, name, *weight, x);
  }
  if (outputs < 1 || w.sym_size(2) < 1 || w.sym_size(2) % outputs != 0) {
    fail("filter_experts: {} filters cannot be shared out among {} outputs",
         c10::str(w.sym_size(2)), c10::str(outputs));
  }
  check_row_count(kOp, token.sym_size(0), x.sym_size(1));
  check_activation(kOp, activation);
  if (x.sym_size(0) == 0 && token.sym_size(0) > 0) fail("filter_experts: rows of no token at all");
}

void check_filter_rows(const Tensor& x, const Tensor& offsets, const Tensor& token) {
  constexpr const char* kOp = "filter_experts";
  check_offsets(kOp, "offsets", offsets, token.sym_size(0));
  check_values_between(kOp, "token", token, 0, x.sym_size(0).max(1));
}

void check_filter_experts_backward(const Tensor& grad, const Tensor& x, const Tensor& offsets,
                                   const Tensor& token, const Tensor& hidden, const Tensor& w,
                                   const Tensor& b, int64_t activation) {
  constexpr const char* kOp = "filter_experts_backward";
  check_shape(kOp, "w", w, {-1, -1, -1});
  check_shape(kOp, "grad", grad, {token.dim() == 1 ? token.sym_size(0) : c10::SymInt(-1), -1});
  check_filter_experts(x, offsets, token, w, b, grad.sym_size(1), activation);
  check_shape(kOp, "hidden", hidden, {kept_numbers(x, token, w, activation)});
  for (const auto& [name, tensor] : {std::pair{"grad", &grad}, std::pair{"hidden", &hidden}}) {
    check_same_dtype(kOp, name, *tensor, x);
    check_same_device(kOp, name, *tensor, x);
  }
}

// Patches are the rows of grouped_mlp. Its second layer [J, d'] sums the filters of each output in
// one column; d' is the patches' width, raised to the number of outputs.
FilterTensors filters_by_grouped_mlp(const Tensor& x, const Tensor& offsets, const Tensor& token,
                                     const Tensor& w, const Tensor& b, int64_t outputs,
                                     int64_t activation, bool keep_hidden) {
  check_filter_experts(x, offsets, token, w, b, outputs, activation);
  if (keep_hidden) fail("filter_experts: hidden is kept on the CPU only, for inputs as they are");
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
                  static_cast<Activation>(activation));
  return {y.narrow(1, 0, outputs).reshape_symint({token.sym_size(0), patches, outputs}).sum(1),
          at::empty_symint({0}, x.options())};
}

namespace {

FilterTensors filters_meta(const Tensor& x, const Tensor& offsets, const Tensor& token,
                           const Tensor& w, const Tensor& b, int64_t outputs, int64_t activation,
                           bool keep_hidden) {
  check_filter_experts(x, offsets, token, w, b, outputs, activation);
  const c10::SymInt kept = keep_hidden ? kept_numbers(x, token, w, activation) : 0;
  return {at::empty_symint({token.sym_size(0), outputs}, x.options()),
          at::empty_symint({kept}, x.options())};
}

FilterTensors filters_backward_meta(const Tensor& grad, const Tensor& x, const Tensor& offsets,
                                    const Tensor& token, const Tensor& hidden, const Tensor& w,
                                    const Tensor& b, int64_t activation) {
  check_filter_experts_backward(grad, x, offsets, token, hidden, w, b, activation);
  return {at::empty_symint(w.sym_sizes(), w.options()),
          at::empty_symint({w.sym_size(0), w.sym_size(2)}, w.options())};
}

class FilterExperts : public torch::autograd::Function<FilterExperts> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const Tensor& x, const Tensor& offsets,
                                                const Tensor& token, const Tensor& w,
                                                const Tensor& b, int64_t outputs,
                                                int64_t activation) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [y, hidden] = call_filters(x, offsets, token, w, b, outputs, activation, true);
    context->save_for_backward({x, offsets, token, hidden, w, b});
    context->saved_data["activation"] = activation;
    context->mark_non_differentiable({hidden});
    // Zeros for what has no gradient would be written at every step.
    context->set_materialize_grads(false);
    return {y, hidden};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    if (!grads[0].defined()) return torch::autograd::variable_list(7);
    const auto saved = context->get_saved_variables();
    auto [w, b] = call_filters_backward(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4],
                                        saved[5], context->saved_data["activation"].toInt());
    return {{}, {}, {}, w, b, {}, {}};
  }
};

bool suits_filter_kernels(const Tensor& x) {
  return (x.is_cpu() || x.is_meta()) && !is_half_wide(x.scalar_type()) &&
         !(at::GradMode::is_enabled() && x.requires_grad());
}

FilterTensors filters_autograd(const Tensor& x, const Tensor& offsets, const Tensor& token,
                               const Tensor& w, const Tensor& b, int64_t outputs,
                               int64_t activation, bool keep_hidden) {
  if (!suits_filter_kernels(x)) {
    return filters_by_grouped_mlp(x, offsets, token, w, b, outputs, activation, keep_hidden);
  }
  if (at::GradMode::is_enabled() && (w.requires_grad() || b.requires_grad())) {
    const auto out = FilterExperts::apply(x, offsets, token, w, b, outputs, activation);
    return {out[0], out[1]};
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call_filters(x, offsets, token, w, b, outputs, activation, keep_hidden);
}

// Kernels for tensors without an autograd key, as in inference mode.
TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("filter_experts", filters_by_grouped_mlp);
}
TORCH_LIBRARY_IMPL(moesaic, Meta, m) {
  m.impl("filter_experts", filters_meta);
  m.impl("filter_experts_backward", filters_backward_meta);
}
TORCH_LIBRARY_IMPL(moesaic, Autograd, m) {
  m.impl("filter_experts", filters_autograd);
  // A second derivative throws instead of counting as 0.
  m.impl("filter_experts_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace ops

at::Tensor filter_experts(const at::Tensor& x_TPd, const Routing& routing,
                          const FilterWeights& weights, int64_t outputs, Activation activation) {
  return std::get<0>(ops::call_filters(x_TPd, routing.offsets, routing.token, weights.w, weights.b,
                                       outputs, static_cast<int64_t>(activation),
                                       /*keep_hidden=*/false));
}

}  // namespace moesaic
