// SPDX-License-Identifier: Apache-2.0
// Token-choice routing: schema, checks, shape function and gradient. The kernels are cpu/route.cpp
// and its siblings.
#include "moesaic/ops/route.h"

#include <torch/library.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "check.h"
#include "moesaic/base/error.h"
#include "route_plan.h"

namespace moesaic {
namespace ops {
namespace {

using RouteTensors =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using RouteSignature = RouteTensors(const at::Tensor&, int64_t, bool, double, int64_t,
                                    at::IntArrayRef);
using RouteBackwardSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                          const at::Tensor&, bool);

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def(
      "route_token_choice(Tensor logits, int k, bool softmax_all, float capacity_factor, "
      "int group_size, int[] kept) -> (Tensor offsets, Tensor token, Tensor gate, "
      "Tensor token_offsets, Tensor token_row, Tensor choice, Tensor choice_row)");
  m.def(
      "route_token_choice_backward(Tensor grad_gate, Tensor logits, Tensor choice, "
      "Tensor choice_row, bool softmax_all) -> Tensor");
}

RouteTensors call_route(const at::Tensor& logits, int64_t k, bool softmax_all,
                        double capacity_factor, int64_t group_size, at::IntArrayRef kept) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::route_token_choice", "")
                             .typed<RouteSignature>();
  return op.call(logits, k, softmax_all, capacity_factor, group_size, kept);
}

at::Tensor call_route_backward(const at::Tensor& grad_gate, const at::Tensor& logits,
                               const at::Tensor& choice, const at::Tensor& choice_row,
                               bool softmax_all) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::route_token_choice_backward", "")
                             .typed<RouteBackwardSignature>();
  return op.call(grad_gate, logits, choice, choice_row, softmax_all);
}

void check_kept(at::IntArrayRef kept, int64_t experts) {
  for (size_t i = 0; i < kept.size(); ++i) {
    const bool ascending = i == 0 || kept[i] > kept[i - 1];
    if (kept[i] < 0 || kept[i] >= experts || !ascending) {
      fail("route_token_choice: kept must be ascending expert numbers below {}, found {} at {}",
           experts, kept[i], i);
    }
  }
}

}  // namespace

void check_route(const at::Tensor& logits, int64_t k, double capacity_factor, int64_t group_size,
                 at::IntArrayRef kept) {
  check_shape("route_token_choice", "logits", logits, {-1, -1});
  check_floating("route_token_choice", "logits", logits);
  const int64_t experts = logits.size(1);
  if (k < 1 || k > experts) {
    fail("route_token_choice: k must be between 1 and the {} experts, found {}", experts, k);
  }
  if (!(capacity_factor >= 0.0) || std::isinf(capacity_factor)) {
    fail("route_token_choice: capacity_factor must be 0 (dropless) or a positive number, found {}",
         capacity_factor);
  }
  if (group_size < 0) fail("route_token_choice: group_size must not be negative: {}", group_size);
  if (logits.size(0) > std::numeric_limits<int32_t>::max() / k) {
    fail("route_token_choice: {} tokens x {} choices exceed the 2^31 rows of a routing",
         logits.size(0), k);
  }
  check_kept(kept, experts);
}

namespace {

RouteTensors route_meta(const at::Tensor& logits, int64_t k, bool softmax_all,
                        double capacity_factor, int64_t group_size, at::IntArrayRef kept) {
  check_route(logits, k, capacity_factor, group_size, kept);
  const int64_t tokens = logits.size(0);
  const int64_t experts = logits.size(1);
  const int64_t computed = kept.empty() ? experts : static_cast<int64_t>(kept.size());
  const int64_t bound =
      token_choice_row_bound(tokens, k, experts, computed, capacity_factor, group_size);
  const auto index = logits.options().dtype(at::kInt);
  return {at::empty({computed + 1}, index),
          at::empty({bound}, index),
          at::empty({bound}, logits.options()),
          at::empty({tokens + 1}, index),
          at::empty({bound}, index),
          at::empty({tokens, k}, index),
          at::empty({tokens, k}, index)};
}

at::Tensor route_backward_meta(const at::Tensor&, const at::Tensor& logits, const at::Tensor&,
                               const at::Tensor&, bool) {
  return at::empty_like(logits);
}

class RouteTokenChoice : public torch::autograd::Function<RouteTokenChoice> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& logits, int64_t k,
                                                bool softmax_all, double capacity_factor,
                                                int64_t group_size,
                                                const std::vector<int64_t>& kept) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [offsets, token, gate, token_offsets, token_row, choice, choice_row] =
        call_route(logits, k, softmax_all, capacity_factor, group_size, kept);
    context->save_for_backward({logits, choice, choice_row});
    context->saved_data["softmax_all"] = softmax_all;
    context->mark_non_differentiable(
        {offsets, token, token_offsets, token_row, choice, choice_row});
    return {offsets, token, gate, token_offsets, token_row, choice, choice_row};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor grad_logits =
        call_route_backward(grads[2].contiguous(), saved[0], saved[1], saved[2],
                            context->saved_data["softmax_all"].toBool());
    return {grad_logits, {}, {}, {}, {}, {}};
  }
};

RouteTensors route_autograd(const at::Tensor& logits, int64_t k, bool softmax_all,
                            double capacity_factor, int64_t group_size, at::IntArrayRef kept) {
  const auto out =
      RouteTokenChoice::apply(logits, k, softmax_all, capacity_factor, group_size, kept.vec());
  return {out[0], out[1], out[2], out[3], out[4], out[5], out[6]};
}

TORCH_LIBRARY_IMPL(moesaic, Meta, m) {
  m.impl("route_token_choice", route_meta);
  m.impl("route_token_choice_backward", route_backward_meta);
}
TORCH_LIBRARY_IMPL(moesaic, Autograd, m) {
  m.impl("route_token_choice", route_autograd);
}

}  // namespace
}  // namespace ops

int64_t expert_capacity(int64_t tokens, int64_t k, double factor, int64_t experts) {
  const double exact =
      static_cast<double>(tokens) * static_cast<double>(k) * factor / static_cast<double>(experts);
  const auto rows = static_cast<int64_t>(std::ceil(exact));
  if (rows < 1) {
    fail("capacity: {} tokens x {} choices x factor {} over {} experts give no row to an expert",
         tokens, k, factor, experts);
  }
  return (rows + 3) / 4 * 4;
}

Routing route_token_choice(const at::Tensor& logits_TE, const TokenChoiceOptions& options) {
  auto [offsets, token, gate, token_offsets, token_row, choice, choice_row] =
      ops::call_route(logits_TE, options.k, options.softmax == GateSoftmax::all,
                      options.capacity_factor, options.group_size, options.kept);
  return {offsets, token, gate, token_offsets, token_row, choice};
}

at::Tensor combine_weights(const Routing& routing) {
  const int64_t tokens = routing.tokens();
  at::Tensor weights = at::zeros({tokens, routing.experts()}, routing.gate.options());
  const at::Tensor counts = routing.offsets.diff().to(at::kLong);
  const at::Tensor expert =
      at::repeat_interleave(at::arange(routing.experts(), counts.options()), counts);
  const int64_t rows = expert.size(0);
  const at::Tensor token = routing.token.slice(0, 0, rows).to(at::kLong);
  return weights.index_put({token, expert}, routing.gate.slice(0, 0, rows));
}

}  // namespace moesaic
