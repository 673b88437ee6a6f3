// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/patch_experts.h"

#include <torch/torch.h>

#include "moesaic/ops/autocast.h"
#include "moesaic/ops/filter_experts.h"
#include "script/parts.h"

namespace moesaic::nn {
namespace {

at::Tensor weights_by_class(const PatchExpertsOptions& options) {
  at::Tensor a = torch::zeros({options.experts, options.hidden, options.outputs});
  if (options.outputs == 1) {
    a.fill_(1.0);
    a.narrow(0, (options.experts + 1) / 2, options.experts / 2).fill_(-1.0);
    return a;
  }
  const int64_t each = options.experts / options.outputs;
  for (int64_t c = 0; c < options.outputs; ++c) a.narrow(0, c * each, each).select(2, c).fill_(1.0);
  return a;
}

}  // namespace

PatchExpertsImpl::PatchExpertsImpl(const PatchExpertsOptions& options,
                                   const at::Generator& generator) {
  w = register_parameter("w", torch::empty({options.experts, options.width, options.hidden})
                                  .normal_(0.0, options.init_std, generator));
  a = register_buffer("a", options.by_class
                               ? weights_by_class(options)
                               : torch::empty({options.experts, options.hidden, options.outputs})
                                     .normal_(0.0, 1.0, generator));
}

ExpertRows PatchExpertsImpl::compute(const at::Tensor& x_Td, const Routing& routing,
                                     const at::Generator&) {
  const NoAutocast exact;
  const int64_t hidden = w.size(2);
  const at::Tensor no_bias = at::zeros({count(), hidden}, w.options().requires_grad(false));
  // Filters with an output each: the hidden layer.
  const at::Tensor hidden_Ah =
      filter_experts(x_Td.unsqueeze(1), routing, {w, no_bias}, hidden, Activation::relu);
  // Rows without an expert are 0, so that any expert's weights will do for them.
  const at::Tensor slot_A = row_experts(routing).clamp_max(count() - 1);
  return {(hidden_Ah.unsqueeze(2) * a.index_select(0, slot_A)).sum(1), {}};
}

ExpertsScript PatchExpertsImpl::script_source() const {
  return {script::one_by_one(outputs(), {"w", "a"}, "hidden = torch.relu(torch.mm(x, w))",
                             "torch.mm(hidden, a)")};
}

}  // namespace moesaic::nn
