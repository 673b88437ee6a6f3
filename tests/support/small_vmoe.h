// SPDX-License-Identifier: Apache-2.0
// Networks small enough for every case of pruning and export, with every parameter random.
#pragma once

#include <memory>

#include "moesaic/models/vmoe/vmoe.h"
#include "support/tensors.h"

namespace moesaic::testing {

/// Blocks 1 and 3 have 6 experts, of which a token selects 2. Images are [1, 8, 8].
inline VMoEConfig small_vmoe_config() {
  VMoEConfig config;
  config.image_size = 8;
  config.patch_size = 2;
  config.hidden_size = 12;
  config.num_classes = 5;
  config.encoder.num_layers = 4;
  config.encoder.num_heads = 3;
  config.encoder.mlp_dim = 20;
  config.encoder.moe.layers = {1, 3};
  config.encoder.moe.num_experts = 6;
  return config;
}

inline std::shared_ptr<VMoE> small_vmoe(const VMoEConfig& config = small_vmoe_config(),
                                        uint64_t seed = 1) {
  auto model = std::make_shared<VMoE>(config, seed);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    parameter.add_(randn(parameter.sizes().vec(), ++seed, torch::kFloat) * 0.3);
  }
  return model;
}

inline at::Tensor small_images(int64_t count, uint64_t seed = 7) {
  return randn({count, 1, 8, 8}, seed, torch::kFloat);
}

inline ModelOutput run(Model& model, const at::Tensor& images) {
  const torch::NoGradGuard no_grad;
  return model.forward(images);
}

}  // namespace moesaic::testing

namespace moesaic {

using testing::run;
using testing::small_images;
using testing::small_vmoe;
using testing::small_vmoe_config;

}  // namespace moesaic
