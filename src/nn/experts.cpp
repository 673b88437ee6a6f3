// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/experts.h"

#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "moesaic/nn/script.h"

namespace moesaic::nn {
namespace {

/// Concatenates the experts' rows, followed by zeros for rows without an expert.
at::Tensor stacked(std::vector<at::Tensor> parts, int64_t unused) {
  if (parts.empty()) return {};
  if (unused > 0) {
    parts.push_back(at::zeros({unused, parts.front().size(1)}, parts.front().options()));
  }
  return at::cat(parts);
}

}  // namespace

at::Tensor read_parameter(const at::Tensor& parameter) {
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

ExpertRows for_each_expert(
    const at::Tensor& rows, const Routing& routing,
    const std::function<ExpertRows(int64_t slot, const at::Tensor& own)>& compute) {
  const int64_t experts = routing.num_experts();
  at::Tensor offsets = routing.offsets;
  if (!offsets.is_meta()) offsets = offsets.to(at::kCPU, at::kLong).contiguous();
  const auto begin = [&](int64_t e) {  // On the meta device that of a uniform load.
    return offsets.is_meta() ? rows.size(0) * e / experts : offsets.const_data_ptr<int64_t>()[e];
  };
  std::vector<at::Tensor> outputs, embeddings;
  for (int64_t e = 0; e < experts; ++e) {
    const ExpertRows own = compute(e, rows.slice(0, begin(e), begin(e + 1)));
    if (own.outputs.defined()) outputs.push_back(own.outputs);
    if (own.embeddings.defined()) embeddings.push_back(own.embeddings);
  }
  const int64_t unused = rows.size(0) - begin(experts);
  return {stacked(std::move(outputs), unused), stacked(std::move(embeddings), unused)};
}

std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
}

at::Tensor average_experts(const at::Tensor& stacked, const at::Tensor& weights_KK) {
  const at::Tensor values = stacked.detach().to(at::kDouble);
  return weights_KK.to(values.options())
      .mm(values.reshape({values.size(0), -1}))
      .view(values.sizes())
      .to(stacked.scalar_type());
}

void replace_value(at::Tensor tensor, const at::Tensor& value) {
  tensor.mutable_grad() = at::Tensor();
  tensor.set_data(value);
}

void Experts::keep(const std::vector<int64_t>& slots) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors_of(*this)) {
    // LibTorch's index_select() has no meta kernel.
    replace_value(tensor, at::index(tensor, {index_on(tensor.device(), slots)}));
  }
}

void Experts::average(const at::Tensor& weights_KK) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors_of(*this)) {
    replace_value(tensor, average_experts(tensor, weights_KK));
  }
}

void Experts::use_int8() {
  fail_usage("precision int8 is for experts that are MLPs; leave it out");
}

ExpertsScript Experts::script_source() const {
  fail("torchscript: these experts have no such form; {}", script::kFormatHint);
}

}  // namespace moesaic::nn
