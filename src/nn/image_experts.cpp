// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/image_experts.h"

#include <torch/torch.h>

#include "moesaic/ops/dispatch.h"
#include "moesaic/parallel/group.h"

namespace moesaic::nn {
namespace {

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
  if (unused > 0) {
    parts.push_back(at::zeros({unused, parts.front().size(1)}, parts.front().options()));
  }
  return at::cat(parts);
}

}  // namespace

ImageExpertsImpl::ImageExpertsImpl(const std::string& network, int64_t experts,
                                   const ImageNetworkOptions& options,
                                   const at::Generator& generator) {
  for (int64_t e = 0; e < experts; ++e) {
    networks_.push_back(
        register_module(std::to_string(e), make_image_network(network, options, generator)));
  }
}

at::Tensor ImageExpertsImpl::idle_experts(const Routing& routing) const {
  at::Tensor rows = routing.offsets.is_meta() ? at::ones({count()}, at::kLong)
                                              : routing.offsets.diff().to(at::kCPU, at::kLong);
  // Where another process has rows, the experts' batch norms need this one too.
  if (const auto parts = share().parts()) parts->all_reduce(rows, Traffic::batch_norm);
  return rows.eq(0);
}

ExpertRows ImageExpertsImpl::compute(const at::Tensor& images_TCHW, const Routing& routing,
                                     const at::Generator&) {
  std::vector<int64_t> shape = images_TCHW.sizes().vec();
  shape[0] = routing.row_bound();
  const at::Tensor rows_ACHW = dispatch(images_TCHW.flatten(1), routing).view(shape);
  const std::vector<int64_t> offsets = row_offsets(routing);
  std::vector<at::Tensor> features, outputs;
  const at::Tensor idle = idle_experts(routing);
  for (size_t e = 0; e < networks_.size(); ++e) {
    const bool last_chance = e + 1 == networks_.size() && features.empty();  // Runs for the shapes.
    if (idle[static_cast<int64_t>(e)].item<bool>() && !last_chance) continue;
    const at::Tensor own = rows_ACHW.slice(0, offsets[e], offsets[e + 1]);
    features.push_back(networks_[e]->features(own));
    outputs.push_back(networks_[e]->head->forward(features.back()));
  }
  const int64_t unused = shape[0] - offsets.back();
  return {stacked(std::move(outputs), unused), stacked(std::move(features), unused)};
}

void ImageExpertsImpl::keep(const std::vector<int64_t>& slots) {
  std::vector<std::shared_ptr<ImageNetwork>> kept;
  for (const int64_t slot : slots) kept.push_back(network(slot));
  for (int64_t e = 0; e < count(); ++e) unregister_module(std::to_string(e));
  networks_.clear();
  for (auto& network : kept) {
    networks_.push_back(register_module(std::to_string(networks_.size()), std::move(network)));
  }
}

int64_t ImageExpertsImpl::outputs() const {
  return networks_.front()->head->options.out_features();
}

ExpertMatrices ImageExpertsImpl::matrices(int64_t slot, const ParameterValues& values) const {
  ExpertMatrices matrices;
  for (const at::Tensor& parameter : network(slot)->parameters()) {
    if (parameter.dim() < 2) continue;  // A bias, or the scale of a normalisation.
    matrices.hidden.push_back(values(parameter).flatten(1));
  }
  return matrices;
}

void ImageExpertsImpl::reset_heads(int64_t classes) {
  for (const auto& network : networks_) network->reset_head(classes);
}

}  // namespace moesaic::nn
