// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "moesaic/ops/filter_experts.h"

namespace moesaic::nn {

struct FilterNetworkOptions {
  int64_t experts = 1;  ///< K
  int64_t width = 0;    ///< d of a patch
  int64_t filters = 0;  ///< J of an expert
  int64_t outputs = 2;  ///< C
  Activation activation = Activation::cubic;
  double init_scale = 1.0;  ///< initial values are uniform on +-init_scale / sqrt(d)
};

/// Two-layer convolutional networks with a fixed second layer (clusters paper, eq. 3.1): `w`
/// [K, d, J] and `b` [K, J], see filter_experts().
class FilterNetworkImpl : public torch::nn::Module {
 public:
  FilterNetworkImpl(FilterNetworkOptions options, at::Generator generator);

  /// x_TPd [T, P, d] -> [A, C], a row for each row of the routing.
  at::Tensor forward(const at::Tensor& x_TPd, const Routing& routing) const;

  const FilterNetworkOptions& options() const { return options_; }

  at::Tensor w, b;

 private:
  FilterNetworkOptions options_;
};
TORCH_MODULE(FilterNetwork);

}  // namespace moesaic::nn
