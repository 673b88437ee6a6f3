// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/image_experts.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

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

/// Returns parameters and buffers.
std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
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
    const bool is_idle = idle[static_cast<int64_t>(e)].item<bool>();
    // One runs for the shapes, and where its rows travel so that all processes have gradients.
    const bool last_chance = e + 1 == networks_.size() && features.empty();
    if (is_idle && !last_chance) continue;
    const at::Tensor own = rows_ACHW.slice(0, offsets[e], offsets[e + 1]);
    if (is_idle) networks_[e]->eval();  // No rows have no moments.
    features.push_back(networks_[e]->features(own));
    outputs.push_back(networks_[e]->head->forward(features.back()));
    if (is_idle) networks_[e]->train(is_training());
  }
  const int64_t unused = shape[0] - offsets.back();
  return {stacked(std::move(outputs), unused), stacked(std::move(features), unused)};
}

void ImageExpertsImpl::set_networks(Networks networks, int64_t first) {
  for (const std::string& name : named_children().keys()) unregister_module(name);
  networks_ = std::move(networks);
  for (const auto& network : networks_) {
    register_module(std::to_string(first++), network);
    network->train(is_training());  // While it was no child it was not told.
  }
}

void ImageExpertsImpl::keep(const std::vector<int64_t>& slots) {
  Networks kept;
  for (const int64_t slot : slots) kept.push_back(network(slot));
  set_networks(std::move(kept));
}

void ImageExpertsImpl::share_out(const std::vector<int64_t>& slots) {
  all_ = networks_;
  set_networks({all_.begin() + slots.front(), all_.begin() + slots.back() + 1}, slots.front());
  for (const auto& network : all_) {
    if (std::find(networks_.begin(), networks_.end(), network) != networks_.end()) continue;
    for (at::Tensor& tensor : tensors_of(*network)) {
      tensor.mutable_grad() = at::Tensor();
      tensor.set_data(at::empty({0}, tensor.options()));
    }
  }
}

void ImageExpertsImpl::gather(const Group& group) {
  const torch::NoGradGuard no_grad;
  for (size_t own = 0; own < networks_.size(); ++own) {
    const std::vector<at::Tensor> tensors = tensors_of(*networks_[own]);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor of_group =
          group.all_gather(tensors[i].detach().unsqueeze(0), Traffic::other);
      for (int64_t member = 0; member < group.size(); ++member) {
        const auto place = static_cast<size_t>(member) * networks_.size() + own;
        at::Tensor tensor = tensors_of(*all_[place])[i];
        tensor.mutable_grad() = at::Tensor();
        tensor.set_data(of_group[member].clone());
      }
    }
  }
  set_networks(std::exchange(all_, {}));
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
