// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/models/model.h"
#include "moesaic/models/router_config.h"

namespace moesaic {

/// A network of one MoE layer whose tokens are whole images, or of a single expert without a
/// router. Its configuration has an optional `router`, an ImageTokenRouterConfig.
class ImageTokenModel : public Model {
 public:
  void set_first_sample_index(int64_t image) override;
  std::vector<MoEBlock> moe_blocks() const override;
  int64_t tokens_per_image() const override { return moe.is_empty() ? 0 : 1; }
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override;
  /// Returns the paths of the router's settings and of "classes".
  SettingPaths setting_paths() const override;

  nn::MoELayer moe{nullptr};  ///< Null where there is a single expert without a router.

 protected:
  /// Takes the experts: as those of `moe`, registered under that name, whose router of `width`
  /// values per image starts at 0; or as the network "experts" where `router` is null.
  void set_layer(std::shared_ptr<nn::Experts> experts, const ImageTokenRouterConfig* router,
                 int64_t width, int64_t count, const at::Generator& generator);

  /// Returns the configuration with the list of the experts that are present.
  template <class Config>
  nlohmann::ordered_json config_of(Config config) const {
    if (!moe.is_empty()) {
      config.router->kept_experts = nn::kept_experts(moe->options().rule);
      config.router->stand_ins = moe->stand_in.defined();
    }
    return to_json(config);
  }

 private:
  std::shared_ptr<nn::Experts> layer_experts_;
};

}  // namespace moesaic
