// SPDX-License-Identifier: Apache-2.0
// A classifier of sequences by a GRU that is a mixture of experts.
#pragma once

#include <torch/nn/modules/linear.h>

#include "moesaic/models/gru/config.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// Reads an image of one channel row by row by an nn::GruMixture; a linear head classifies its last
/// state.
class Gru : public Model {
 public:
  Gru(GruConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  nlohmann::ordered_json config() const override { return to_json(config_); }
  void reset_head(int64_t classes) override;
  std::vector<MoEBlock> moe_blocks() const override { return {}; }
  std::vector<int64_t> input_shape() const override { return {1, config_.steps, config_.width}; }
  int64_t classes() const override { return config_.classes; }
  int64_t tokens_per_image() const override { return 0; }
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override;
  SettingPaths setting_paths() const override {
    return {.classes = "classes", .image_size = "steps"};
  }
  std::optional<torch::jit::Module> torchscript() const override;
  /// Returns "update" (z) and "reset" (r).
  std::map<std::string, at::Tensor> gates_over_time(const at::Tensor& images_BCHW) const override;

  nn::GruMixture gru{nullptr};
  torch::nn::Linear head{nullptr};

 private:
  GruConfig config_;
};

}  // namespace moesaic
