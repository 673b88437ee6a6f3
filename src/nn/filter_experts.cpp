// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/filter_experts.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

#include "moesaic/ops/autocast.h"
#include "moesaic/ops/filter_experts.h"
#include "script/parts.h"

namespace moesaic::nn {

FilterExpertsImpl::FilterExpertsImpl(FilterExpertsOptions options, at::Generator generator)
    : options_(options) {
  w = register_parameter("w", torch::empty({options.experts, options.width, options.filters}));
  if (options.bias) {
    b = register_parameter("b", torch::empty({options.experts, options.filters}));
  }
  const torch::NoGradGuard no_grad;
  const double bound = options.init_scale / std::sqrt(static_cast<double>(options.width));
  for (const at::Tensor& parameter : parameters()) {
    options.normal ? parameter.normal_(0.0, options.init_scale, generator)
                   : parameter.uniform_(-bound, bound, generator);
  }
}

ExpertRows FilterExpertsImpl::compute(const at::Tensor& x_TPd, const Routing& routing,
                                      const at::Generator&) {
  const NoAutocast exact;
  const at::Tensor bias =
      options_.bias ? b : at::zeros({count(), options_.filters}, w.options().requires_grad(false));
  return {filter_experts(x_TPd, routing, {w, bias}, options_.outputs, options_.activation), {}};
}

// Outputs sum their filters over the patches [A, P, d].
ExpertsScript FilterExpertsImpl::script_source() const {
  using Names = std::vector<std::string>;
  return {script::one_by_one(
      outputs(), options_.bias ? Names{"w", "b"} : Names{"w"},
      fmt::format("hidden = torch.matmul(x, w) + {}", options_.bias ? "b" : "0.0"),
      fmt::format("{}.unflatten(2, [{}, -1]).sum([1, 3])", script::text_of(options_.activation),
                  outputs()))};
}

}  // namespace moesaic::nn
