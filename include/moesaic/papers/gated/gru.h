// SPDX-License-Identifier: Apache-2.0
// A classifier of sequences by a GRU that is a mixture of experts.
#pragma once

#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <string>

#include "moesaic/config/schema.h"
#include "moesaic/models/model.h"
#include "moesaic/nn/gated_mixture.h"

namespace moesaic {

inline constexpr char kGru[] = "gru";

struct GruConfig {
  std::string name = kGru;
  int64_t steps = 28, width = 28, hidden = 64, classes = 10;
  std::string view = nn::kGruViewNames.front();
};
template <class Fields>
void describe(Fields& f, GruConfig& c) {
  f("name", c.name, "which model", required, one_of({kGru}));
  f("steps", c.steps, "T, rows of an image, which are read one after the other", between(1, 4096));
  f("width", c.width, "d, numbers of a row", between(1, 65536));
  f("hidden", c.hidden, "m, numbers of the state", between(1, 65536));
  f("classes", c.classes, "outputs of the head", between(1, 65536));
  f("view", c.view, "the candidate state as a mixture of experts, or as torch.nn.GRU has it",
    one_of({nn::kGruViewNames.begin(), nn::kGruViewNames.end()}));
}

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
