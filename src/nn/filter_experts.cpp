// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/filter_experts.h"

#include <torch/torch.h>

#include <cmath>

#include "moesaic/ops/autocast.h"
#include "moesaic/ops/filter_experts.h"

namespace moesaic::nn {

FilterExpertsImpl::FilterExpertsImpl(FilterExpertsOptions options, at::Generator generator)
    : options_(options) {
  w = register_parameter("w", torch::empty({options.experts, options.width, options.filters}));
  if (options.bias) {
    b = register_parameter("b", torch::empty({options.experts, options.filters}));
  }
  const torch::NoGradGuard no_grad;
  const double bound = options.init_scale / std::sqrt(static_cast<double>(options.width));
  for (at::Tensor* parameter : present()) {
    options.normal ? parameter->normal_(0.0, options.init_scale, generator)
                   : parameter->uniform_(-bound, bound, generator);
  }
}

std::vector<at::Tensor*> FilterExpertsImpl::present() {
  return options_.bias ? std::vector<at::Tensor*>{&w, &b} : std::vector<at::Tensor*>{&w};
}

ExpertRows FilterExpertsImpl::compute(const at::Tensor& x_TPd, const Routing& routing,
                                      const at::Generator&) {
  const NoAutocast exact;
  const at::Tensor bias =
      options_.bias ? b : at::zeros({count(), options_.filters}, w.options().requires_grad(false));
  return {filter_experts(x_TPd, routing, {w, bias}, options_.outputs, options_.activation), {}};
}

void FilterExpertsImpl::keep(const std::vector<int64_t>& slots) {
  keep_rows(present(), slots);
  options_.experts = count();
}

double FilterExpertsImpl::flops_per_row() const {
  return 2.0 * static_cast<double>(options_.width) *
         static_cast<double>(options_.patches * options_.filters);
}

ExpertMatrices FilterExpertsImpl::matrices(int64_t slot, const ParameterValues& values) const {
  return {.hidden = {values(w)[slot].t()}, .others = {}};
}

}  // namespace moesaic::nn
