// SPDX-License-Identifier: Apache-2.0
// Networks of "Towards Understanding Mixture of Experts in Deep Learning", section 3.2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"
#include "moesaic/models/router_config.h"
#include "moesaic/nn/filter_experts.h"
#include "moesaic/ops/activation.h"
#include "moesaic/papers/clusters/image_token_model.h"

namespace moesaic {

inline constexpr char kClusterMoE[] = "cluster-moe";

struct ClusterRouterConfig : ImageTokenRouterConfig {
  ClusterRouterConfig() {
    gate = "logit";
    noise_in_evaluation = true;
  }

  int64_t width = 0;
};
template <class Fields>
void describe(Fields& f, ClusterRouterConfig& c) {
  describe(f, static_cast<ImageTokenRouterConfig&>(c));
  f("width", c.width,
    "numbers that a filter sees: an input's pieces of this width are summed; 0: whole patches",
    between(0, 65536));
}

struct ClusterMoEConfig {
  std::string name = kClusterMoE;
  int64_t patches = 4, width = 50, classes = 2, experts = 8, filters = 16;
  std::string activation = "cubic";
  std::string init = "uniform";
  double init_scale = 0.001;
  bool bias = true, scalar = false;
  std::optional<ClusterRouterConfig> router = ClusterRouterConfig{};
};
template <class Fields>
void describe(Fields& f, ClusterMoEConfig& c) {
  f("name", c.name, "which model", required, one_of({kClusterMoE}));
  f("patches", c.patches, "P of an input", between(1, 4096));
  f("width", c.width, "d of a patch", between(1, 65536));
  f("classes", c.classes, "outputs of an expert, unless it is scalar", between(1, 65536));
  f("experts", c.experts, "M, two-layer convolutional networks", between(1, 4096));
  f("filters", c.filters, "J of an expert, shared out among its outputs", between(1, 1048576));
  f("activation", c.activation, "what is applied to each filter",
    one_of(std::vector<std::string>(kActivationNames.begin(), kActivationNames.end())));
  f("init", c.init, "distribution of the initial filters; the router starts at 0",
    one_of({"uniform", "normal"}));
  f("init_scale", c.init_scale, "uniform: on +- this / sqrt(d); normal: the deviation",
    between(1e-12, 1e6));
  f("bias", c.bias, "whether filters have a bias");
  f("scalar", c.scalar,
    "one output f of an expert for two classes, whose logits are 0 and f: the cross entropy is the "
    "logistic loss");
  f("router", c.router,
    "switch over the sum of the patches, or of their pieces; null: a single expert without one");
}
/// Checks that outputs divide filters, that scalar experts have two classes, and that pieces divide
/// a patch; one expert without a router.
ConfigProblem config_problem(const ClusterMoEConfig& config);

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
