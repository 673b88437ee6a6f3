// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/models/model.h"
#include "moesaic/ops/routing.h"

namespace moesaic {

/// A network of at most one MoE layer with the settings of a Config, which list the experts that
/// pruning left under setting_paths().kept_experts. By default it has one output, and no head.
template <class Config>
class OneLayerModel : public Model {
 public:
  void set_first_sample_index(int64_t image) override {
    if (!moe.is_empty()) moe->router->set_first_token_index(image);
  }
  Json config() const override { return with_kept_experts(to_json(config_), *this); }
  void reset_head(int64_t wanted) override {
    fail_usage("{}: {} cannot get a new head for {} classes; leave new_head out", config_.name,
               num_classes() == 1 ? "the model has one output, so it"
                                  : "the output layer is fixed, so the model",
               wanted);
  }
  std::vector<MoEBlock> moe_blocks() const override {
    if (moe.is_empty()) return {};
    return {{.block = 0, .layer = moe}};
  }
  int64_t num_classes() const override {
    if constexpr (requires(Config c) { c.num_classes; }) return config_.num_classes;
    return 1;
  }
  int64_t tokens_per_image() const override { return moe.is_empty() ? 0 : 1; }
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override {
    return layer_flops(moe_blocks().at(0), tokens_per_image(), rows_per_token);
  }

  /// Returns the configuration that the network was built from.
  const Config& settings() const { return config_; }

  nn::MoELayer moe{nullptr};  ///< Null where nothing is routed.

 protected:
  /// Takes the configuration; the derived class makes its submodules.
  explicit OneLayerModel(Config config) : config_(std::move(config)) {}

  /// Returns the router's rows whose experts exist as weight_directions(): [K, 1, d].
  at::Tensor router_directions() const {
    // index_select() has no shapes without numbers (meta), by which measurements are planned.
    return moe->router->weight.detach().index({index_on(device(), moe->kept())}).unsqueeze(1);
  }

  Config config_;
};

}  // namespace moesaic
