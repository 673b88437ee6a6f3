// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/objective.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "moesaic/nn/init.h"
#include "moesaic/ops/losses.h"
#include "moesaic/papers/clusters.h"
#include "support/tensors.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

ModelOutput output_with(const std::vector<at::Tensor>& router_logits) {
  ModelOutput output;
  output.logits = randn({3, 4}, 1, torch::kFloat);
  for (const at::Tensor& logits : router_logits) {
    RoutingRecord record;
    record.logits_TE = record.noisy_logits_TE = logits;
    record.routing = route(logits, {.k = 2});
    output.routings.push_back(record);
  }
  return output;
}

double plain_cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double smoothing) {
  double sum = 0;
  const auto classes = static_cast<double>(logits.size(1));
  for (int64_t b = 0; b < logits.size(0); ++b) {
    double partition = 0;
    for (int64_t c = 0; c < logits.size(1); ++c) partition += std::exp(logits[b][c].item<double>());
    for (int64_t c = 0; c < logits.size(1); ++c) {
      const double target =
          (labels[b].item<int64_t>() == c ? 1 - smoothing : 0.0) + smoothing / classes;
      sum -= target * (logits[b][c].item<double>() - std::log(partition));
    }
  }
  return sum / static_cast<double>(logits.size(0));
}

TEST(ClassificationObjective, CrossEntropyWithAndWithoutSmoothing) {
  const ModelOutput output = output_with({});
  const at::Tensor labels = torch::tensor({2, 0, 3});
  for (const double smoothing : {0.0, 0.3}) {
    const LossTerms objective = classification_terms("softmax", {smoothing, {}}, output, labels);
    EXPECT_NEAR(objective.loss.item<double>(),
                plain_cross_entropy(output.logits, labels, smoothing), 1e-6);
    EXPECT_EQ(objective.terms.size(), 2u);
  }
}

TEST(ClassificationObjective, AddsWeightedAuxiliaryLossesSummedOverLayers) {
  const at::Tensor a = randn({6, 4}, 2, torch::kFloat), b = randn({6, 4}, 3, torch::kFloat);
  const ModelOutput output = output_with({a, b});
  const at::Tensor labels = torch::tensor({0, 1, 2});
  const LossTerms objective = classification_terms(
      "softmax", {0.0, {{"importance", 0.5}, {"gshard", 2.0}}}, output, labels);
  const double importance =
      importance_loss(a, 0).item<double>() + importance_loss(b, 0).item<double>();
  const double gshard = gshard_loss(a, 0).item<double>() + gshard_loss(b, 0).item<double>();
  std::map<std::string, double> terms;
  for (const auto& [name, term] : objective.terms) terms[name] = term.item<double>();
  EXPECT_NEAR(terms.at("importance"), importance, 1e-6);
  EXPECT_NEAR(terms.at("gshard"), gshard, 1e-6);
  EXPECT_NEAR(objective.loss.item<double>(),
              terms.at("cross_entropy") + 0.5 * importance + 2.0 * gshard, 1e-5);
}

double term_of(const ModelOutput& output, const std::string& name) {
  const LossTerms objective =
      classification_terms("softmax", {0.0, {{name, 1.0}}}, output, torch::tensor({0, 1, 2}));
  return objective.terms.at(2).second.item<double>();
}

/// E^2 mean over experts of (fraction of tokens whose largest logit it has) * (mean logit).
double balance_by_logit(const at::Tensor& logits_TE) {
  const int64_t tokens = logits_TE.size(0), experts = logits_TE.size(1);
  std::vector<double> fraction(experts, 0.0), mean(experts, 0.0);
  for (int64_t t = 0; t < tokens; ++t) {
    int64_t first = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const double logit = logits_TE[t][e].item<double>();
      if (logit > logits_TE[t][first].item<double>()) first = e;
      mean[e] += logit / static_cast<double>(tokens);
    }
    fraction[first] += 1.0 / static_cast<double>(tokens);
  }
  double sum = 0.0;
  for (int64_t e = 0; e < experts; ++e) sum += fraction[e] * mean[e];
  return static_cast<double>(experts) * sum;
}

TEST(ClassificationObjective, NoiseCountsWhereTheDispatchSawIt) {
  const at::Tensor clean = randn({6, 4}, 2, torch::kFloat);
  const at::Tensor other = randn({6, 4}, 3, torch::kFloat);
  ModelOutput output = output_with({clean});
  EXPECT_EQ(term_of(output, "load"), 0.0);
  output.routings[0].noisy_logits_TE = other;
  output.routings[0].noise_std = 0.25;
  EXPECT_NEAR(term_of(output, "load"), load_loss(clean, other, 2, 0.25, 0).item<double>(), 1e-6);
  EXPECT_NEAR(term_of(output, "importance"), importance_loss(clean, 0).item<double>(), 1e-6);
  EXPECT_NEAR(term_of(output, "gshard"), gshard_loss(other, 0).item<double>(), 1e-6);
  EXPECT_NEAR(term_of(output, "switch_balance"), switch_balance_loss(other, 0).item<double>(),
              1e-6);
  EXPECT_NEAR(term_of(output, "switch_balance_logit"), balance_by_logit(other), 1e-6);
  EXPECT_NEAR(term_of(output, "router_z"), router_z_loss(clean, 0).item<double>(), 1e-6);
}

TEST(ClassificationObjective, NoiseOfAClusterMixtureHasALoadLoss) {
  ClusterMoEConfig config;
  config.num_patches = 3;
  config.width = 6;
  config.num_experts = 4;
  config.router->noise = "gaussian";
  ClusterMoE model(config, 1);
  {
    const torch::NoGradGuard no_grad;
    model.moe->router->weight.copy_(randn({4, 6}, 3, torch::kFloat));
  }
  const ModelOutput output =
      model.forward(randn({20, 1, 3, 6}, 2, torch::kFloat), nn::make_generator(5));
  const RoutingRecord& record = output.routings.at(0);
  const at::Tensor wanted = load_loss(record.logits_TE, record.noisy_logits_TE, 1, 0.25, 0);
  EXPECT_GT(wanted.item<double>(), 0.0);
  const LossTerms objective = classification_terms("softmax", {0.0, {{"load", 1.0}}}, output,
                                                   torch::zeros({20}, torch::kLong));
  EXPECT_EQ(objective.terms.at(2).second.item<double>(), wanted.item<double>());
  objective.terms.at(2).second.backward();
  EXPECT_GT(model.moe->router->weight.grad().abs().max().item<double>(), 0.0);
}

TEST(ClassificationObjective, ExpertsThatChooseAreBalanced) {
  ModelOutput output = output_with({randn({6, 4}, 2, torch::kFloat)});
  output.routings[0].routing =
      route(output.routings[0].logits_TE,
            {.kind = RoutingKind::expert_choice, .l = 2, .gate = Gate::softmax_selected});
  for (const std::string& name : aux_loss_names()) {
    EXPECT_EQ(term_of(output, name) == 0.0, name != "router_z") << name;
  }
}

TEST(ClassificationObjective, ReroutedLayersCountTheExpertsThatAreLeft) {
  const at::Tensor clean = randn({6, 4}, 2, torch::kFloat), noisy = randn({6, 4}, 3, torch::kFloat);
  ModelOutput output = output_with({clean});
  RoutingRecord& record = output.routings[0];
  record.noisy_logits_TE = noisy;
  record.noise_std = 0.25;
  record.kept = {1, 2, 3};
  const at::Tensor left = clean.slice(1, 1), noisy_left = noisy.slice(1, 1);
  EXPECT_NEAR(term_of(output, "importance"), importance_loss(clean, 0).item<double>(), 1e-6);
  record.is_rerouted = true;
  EXPECT_NEAR(term_of(output, "importance"), importance_loss(left, 0).item<double>(), 1e-6);
  EXPECT_NEAR(term_of(output, "gshard"), gshard_loss(noisy_left, 0).item<double>(), 1e-6);
  EXPECT_NEAR(term_of(output, "load"), load_loss(left, noisy_left, 2, 0.25, 0).item<double>(),
              1e-6);
}

TEST(ClassificationObjective, IsZeroWithoutMoELayersAndRefusesUnknownNames) {
  const at::Tensor labels = torch::tensor({0, 1, 2});
  const LossTerms objective =
      classification_terms("softmax", {0.0, {{"gshard", 1.0}}}, output_with({}), labels);
  EXPECT_EQ(objective.terms.at(2).second.item<double>(), 0.0);
  EXPECT_EQ(train_test::error_of([&] {
              classification_terms("softmax", {0.0, {{"gshart", 1.0}}}, output_with({}), labels);
            }),
            "usage: unknown auxiliary loss 'gshart'; did you mean 'gshard'?");
}

}  // namespace
}  // namespace moesaic
