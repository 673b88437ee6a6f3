// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/experts.h"

#include <torch/torch.h>

#include "combined.h"
#include "moesaic/ops/combine.h"
#include "moesaic/parallel/group.h"

namespace moesaic::nn {
namespace {

/// Returns the routing with all gates 1.
Routing without_gates(Routing routing) {
  routing.gate = at::ones_like(routing.gate);
  return routing;
}

}  // namespace

at::Tensor own_values(const at::Tensor& parameter) {
  return parameter;
}

double neuron_magnitude(const ExpertMatrices& expert) {
  const torch::NoGradGuard no_grad;
  double sum = 0.0;
  int64_t neurons = 0;
  for (const at::Tensor& matrix : expert.hidden) {
    sum += matrix.norm(2, {1}, /*keepdim=*/false, at::kDouble).sum().item<double>();
    neurons += matrix.size(0);
  }
  return sum / static_cast<double>(neurons);
}

ExpertsOutput Experts::forward(const at::Tensor& x, const Routing& routing,
                               const at::Generator& random) {
  return combined(compute(x, routing, random), routing);
}

ExpertsOutput combined(const ExpertRows& rows, const Routing& routing) {
  ExpertsOutput out;
  out.y_To = combine(rows.outputs, routing);
  if (rows.embeddings.defined()) {
    out.embedding_Td = combine(rows.embeddings, without_gates(routing));
  }
  return out;
}

void Experts::gather(const Group& group) {
  const torch::NoGradGuard no_grad;
  const auto gather = [&](at::Tensor tensor) {
    tensor.mutable_grad() = at::Tensor();
    tensor.set_data(group.all_gather(tensor.detach(), Traffic::other));
  };
  for (const at::Tensor& tensor : parameters()) gather(tensor);
  for (const at::Tensor& tensor : buffers()) gather(tensor);
}

void keep_rows(const std::vector<at::Tensor*>& parameters, const std::vector<int64_t>& slots) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor* parameter : parameters) {
    const at::Tensor index = index_on(parameter->device(), slots);
    parameter->mutable_grad() = at::Tensor();
    parameter->set_data(
        at::index(*parameter, {index}));  // LibTorch's index_select() has no meta kernel.
  }
}

}  // namespace moesaic::nn
