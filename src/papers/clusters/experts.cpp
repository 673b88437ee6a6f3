// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/clusters.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "moesaic/nn/script.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/filter_experts.h"
#include "moesaic/parallel/process_group.h"

namespace moesaic::nn {
namespace {

// Children are networks of their own.
constexpr char kNetworkLoop[] = R"(
def one_by_one(self, rows: Tensor, counts: List[int]) -> Tensor:
    parts = rows.split(counts)
    outputs = [rows.new_zeros([0, {}])]
)";
constexpr char kOneNetwork[] = R"(    if counts[{0}] > 0:
        outputs.append(getattr(self, "{0}").forward(parts[{0}]))
)";

}  // namespace

ImageExpertsImpl::ImageExpertsImpl(const std::string& network, int64_t experts,
                                   const ImageNetworkOptions& options,
                                   const at::Generator& generator) {
  for (int64_t e = 0; e < experts; ++e) {
    networks_.push_back(
        register_module(std::to_string(e), make_image_network(network, options, generator)));
  }
}

ExpertRows ImageExpertsImpl::compute(const at::Tensor& images_TCHW, const Routing& routing,
                                     const at::Generator&) {
  std::vector<int64_t> shape = images_TCHW.sizes().vec();
  shape[0] = routing.max_rows();
  const at::Tensor rows_ACHW = dispatch(images_TCHW.flatten(1), routing).view(shape);
  at::Tensor rows_K = routing.offsets.is_meta() ? at::ones({num_experts()}, at::kLong)
                                                : routing.offsets.diff().to(at::kCPU, at::kLong);
  // Where another process has rows, the experts' batch norms need this one too.
  if (const auto process_group = batch_shard().process_group())
    process_group->all_reduce(rows_K, Traffic::batch_norm);
  const at::Tensor idle = rows_K.eq(0);
  const bool all_idle = idle.all().item<bool>();
  return for_each_expert(rows_ACHW, routing, [&](int64_t slot, const at::Tensor& own) {
    const bool is_idle = idle[slot].item<bool>();
    // One runs for the shapes, and where its rows travel so that all processes have gradients.
    if (is_idle && !(all_idle && slot + 1 == num_experts())) return ExpertRows{};
    const auto& expert = network(slot);
    if (is_idle) expert->eval();  // No rows have no moments.
    const at::Tensor features = expert->features(own);
    const ExpertRows rows{expert->head->forward(features), features};
    if (is_idle) expert->train(is_training());
    return rows;
  });
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

void ImageExpertsImpl::keep_local(const std::vector<int64_t>& slots) {
  all_ = networks_;
  set_networks({all_.begin() + slots.front(), all_.begin() + slots.back() + 1}, slots.front());
  for (const auto& network : all_) {
    if (std::find(networks_.begin(), networks_.end(), network) != networks_.end()) continue;
    for (const at::Tensor& tensor : tensors_of(*network)) {
      replace_value(tensor, at::empty({0}, tensor.options()));
    }
  }
}

void ImageExpertsImpl::gather(const ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  for (size_t own = 0; own < networks_.size(); ++own) {
    const std::vector<at::Tensor> tensors = tensors_of(*networks_[own]);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor of_group =
          group.all_gather(tensors[i].detach().unsqueeze(0), Traffic::other);
      for (int64_t member = 0; member < group.size(); ++member) {
        const auto place = static_cast<size_t>(member) * networks_.size() + own;
        replace_value(tensors_of(*all_[place])[i], of_group[member].clone());
      }
    }
  }
  set_networks(std::exchange(all_, {}));
}

ExpertMatrices ImageExpertsImpl::matrices(int64_t slot, const ParameterReader& values) const {
  ExpertMatrices matrices;
  for (const at::Tensor& parameter : network(slot)->parameters()) {
    if (parameter.dim() < 2) continue;  // A bias, or the scale of a normalisation.
    matrices.hidden.push_back(values(parameter).flatten(1));
  }
  return matrices;
}

ExpertsScript ImageExpertsImpl::script_source() const {
  std::string source = fmt::format(kNetworkLoop, num_outputs());
  for (int64_t e = 0; e < num_experts(); ++e) source += fmt::format(kOneNetwork, e);
  return {source + "    return torch.cat(outputs)\n"};
}

FilterExpertsImpl::FilterExpertsImpl(const ClusterMoEConfig& config, int64_t experts,
                                     const at::Generator& generator)
    : num_patches_(config.num_patches),
      num_outputs_(config.has_scalar_output ? 1 : config.num_classes),
      activation_(activation_from_name(config.activation)) {
  w = register_parameter("w", torch::empty({experts, config.width, config.num_filters}));
  if (config.bias) b = register_parameter("b", torch::empty({experts, config.num_filters}));
  const torch::NoGradGuard no_grad;
  const double bound = config.init_scale / std::sqrt(static_cast<double>(config.width));
  for (const at::Tensor& parameter : parameters()) {
    config.init == "normal" ? parameter.normal_(0.0, config.init_scale, generator)
                            : parameter.uniform_(-bound, bound, generator);
  }
}

ExpertRows FilterExpertsImpl::compute(const at::Tensor& x_TPd, const Routing& routing,
                                      const at::Generator&) {
  const NoAutocastGuard no_autocast;
  const at::Tensor bias =
      b.defined() ? b : at::zeros({num_experts(), w.size(2)}, w.options().requires_grad(false));
  return {filter_experts(x_TPd, routing, {w, bias}, num_outputs_, activation_), {}};
}

// Outputs sum their filters over the patches [A, P, d].
ExpertsScript FilterExpertsImpl::script_source() const {
  using Names = std::vector<std::string>;
  return {script::expert_loop_source(
      num_outputs_, b.defined() ? Names{"w", "b"} : Names{"w"},
      fmt::format("hidden = torch.matmul(x, w) + {}", b.defined() ? "b" : "0.0"),
      fmt::format("{}.unflatten(2, [{}, -1]).sum([1, 3])", script::activation_source(activation_),
                  num_outputs_))};
}

}  // namespace moesaic::nn
