// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/experts.h"

#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "moesaic/ops/combine.h"
#include "moesaic/parallel/group.h"
#include "script/parts.h"

namespace moesaic::nn {
namespace {

/// Returns the routing with all gates 1.
Routing without_gates(Routing routing) {
  routing.gate = at::ones_like(routing.gate);
  return routing;
}

/// Returns the row offsets of the experts; on the meta device those of an even split.
std::vector<int64_t> row_offsets(const Routing& routing) {
  const int64_t experts = routing.experts();
  std::vector<int64_t> offsets;
  if (routing.offsets.is_meta()) {
    for (int64_t e = 0; e <= experts; ++e) offsets.push_back(routing.row_bound() * e / experts);
    return offsets;
  }
  const at::Tensor numbers = routing.offsets.to(at::kCPU, at::kLong);
  const auto* const first = numbers.const_data_ptr<int64_t>();
  return {first, first + experts + 1};
}

/// Concatenates the experts' rows, followed by zeros for rows without an expert.
at::Tensor stacked(std::vector<at::Tensor> parts, int64_t unused) {
  if (parts.empty()) return {};
  if (unused > 0) {
    parts.push_back(at::zeros({unused, parts.front().size(1)}, parts.front().options()));
  }
  return at::cat(parts);
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

ExpertRows for_each_expert(
    const at::Tensor& rows, const Routing& routing,
    const std::function<ExpertRows(int64_t slot, const at::Tensor& own)>& compute) {
  const std::vector<int64_t> offsets = row_offsets(routing);
  std::vector<at::Tensor> outputs, embeddings;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    const ExpertRows own =
        compute(static_cast<int64_t>(e), rows.slice(0, offsets[e], offsets[e + 1]));
    if (own.outputs.defined()) outputs.push_back(own.outputs);
    if (own.embeddings.defined()) embeddings.push_back(own.embeddings);
  }
  const int64_t unused = rows.size(0) - offsets.back();
  return {stacked(std::move(outputs), unused), stacked(std::move(embeddings), unused)};
}

std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
}

void replace_value(at::Tensor tensor, const at::Tensor& value) {
  tensor.mutable_grad() = at::Tensor();
  tensor.set_data(value);
}

void Experts::gather(const Group& group) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors_of(*this)) {
    replace_value(tensor, group.all_gather(tensor.detach(), Traffic::other));
  }
}

void Experts::keep(const std::vector<int64_t>& slots) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors_of(*this)) {
    // LibTorch's index_select() has no meta kernel.
    replace_value(tensor, at::index(tensor, {index_on(tensor.device(), slots)}));
  }
}

ExpertsScript Experts::script_source() const {
  fail("torchscript: these experts have no such form; {}", script::kOtherFormat);
}

}  // namespace moesaic::nn
