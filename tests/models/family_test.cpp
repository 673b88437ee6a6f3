// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/family.h"

#include <torch/torch.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/support.h"
#include "moesaic/models/registry.h"
#include "moesaic/nn/module_state.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

Value only_name(const std::string& family) {
  return Value::from_json({{"name", family}}, "model");
}

TEST(Families, BuiltInOnesAreThere) {
  for (const char* name : {"cluster-moe", "e3", "image-moe", "vmoe"}) {
    EXPECT_NE(families().find(name), nullptr) << name;
    EXPECT_EQ(build_meta_model(only_name(name))->config().at("name"), name);
  }
  EXPECT_FALSE(families().at("e3").is_listed);
  EXPECT_TRUE(families().at("vmoe").is_listed);
  EXPECT_EQ(families().at("e3").help(), families().at("vmoe").help());
}

/// Whether the path of a setting, if there is one, leads to one.
void expect_setting(const nlohmann::ordered_json& config, std::string path) {
  if (path.empty()) return;
  std::ranges::replace(path, '.', '/');
  EXPECT_TRUE(config.contains(nlohmann::ordered_json::json_pointer("/" + path)))
      << config.at("name") << " has no " << path;
}

TEST(Families, SettingPathsLeadToSettings) {
  for (const char* name : {"cluster-moe", "e3", "image-moe", "vmoe"}) {
    const auto model = build_meta_model(only_name(name));
    const SettingPaths paths = model->setting_paths();
    for (const std::string& path :
         {paths.router_name, paths.router_noise, paths.router_noise_kind, paths.rows_per_expert,
          paths.capacity_factor, paths.group_size, paths.members, paths.classes, paths.image_size,
          paths.channels, paths.kept_experts, paths.pruned_selection}) {
      expect_setting(model->config(), path);
    }
    EXPECT_FALSE(paths.classes.empty()) << name;
    EXPECT_FALSE(paths.kept_experts.empty()) << name;
  }
}

TEST(Families, SayWhatFineTuningChanges) {
  const auto vmoe = build_meta_model(only_name("vmoe"));
  const auto image = build_meta_model(only_name("image-moe"));
  EXPECT_TRUE(vmoe->may_differ_from_pretrained("head.weight"));
  EXPECT_FALSE(vmoe->may_differ_from_pretrained("blocks.1.moe.experts.w1"));
  for (const char* name : {"position_embedding", "pre_logits.bias"}) {
    EXPECT_TRUE(vmoe->may_differ_from_pretrained(name)) << name;
    EXPECT_FALSE(image->may_differ_from_pretrained(name)) << name;
  }
  EXPECT_TRUE(image->may_differ_from_pretrained("experts.0.head.weight"));
  EXPECT_FALSE(vmoe->may_differ_from_pretrained("blocks.1.moe.router.weight"));
}

TEST(Families, HaveTheSameDirectionsWithoutNumbers) {
  std::set<std::string> compared;
  for (const std::string& name : families().names()) {
    const auto shapes = build_meta_model(only_name(name))->weight_directions();
    if (shapes.empty()) continue;
    const auto real = build_model(only_name(name), 1)->weight_directions();
    ASSERT_EQ(shapes.size(), real.size()) << name;
    for (const auto& [part, w] : real) EXPECT_EQ(shapes.at(part).sizes(), w.sizes()) << name;
    compared.insert(name);
  }
  EXPECT_THAT(compared,
              ::testing::IsSupersetOf({"cluster-moe", "latent-moe", "pattern-moe", "pmoe"}));
}

TEST(Families, ClustersCompareTheirWeightsWithDirections) {
  const auto mixture = build_model(only_name("cluster-moe"), 1);
  const auto directions = mixture->weight_directions();
  ASSERT_EQ(directions.size(), 2u);
  const at::Tensor filters = directions.at("expert"), router = directions.at("router");
  EXPECT_THAT(filters.sizes().vec(), ElementsAre(8, 16, 50));
  EXPECT_THAT(router.sizes().vec(), ElementsAre(8, 1, 50));
  EXPECT_FALSE(filters.requires_grad() || router.requires_grad());
  const at::Tensor w = state_of(*mixture).at("moe.experts.w");
  EXPECT_TRUE(torch::equal(filters[3][2], w[3].select(1, 2)));
  EXPECT_TRUE(build_meta_model(only_name("vmoe"))->weight_directions().empty());
}

}  // namespace
}  // namespace moesaic
