// SPDX-License-Identifier: Apache-2.0
// Networks of "Towards Understanding Mixture of Experts in Deep Learning", section 3.2.
#pragma once

#include "moesaic/models/cluster_moe/config.h"
#include "moesaic/models/image_token_model.h"
#include "moesaic/nn/filter_experts.h"

namespace moesaic {

/// F(x) = gate_m f_m(x) with m = argmax h + r, h(x) = sum over patches p of Theta^T x^(p), r noise
/// and f_m eq. 3.1 for each class, or as printed a scalar whose sign is the class. Without a router
/// F = f_1. An input is an image of one channel whose P rows are its patches.
class ClusterMoE : public ImageTokenModel {
 public:
  ClusterMoE(ClusterMoEConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  nlohmann::ordered_json config() const override { return config_of(config_); }
  void reset_head(int64_t classes) override;
  std::vector<int64_t> input_shape() const override;
  int64_t classes() const override { return config_.classes; }
  SettingPaths setting_paths() const override;
  std::optional<torch::jit::Module> torchscript() const override;
  /// Returns "expert", the filters [K, J, d], and "router", the router's rows [E, 1, d].
  std::map<std::string, at::Tensor> weight_directions() const override;

  const ClusterMoEConfig& settings() const { return config_; }

  nn::FilterExperts experts{nullptr};  ///< The experts of `moe` where there is one.

 private:
  /// Inputs with what is derived from them once.
  struct Seen {
    at::Tensor inputs, sums;  ///< `sums` over the router's patches, [B, width of its input].
    uint64_t version = 0;
  };
  at::Tensor logits_of(const at::Tensor& y_Bo) const;
  at::Tensor router_input(const at::Tensor& images_BCHW);
  at::Tensor patch_sums(const at::Tensor& images_BCHW) const;

  ClusterMoEConfig config_;
  Seen last_;  ///< Cache, since a full batch is the same tensor at every step.
};

}  // namespace moesaic
