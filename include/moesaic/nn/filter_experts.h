// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/pimpl.h>

#include "moesaic/nn/experts.h"
#include "moesaic/ops/activation.h"

namespace moesaic::nn {

struct FilterExpertsOptions {
  int64_t experts = 1;  ///< K
  int64_t patches = 1;  ///< P of an input
  int64_t width = 0;    ///< d of a patch
  int64_t filters = 0;  ///< J of an expert
  int64_t outputs = 2;  ///< C
  Activation activation = Activation::cubic;
  double init_scale = 1.0;  ///< initial values are uniform on +-init_scale / sqrt(d)
};

/// Two-layer convolutional networks with a fixed second layer (clusters paper, eq. 3.1): `w`
/// [K, d, J] and `b` [K, J], see filter_experts() of ops. A neuron is a filter.
class FilterExpertsImpl : public Experts {
 public:
  FilterExpertsImpl(FilterExpertsOptions options, at::Generator generator);

  /// x_TPd [T, P, d] -> [A, C], a row for each row of the routing.
  ExpertRows compute(const at::Tensor& x_TPd, const Routing& routing,
                     const at::Generator& random) override;
  void keep(const std::vector<int64_t>& slots) override;
  int64_t count() const override { return w.size(0); }
  double flops_per_row() const override;
  at::Tensor neuron_magnitudes() const override;

  const FilterExpertsOptions& options() const { return options_; }

  at::Tensor w, b;

 private:
  FilterExpertsOptions options_;
};
TORCH_MODULE(FilterExperts);

}  // namespace moesaic::nn
