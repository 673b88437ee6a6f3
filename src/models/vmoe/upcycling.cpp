// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "moesaic/base/random.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "moesaic/nn/init.h"

namespace moesaic {

VMoEConfig upcycled_config(VMoEConfig dense, const Upcycling& upcycling) {
  VMoEMoeConfig& moe = dense.encoder.moe;
  moe.layers = upcycling.layers;
  moe.num_experts = upcycling.num_experts;
  moe.mlp_dim.reset();
  moe.router.num_selected_experts = upcycling.num_selected_experts;
  moe.router.gate = "softmax_selected";
  return dense;
}

std::string dense_name(const std::string& name) {
  constexpr std::string_view kExperts = ".moe.experts.";
  const size_t at = name.find(kExperts);
  if (at == std::string::npos) return "";
  const std::string part = name.substr(at + kExperts.size());
  return fmt::format("{}.mlp.fc{}.{}", name.substr(0, at), part.back(),
                     part.front() == 'w' ? "weight" : "bias");
}

at::Tensor expert_copies(const at::Tensor& dense, const std::string& name, at::IntArrayRef shape,
                         double noise, uint64_t seed) {
  const at::Tensor expert = dense.dim() == 2 ? dense.t() : dense;
  const at::Tensor all = expert.unsqueeze(0).expand(shape).contiguous();
  if (noise == 0.0 || dense.dim() < 2 || dense.is_meta()) return all;
  const double scale = noise * dense.std().item<double>();
  const at::Generator random = nn::make_generator(mix64(seed + stream_id(name)));
  return all + at::empty_like(all).normal_(0.0, scale, random);
}

std::shared_ptr<Model> VMoE::upcycled(const Upcycling& upcycling, uint64_t seed) const {
  if (!config_.encoder.moe.layers.empty())
    fail_usage("the network has experts already; leave upcycle out");
  std::optional<MetaDeviceGuard> on_meta;
  if (device().is_meta()) on_meta.emplace();
  auto mixture = std::make_shared<VMoE>(upcycled_config(config_, upcycling), seed);
  const torch::NoGradGuard no_grad;
  const TensorMap dense = state_of(*this);
  for (const auto& [name, tensor] : state_of(*mixture)) {
    if (const auto found = dense.find(name); found != dense.end()) tensor.copy_(found->second);
    if (const auto found = dense.find(dense_name(name)); found != dense.end()) {
      tensor.copy_(expert_copies(found->second, name, tensor.sizes(), upcycling.noise, seed));
    }
  }
  return mixture;
}

}  // namespace moesaic
