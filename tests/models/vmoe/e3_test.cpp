// SPDX-License-Identifier: Apache-2.0
// Ensembles: who sees whom, in which order.
#include <cmath>

#include "base/support.h"
#include "moesaic/config/document.h"
#include "moesaic/export/predict.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/mlp_experts.h"
#include "moesaic/ops/losses.h"
#include "moesaic/prune/plan.h"
#include "moesaic/train/objective.h"
#include "support/matchers.h"
#include "support/models.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

constexpr int64_t kTokens = 17, kMembers = 3;

/// Three members of two experts each, in blocks 1 and 3.
VMoEConfig e3_config() {
  VMoEConfig config = small_vmoe_config();
  config.name = kE3;
  config.encoder.moe.ensemble_size = kMembers;
  config.encoder.moe.router.k = 1;
  return config;
}

TEST(E3, HasARowOfLogitsForEachMemberOfEachImage) {
  const auto model = small_vmoe(e3_config());
  const ModelOutput out = run(*model, small_images(4));
  EXPECT_EQ(out.logits.sizes(), (std::vector<int64_t>{4 * kMembers, 5}));
  EXPECT_EQ(out.pre_logits.sizes(), (std::vector<int64_t>{4 * kMembers, 12}));
  EXPECT_EQ(out.routings[0].logits_TE.sizes(), (std::vector<int64_t>{4 * kTokens * kMembers, 6}));
  EXPECT_EQ(model->tokens_per_image(), kTokens * kMembers);
  const at::Tensor one = run(*model, small_images(4).slice(0, 2, 3)).logits;
  expect_close(one, out.logits.slice(0, 2 * kMembers, 3 * kMembers), 1e-5);
}

TEST(E3, AMemberUsesItsOwnExpertsOnly) {
  const auto model = small_vmoe(e3_config());
  const at::Tensor images = small_images(4);
  const at::Tensor before = run(*model, images).logits;
  for (MoEBlock& block : model->moe_blocks()) {  // Experts 2 and 3 are of member 1.
    block.layer->experts->as<nn::MlpExperts>()->w1.detach().narrow(0, 2, 2).mul_(3.0);
    block.layer->router->weight.detach().narrow(0, 2, 2).mul_(-1.0);
  }
  const at::Tensor after = run(*model, images).logits;
  for (int64_t row = 0; row < 4 * kMembers; ++row) {
    EXPECT_EQ(torch::equal(after[row], before[row]), row % kMembers != 1) << row;
  }
}

TEST(E3, RoutesTokensInTheOrderImagePlaceMember) {
  const auto model = small_vmoe(e3_config());
  const ModelOutput out = run(*model, small_images(2));
  const at::Tensor combine = combine_weights(out.routings[0].routing);
  const at::Tensor& logits = out.routings[0].logits_TE;
  for (int64_t token = 0; token < combine.size(0); ++token) {
    for (int64_t expert = 0; expert < 6; ++expert) {
      const bool own = expert / 2 == token % kMembers;
      EXPECT_EQ(std::isfinite(logits[token][expert].item<double>()), own);
      EXPECT_TRUE(own || combine[token][expert].item<double>() == 0.0);
    }
  }
  EXPECT_TRUE((combine > 0).sum(1).eq(1).all().item<bool>());
}

TEST(E3, NoiseIsThatOfAMembersExperts) {
  VMoEConfig config = e3_config();
  config.encoder.moe.router.noise_std = 4.0;
  const auto model = small_vmoe(config);
  const ModelOutput out = model->forward(small_images(20), nn::make_generator(3));
  const RoutingRecord& record = out.routings[0];
  EXPECT_EQ(record.noise_std, 2.0);  // 4 over two experts
  const at::Tensor own = record.logits_TE.isfinite();
  const at::Tensor noise = (record.noisy_logits_TE - record.logits_TE).masked_select(own);
  EXPECT_NEAR(noise.std().item<double>(), 2.0, 0.1);
  EXPECT_TRUE(torch::equal(record.noisy_logits_TE.isfinite(), own));
}

TEST(E3, EveryParameterGetsAGradient) {
  const auto model = small_vmoe(e3_config());
  const ModelOutput out = model->forward(small_images(6));
  const at::Tensor labels = torch::arange(6).remainder(5).repeat_interleave(kMembers);
  classification_terms("softmax", {0.0, {{"importance", 0.1}, {"gshard", 0.1}}}, out, labels)
      .loss.backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
    EXPECT_GT(item.value().grad().abs().sum().item<double>(), 0.0) << item.key();
  }
}

TEST(E3, AuxiliaryLossesAreMeansOverMembersAndGroups) {
  VMoEConfig config = e3_config();
  config.encoder.moe.group_size = kTokens * kMembers * 2;
  config.encoder.moe.layers = {1};
  config.encoder.moe.router.importance_loss_weight = 0.5;
  const auto model = small_vmoe(config);
  const ModelOutput out = run(*model, small_images(4));
  const at::Tensor logits = out.routings[0].logits_TE.view({2, 2 * kTokens, kMembers, 6});
  double importance = 0.0, gshard = 0.0;
  for (int64_t group = 0; group < 2; ++group) {
    for (int64_t member = 0; member < kMembers; ++member) {
      const at::Tensor own = logits[group].select(1, member).narrow(1, 2 * member, 2);
      importance += importance_loss(own, 0).item<double>() / (2 * kMembers);
      gshard += gshard_loss(own, 0).item<double>() / (2 * kMembers);
    }
  }
  const at::Tensor labels = torch::zeros({4 * kMembers}, torch::kLong);
  const std::map<std::string, double> weights = aux_loss_weights({{"gshard", 1.0}}, *model);
  EXPECT_EQ(weights.at("importance"), 0.5);
  const LossTerms objective = classification_terms("softmax", {0.0, weights}, out, labels);
  for (const auto& [name, value] : objective.terms) {
    const std::map<std::string, double> wanted = {{"importance", importance}, {"gshard", gshard}};
    if (wanted.contains(name)) {
      EXPECT_NEAR(value.item<double>(), wanted.at(name), 1e-6) << name;
    }
  }
}

TEST(E3, PrunedExpertsCountOverAllMembers) {
  const auto model = small_vmoe(e3_config());
  const at::Tensor images = small_images(3);
  const at::Tensor before = run(*model, images).logits;
  for (MoEBlock& block : model->moe_blocks()) block.layer->keep_experts({0, 1, 3, 4, 5});
  const at::Tensor after = run(*model, images).logits;
  for (int64_t row = 0; row < 3 * kMembers; ++row) {
    if (row % kMembers != 1) expect_close(after[row], before[row], 1e-6);
  }
  EXPECT_FALSE(torch::allclose(after[1], before[1]));
  testing::rebuilt(*model);
}

TEST(E3, CountsTheProductsOfEveryMember) {
  const double once = VMoE(small_vmoe_config(), 1).flops_per_image({{1, 1.0}, {3, 1.0}});
  const double found = VMoE(e3_config(), 1).flops_per_image({{1, 1.0}, {3, 1.0}});
  const double T = kTokens, d = 12, m = 20;
  const double shared = 16 * 4 * d + T * 4 * d * d + 2 * T * T * d + 2 * T * d * m;  // to block 0
  EXPECT_DOUBLE_EQ(found, kMembers * (once - 2 * shared) + 2 * shared);
}

TEST(E3, PredictGivesTheLogOfTheMeanProbability) {
  VMoEConfig config = e3_config();
  config.representation_size = 7;
  const auto model = small_vmoe(config);
  const auto found = predict(*model, small_images(4), {.returns_routing = true, .batch_size = 3});
  const at::Tensor mean = found.at("logits").softmax(1).view({4, kMembers, 5}).mean(1);
  expect_close(found.at("log_mean_prob"), mean.log(), 1e-6);
  for (const std::string loss : {"ensemble_softmax", "ensemble_sigmoid"}) {
    const auto again = predict(*model, small_images(4), {.loss = loss});
    const at::Tensor each = again.at("logits").to(at::kDouble).view({4, kMembers, 5});
    const at::Tensor p = loss == "ensemble_sigmoid" ? 1 / (1 + (-each).exp()) : each.softmax(2);
    expect_close(again.at("log_mean_prob"), p.mean(1).log().to(at::kFloat), 1e-6);
  }
  EXPECT_EQ(found.at("pre_logits").sizes(), (std::vector<int64_t>{4 * kMembers, 7}));
  EXPECT_EQ(found.at("routing.1.combine").sizes(),
            (std::vector<int64_t>{4 * kTokens * kMembers, 6}));
}

TEST(E3, RefusesMembersThatDoNotFit) {
  for (const auto& [change, said] :
       {std::pair{"encoder.moe.ensemble_size=4", "does not divide the 6 experts"},
        {"encoder.moe.router.num_selected_experts=3", "a member has 2 experts"},
        {"encoder.moe.group_size=50", "does not divide encoder.moe.group_size 50"},
        {"encoder.moe.layers=[]", "no block"},
        {"encoder.moe.router.pruned_selection=reroute", "must be 'zero'"},
        {"name=vmoe", "is for the family e3"},
        {R"(encoder.moe.router={"name": "NoisyTopItemsPerExpertRouter",
                                "dispatcher": {"capacity_factor": 1}})",
         "does not support an ensemble"}}) {
    Document document(Value::from_json(to_json(e3_config()), "model.json"));
    document.set(change);
    EXPECT_THAT(test::usage_of([&] { build_model(document.root(), 0); }), HasSubstr(said));
  }
}

}  // namespace
}  // namespace moesaic
