// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/pimpl.h>

#include "moesaic/nn/experts.h"
#include "moesaic/ops/activation.h"

namespace moesaic::nn {

struct FilterExpertsOptions {
  int64_t experts = 1;  ///< Number of experts, K.
  int64_t patches = 1;  ///< Number of patches of an input, P.
  int64_t width = 0;    ///< Width of a patch, d.
  int64_t filters = 0;  ///< Number of filters of an expert, J.
  int64_t outputs = 2;  ///< Number of outputs, C.
  Activation activation = Activation::cubic;
  double init_scale = 1.0;  ///< Initial values are uniform on +-init_scale / sqrt(d),
  bool normal = false;      ///< or normal with the deviation init_scale.
  bool bias = true;         ///< Whether there is `b`.
};

/// Two-layer convolutional networks with a fixed second layer (clusters paper, eq. 3.1), with
/// parameters `w` [K, d, J] and `b` [K, J], undefined without biases, see filter_experts() of ops.
/// A neuron is a filter.
class FilterExpertsImpl : public Experts {
 public:
  FilterExpertsImpl(FilterExpertsOptions options, at::Generator generator);

  /// Computes x_TPd [T, P, d] -> [A, C], one row for each row of the routing.
  ExpertRows compute(const at::Tensor& x_TPd, const Routing& routing,
                     const at::Generator& random) override;
  Sharing sharing() const override { return Sharing::rows; }
  int64_t count() const override { return w.size(0); }
  int64_t outputs() const override { return options_.outputs; }
  double flops_per_row() const override {
    return 2.0 * static_cast<double>(options_.patches * w.size(1) * w.size(2));
  }
  ExpertMatrices matrices(int64_t slot, const ParameterValues& values) const override {
    return {.hidden = {values(w)[slot].t()}, .others = {}};
  }
  ExpertsScript script_source() const override;

  at::Tensor w, b;

 private:
  FilterExpertsOptions options_;
};
TORCH_MODULE(FilterExperts);

}  // namespace moesaic::nn
