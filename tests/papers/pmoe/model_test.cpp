// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/pmoe.h"

#include "moesaic/nn/patches.h"
#include "moesaic/prune/plan.h"
#include "prune/plan_networks.h"
#include "support/matchers.h"
#include "support/models.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

PMoEConfig small_pmoe(int64_t classes = 2) {
  return {.channels = 2,
          .image_size = {6, 4},
          .patch_size = {3, 2},
          .num_classes = classes,
          .num_experts = 4,
          .num_neurons = 3,
          .init_std = 0.5,
          .router = PMoERouterConfig{.num_selected_patches = 2, .init_std = 0.5}};
}

Tensor some_images(int64_t count) {
  return randn({count, 2, 6, 4}, 7, torch::kFloat);
}

/// f of one image by plain loops over experts, selected patches and neurons (eqs. 1, 23).
Tensor plain_outputs(const PMoE& model, const Tensor& image_CHW) {
  const PMoEConfig& config = model.settings();
  const Tensor w = model.experts->w.to(torch::kDouble), a = model.experts->a.to(torch::kDouble);
  Tensor f = torch::zeros({a.size(2)}, torch::kDouble);
  std::vector<Tensor> patch;
  for (int64_t y = 0; y < 6; y += 3) {
    for (int64_t x = 0; x < 4; x += 2) {
      patch.push_back(image_CHW.slice(1, y, y + 3).slice(2, x, x + 2).flatten().to(torch::kDouble));
    }
  }
  for (int64_t s = 0; s < w.size(0); ++s) {
    std::vector<std::pair<size_t, double>> routed;
    if (config.router) {
      std::vector<double> value;
      for (const Tensor& x : patch) {
        value.push_back(model.moe->router->weight[s].to(torch::kDouble).dot(x).item<double>());
      }
      double sum = 0.0;
      for (int64_t l = 0; l < config.router->num_selected_patches; ++l) {
        const auto best = std::max_element(value.begin(), value.end());
        const bool one = config.router->gate == "one";
        routed.emplace_back(best - value.begin(), one ? 1.0 : std::exp(*best));
        sum += routed.back().second;
        *best = -1e9;
      }
      for (auto& item : routed) item.second /= config.router->gate == "one" ? 1.0 : sum;
    } else {
      for (size_t j = 0; j < patch.size(); ++j) routed.emplace_back(j, 1.0);
    }
    for (const auto& [j, gate] : routed) {
      f += gate * patch[j].unsqueeze(0).mm(w[s]).relu().mm(a[s]).squeeze(0);
    }
  }
  const int64_t selected = config.router ? config.router->num_selected_patches : 4;
  return f / (config.divisor == "patches" ? 4.0 : static_cast<double>(selected));
}

void expect_plain(const PMoEConfig& config) {
  PMoE model(config, 3);
  const Tensor images = some_images(5);
  const ModelOutput output = model.forward(images);
  for (int64_t i = 0; i < 5; ++i) {
    const Tensor f = plain_outputs(model, images[i]);
    expect_close(output.pre_logits[i], f, 1e-5);
    expect_close(output.logits[i], config.num_classes == 2 ? at::cat({f / 2, -f / 2}) : f, 1e-5);
  }
}

TEST(PMoE, IsTheModelOfThePaper) {
  for (const int64_t classes : {2, 4}) {
    for (const std::string gate : {"softmax_selected", "one"}) {
      PMoEConfig config = small_pmoe(classes);
      config.router->gate = gate;
      expect_plain(config);
      config.divisor = "selected";
      config.output = "by_class";
      expect_plain(config);
    }
    PMoEConfig cnn = small_pmoe(classes);
    cnn.router.reset();
    cnn.num_experts = 1;
    expect_plain(cnn);
  }
}

TEST(PMoE, OutputWeightsByClassShareOutTheExperts) {
  PMoEConfig config = small_pmoe();
  config.output = "by_class";
  EXPECT_TRUE(at::equal(PMoE(config, 1).experts->a.flatten(1).select(1, 0),
                        torch::tensor({1.0F, 1.0F, -1.0F, -1.0F})));
  config.num_classes = 4;
  EXPECT_TRUE(at::equal(PMoE(config, 1).experts->a.select(1, 0), torch::eye(4)));
}

TEST(PMoE, PruningRanksTheExpertsOfEachClassApart) {
  PMoEConfig config = small_pmoe();
  config.output = "by_class";
  PMoE model(config, 3);
  const Tensor router = model.moe->router->weight.detach();
  for (int64_t e = 0; e < 4; ++e) router[e].fill_(e == 1 ? 9 : 4 - e);
  const PrunePlan plan = plan_pruning(model, nullptr, "router-magnitude", KeepSpec::fraction(0.5));
  EXPECT_EQ(plan.layers[0].kept, (std::vector<int64_t>{1, 2}));
  apply_plan(model, plan);
  EXPECT_TRUE(at::equal(testing::rebuilt(model)->forward(some_images(5)).logits,
                        model.forward(some_images(5)).logits));
}

TEST(PMoE, SaysWhatDoesNotFit) {
  const auto problem = [](const std::function<void(PMoEConfig&)>& change) {
    PMoEConfig config = small_pmoe();
    change(config);
    return config_problem(config).text;
  };
  EXPECT_EQ(problem([](PMoEConfig&) {}), "");
  EXPECT_THAT(problem([](PMoEConfig& c) { c.router->num_selected_patches = 5; }),
              HasSubstr("cannot select 5 of 4 patches"));
  EXPECT_THAT(problem([](PMoEConfig& c) { c.patch_size.height = 4; }),
              HasSubstr("patches of 4 x 2 do not divide an image of 6 x 4; choose 3 x 2"));
  EXPECT_THAT(problem([](PMoEConfig& c) { c.router.reset(); }),
              HasSubstr("4 experts need a router"));
  EXPECT_THAT(problem([](PMoEConfig& c) {
                c.output = "by_class";
                c.num_experts = 3;
              }),
              HasSubstr("3 experts cannot be divided equally among 2 classes; choose 4"));
}

}  // namespace
}  // namespace moesaic
