// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/clusters.h"

#include <functional>

#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"
#include "support/models.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

ClusterMoEConfig small_mixture() {
  return {.num_patches = 3, .width = 6, .num_experts = 4, .num_filters = 8, .init_scale = 1.0};
}

/// [N, 1, P, d] of that network.
at::Tensor some_patches(int64_t count) {
  return randn({count, 1, 3, 6}, 2, torch::kFloat);
}

std::shared_ptr<ClusterMoE> trained_mixture(const ClusterMoEConfig& config) {
  auto model = std::make_shared<ClusterMoE>(config, 1);
  const torch::NoGradGuard no_grad;
  if (config.router) model->moe->router->weight.normal_(0, 0.3, nn::make_generator(3));
  return model;
}

/// Section 3.2 with the released code's gate, by plain tensor arithmetic.
at::Tensor plain_forward(const ClusterMoE& model, const at::Tensor& x_NPd,
                         const at::Tensor& scores) {
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < x_NPd.size(0); ++i) {
    const auto m = scores[i].argmax().item<int64_t>();
    const at::Tensor seen = x_NPd[i].mm(model.experts->w[m]) + model.experts->b[m];
    rows.push_back(scores[i][m] * seen.pow(3).sum(0).view({2, -1}).sum(1));
  }
  return torch::stack(rows);
}

TEST(ClusterMoE, ForwardAndGradientsAreThoseOfThePaper) {
  const auto model = trained_mixture(small_mixture());
  model->train();
  const at::Tensor images = some_patches(40);
  const ModelOutput output = model->forward(images, nn::make_generator(5));
  const RoutingRecord& record = output.routings.at(0);
  const at::Tensor noise = (record.noisy_logits_TE - record.logits_TE).detach();
  EXPECT_GE(noise.min().item<float>(), -1e-6F);
  EXPECT_GT(noise.max().item<float>(), 0.5F);
  EXPECT_LT(noise.max().item<float>(), 1.0F + 1e-6F);
  const at::Tensor x = images.squeeze(1);
  const at::Tensor scores = x.sum(1).mm(model->moe->router->weight.t()) + noise;
  const at::Tensor wanted = plain_forward(*model, x, scores);
  expect_close(output.logits, wanted, 1e-4);
  const at::Tensor weight = randn({40, 2}, 7, torch::kFloat);
  const std::vector<at::Tensor> parameters = model->parameters();
  const auto found = torch::autograd::grad({(output.logits * weight).sum()}, parameters);
  const auto plain = torch::autograd::grad({(wanted * weight).sum()}, parameters);
  for (size_t i = 0; i < parameters.size(); ++i) expect_close(found[i], plain[i], 1e-4);
}

/// The network as section 3 prints it.
ClusterMoEConfig printed_mixture() {
  ClusterMoEConfig config = small_mixture();
  config.has_scalar_output = true;
  config.bias = false;
  config.init = "normal";
  config.init_scale = 0.3;
  config.router->gate = Gate::softmax_all;
  config.router->gate_noise = false;
  config.router->noise_in_evaluation = false;
  return config;
}

TEST(ClusterMoE, AsPrintedItsLossAndGradientsAreThoseOfTheLogisticLoss) {
  const auto model = trained_mixture(printed_mixture());
  EXPECT_EQ(model->parameters().size(), 2U);
  const at::Tensor images = some_patches(40), x = images.squeeze(1);
  const at::Tensor label = torch::arange(40).remainder(2), y = 2 * label - 1;
  const ModelOutput output = model->forward(images, nn::make_generator(5));
  const at::Tensor loss = torch::cross_entropy_loss(output.logits, label);

  // Eqs. 3.1 and 3.3: the noise chooses the expert, the gate is without it.
  const RoutingRecord& record = output.routings.at(0);
  const at::Tensor noise = (record.noisy_logits_TE - record.logits_TE).detach();
  EXPECT_GT(noise.max().item<float>(), 0.5F);
  const at::Tensor h = x.sum(1).mm(model->moe->router->weight.t());
  const at::Tensor chosen = (h + noise).argmax(1, true);
  EXPECT_FALSE(torch::equal(chosen, h.argmax(1, true)));
  const at::Tensor f = torch::einsum("npd,edj->nepj", {x, model->experts->w}).pow(3).sum({2, 3});
  const at::Tensor F = (h.softmax(1) * f).gather(1, chosen).squeeze(1);
  const at::Tensor wanted = (-(y * F)).exp().log1p().mean();
  expect_close(output.logits.select(1, 1), F, 1e-4);
  expect_close(loss, wanted, 1e-5);
  const std::vector<at::Tensor> parameters = model->parameters();
  const auto found = torch::autograd::grad({loss}, parameters);
  const auto plain = torch::autograd::grad({wanted}, parameters);
  for (size_t i = 0; i < parameters.size(); ++i) expect_close(found[i], plain[i], 1e-4);
}

/// Checks that rows are combined by their columns of these gates [T, E].
void expect_gates(const RoutingRecord& record, const at::Tensor& gates_TE) {
  const at::Tensor weights = combine_weights(record.routing);
  ASSERT_GT(weights.count_nonzero().item<int64_t>(), 0);
  for (size_t slot = 0; slot < record.kept.size(); ++slot) {
    const at::Tensor own = weights.select(1, static_cast<int64_t>(slot));
    expect_close(own, gates_TE.select(1, record.kept[slot]) * own.ne(0), 1e-6);
  }
}

TEST(ClusterMoE, AsPrintedItStartsNormalAndMayBePruned) {
  ClusterMoEConfig config = printed_mixture();
  config.width = 50;
  config.num_filters = 64;
  const auto model = trained_mixture(config);
  const at::Tensor w = model->experts->w.detach();
  EXPECT_NEAR(w.std().item<double>(), 0.3, 0.01);
  EXPECT_NEAR(w.mean().item<double>(), 0.0, 0.01);
  EXPECT_GT(w.abs().max().item<double>(), 0.9);  // A uniform draw of this deviation ends at 0.52.
  const at::Tensor images = randn({40, 1, 3, 50}, 2, torch::kFloat);
  const torch::NoGradGuard no_grad;
  for (const bool pruned : {false, true}) {
    if (pruned) model->moe->keep_experts({1, 3});
    const ModelOutput output = model->forward(images, nn::make_generator(5));
    const RoutingRecord& record = output.routings.at(0);
    expect_gates(record, record.logits_TE.softmax(1));
  }
}

TEST(ClusterMoE, AsPrintedAndReroutedItsGatesAreOfTheExpertsThatAreLeft) {
  ClusterMoEConfig config = printed_mixture();
  config.router->pruned = PrunedSelection::reroute;
  const auto model = trained_mixture(config);
  model->moe->keep_experts({1, 3});
  const torch::NoGradGuard no_grad;
  const ModelOutput output =
      model->forward(randn({40, 1, 3, config.width}, 2, torch::kFloat), nn::make_generator(5));
  const RoutingRecord& record = output.routings.at(0);
  at::Tensor gates = torch::zeros_like(record.logits_TE);
  const at::Tensor kept = torch::tensor({1, 3});
  gates.index_copy_(1, kept, record.logits_TE.index_select(1, kept).softmax(1));
  expect_gates(record, gates);
}

TEST(ClusterMoE, EvaluationDrawsTheSameNoiseEachTimeOrNone) {
  ClusterMoEConfig config = small_mixture();
  const at::Tensor images = some_patches(40);
  for (const bool noisy : {true, false}) {
    config.router->noise_in_evaluation = noisy;
    const auto model = trained_mixture(config);
    model->eval();
    const ModelOutput first = model->forward(images), second = model->forward(images);
    EXPECT_TRUE(torch::equal(first.logits, second.logits));
    const RoutingRecord& record = first.routings.at(0);
    EXPECT_EQ(torch::equal(record.logits_TE, record.noisy_logits_TE), !noisy);
  }
}

TEST(ClusterMoE, ABatchThatWasChangedInPlaceIsNotTakenForTheOldOne) {
  const auto model = trained_mixture(small_mixture());
  const at::Tensor images = some_patches(20);
  const at::Tensor before = model->forward(images).routings.at(0).logits_TE.detach();
  EXPECT_TRUE(torch::equal(model->forward(images).routings.at(0).logits_TE, before));
  images.mul_(2);
  expect_close(model->forward(images).routings.at(0).logits_TE, 2 * before, 1e-5);
  {
    const c10::InferenceMode inference;
    model->forward(images);
  }
  model->forward(images).logits.sum().backward();  // no tensor of the inference is left
}

TEST(ClusterMoE, RecordsTheDeviationOfGaussianNoiseThatWasDrawn) {
  ClusterMoEConfig config = small_mixture();
  config.router->noise_in_evaluation = false;
  const at::Tensor images = some_patches(500);
  for (const char* kind : {"gaussian", "uniform"}) {
    config.router->noise = kind;
    const auto model = trained_mixture(config);
    const RoutingRecord drawn = model->forward(images, nn::make_generator(5)).routings.at(0);
    EXPECT_EQ(drawn.noise_std, kind == std::string("gaussian") ? 0.25 : 0.0);  // 1 / E
    const at::Tensor noise = (drawn.noisy_logits_TE - drawn.logits_TE).detach();
    EXPECT_FALSE(torch::equal(noise, torch::zeros_like(noise)));
    if (drawn.noise_std > 0.0) {
      EXPECT_NEAR(noise.std().item<double>(), drawn.noise_std, 0.02);
    }
    EXPECT_EQ(model->forward(images).routings.at(0).noise_std, 0.0);
  }
}

TEST(ClusterMoE, PrunedEqualsTheMixtureWhoseOtherExpertsGiveZero) {
  ClusterMoEConfig config = small_mixture();
  config.router->gate = Gate::softmax_all;
  const auto full = trained_mixture(config), pruned = trained_mixture(config);
  ASSERT_EQ(pruned->moe_blocks().size(), 1U);
  pruned->moe->keep_experts({1, 3});
  const at::Tensor images = some_patches(40);
  const torch::NoGradGuard no_grad;
  for (const int64_t gone : {0, 2}) {
    full->experts->w[gone].zero_();
    full->experts->b[gone].zero_();
  }
  const ModelOutput wanted = full->forward(images, nn::make_generator(5));
  const ModelOutput found = pruned->forward(images, nn::make_generator(5));
  expect_close(found.logits, wanted.logits, 1e-6);
  EXPECT_GT(found.logits.abs().sum(1).eq(0).sum().item<int64_t>(), 0);  // some lost their expert
  EXPECT_TRUE(torch::equal(found.routings[0].routing.choice, wanted.routings[0].routing.choice));
  EXPECT_EQ(found.routings[0].kept, (std::vector<int64_t>{1, 3}));
  EXPECT_LT(found.routings[0].routing.offsets[2].item<int>(), 40);
  EXPECT_EQ(pruned->experts->w.sizes(), (std::vector<int64_t>{2, 6, 8}));
  // Half of the rows are left, and all of the router.
  EXPECT_EQ(pruned->flops_per_image({{0, 0.5}}), 2.0 * 6 * 4 + 0.5 * 2.0 * 6 * 3 * 8);
}

TEST(ClusterMoE, ItsConfigurationNamesTheExpertsThatPruningLeft) {
  const auto model = trained_mixture(small_mixture());
  EXPECT_TRUE(model->config()["router"]["kept_experts"].empty());
  model->moe->keep_experts({0, 3});
  EXPECT_EQ(model->config()["router"]["kept_experts"], (std::vector<int64_t>{0, 3}));
  const auto again = testing::rebuilt(*model);
  const at::Tensor images = some_patches(40);
  EXPECT_TRUE(torch::equal(again->forward(images).logits, model->forward(images).logits));
  EXPECT_EQ(again->moe_blocks()[0].layer->kept(), (std::vector<int64_t>{0, 3}));
}

/// Sum of every expert's output for every input, times its weight.
at::Tensor weighted_forward(const ClusterMoE& model, const at::Tensor& x_NPd,
                            const at::Tensor& weight_NE) {
  at::Tensor sum = torch::zeros({x_NPd.size(0), 2});
  for (int64_t e = 0; e < weight_NE.size(1); ++e) {
    const at::Tensor seen = torch::matmul(x_NPd, model.experts->w[e]) + model.experts->b[e];
    const at::Tensor own = seen.pow(3).sum(1).view({x_NPd.size(0), 2, -1}).sum(2);
    sum = sum + weight_NE.select(1, e).unsqueeze(1) * own;
  }
  return sum;
}

TEST(ClusterMoE, RoutesByAThresholdOrByTheExpertsChoiceToo) {
  ClusterMoEConfig config = small_mixture();
  config.router->noise_scale = 0.0;
  const at::Tensor images = some_patches(40), x = images.squeeze(1);
  const torch::NoGradGuard no_grad;
  config.router->kind = RoutingKind::threshold;
  config.router->threshold = 0.1;
  config.router->gate = Gate::one;
  {
    const auto model = trained_mixture(config);
    const ModelOutput output = model->forward(images);
    const at::Tensor selected = output.routings[0].logits_TE.ge(0.1).to(torch::kFloat);
    EXPECT_GT(selected.sum(1).max().item<float>(), 1.0F);
    expect_close(output.logits, weighted_forward(*model, x, selected), 1e-4);
    testing::rebuilt(*model);
  }
  config.router->kind = RoutingKind::expert_choice;
  config.router->threshold = 0.0;
  config.router->l = 3;
  config.router->group_size = 10;
  {
    const auto model = trained_mixture(config);
    const ModelOutput output = model->forward(images);
    at::Tensor selected = torch::zeros({40, 4});
    for (int64_t group = 0; group < 4; ++group) {
      const auto own = [&](const at::Tensor& rows) {
        return rows.slice(0, 10 * group, 10 * group + 10);
      };
      const auto best = std::get<1>(own(output.routings[0].logits_TE).topk(3, 0));
      own(selected).scatter_(0, best, 1.0);
    }
    expect_close(output.logits, weighted_forward(*model, x, selected), 1e-4);
    EXPECT_EQ(output.routings[0].group_size, 10);
    EXPECT_DOUBLE_EQ(model->flops_per_image(), 2.0 * 6 * 4 + 1.2 * 2.0 * 6 * 3 * 8);
  }
}

TEST(ClusterMoE, TheRouterCanSeeThePiecesOfAnInputThatExpertsSeeWhole) {
  ClusterMoEConfig config = small_mixture();
  config.num_patches = 1;
  config.width = 12;
  config.num_filters = 2;
  config.router->width = 4;
  config.router->noise_in_evaluation = false;
  const auto model = trained_mixture(config);
  model->eval();
  EXPECT_EQ(model->moe->router->weight.sizes(), (std::vector<int64_t>{4, 4}));
  const at::Tensor images = randn({40, 1, 1, 12}, 2, torch::kFloat);
  at::Tensor seen = torch::zeros({40, 4});
  for (int64_t j = 0; j < 12; ++j) seen.select(1, j % 4) += images.select(3, j).flatten();
  const at::Tensor scores = seen.mm(model->moe->router->weight.t());
  const ModelOutput output = model->forward(images);
  expect_close(output.routings.at(0).logits_TE, scores, 1e-5);
  expect_close(output.logits, plain_forward(*model, images.squeeze(1), scores), 1e-4);
  testing::rebuilt(*model);
  EXPECT_EQ(model->flops_per_image({}), 2.0 * 4 * 4 + 2.0 * 12 * 2);
}

TEST(ClusterMoE, ASingleExpertHasNoRouterAndStartsAtItsScale) {
  ClusterMoEConfig config = small_mixture();
  config.router.reset();
  config.num_experts = 1;
  config.num_filters = 400;
  config.init_scale = 0.5;
  const auto model = trained_mixture(config);
  EXPECT_EQ(model->named_parameters().size(), 2U);
  const double bound = 0.5 / std::sqrt(6.0);
  EXPECT_LE(model->experts->w.abs().max().item<double>(), bound);
  EXPECT_GT(model->experts->w.abs().max().item<double>(), 0.95 * bound);
  const at::Tensor images = some_patches(10);
  const ModelOutput output = model->forward(images);
  EXPECT_TRUE(output.routings.empty());
  expect_close(output.logits, plain_forward(*model, images.squeeze(1), torch::ones({10, 1})), 1e-4);
}

TEST(ClusterMoE, ItsConfigurationRebuildsItAndCountsItsParameters) {
  for (const bool routed : {true, false}) {
    ClusterMoEConfig config = small_mixture();
    if (!routed) {
      config.router.reset();
      config.num_experts = 1;
    }
    const auto model = trained_mixture(config);
    testing::rebuilt(*model);
    EXPECT_TRUE(meta_copy(*model)->parameters().front().is_meta());
  }
}

TEST(ClusterMoE, RefusesWhatDoesNotFit) {
  using Change = std::function<void(ClusterMoEConfig&)>;
  const auto problem = [](ClusterMoEConfig config, const Change& change) {
    change(config);
    return config_problem(config).text;
  };
  const auto of_small = [&](const Change& change) { return problem(small_mixture(), change); };
  EXPECT_NE(of_small([](auto& c) { c.num_filters = 7; }), "");
  EXPECT_NE(of_small([](auto& c) { c.router.reset(); }), "");
  EXPECT_EQ(of_small([](auto& c) { c.router->width = 4; }),
            "a patch of 6 cannot be cut into pieces of 4; choose 3");
  EXPECT_EQ(of_small([](auto& c) { c.router->k = 5; }),
            "router.num_selected_experts is 5, but there are 4 experts; choose at most 4");
  EXPECT_EQ(of_small([](auto& c) {
              c.router->kept = {1, 4};
            }),
            "router.kept_experts must be ascending experts below 4, at least one");
  ClusterMoEConfig adaptive = small_mixture();
  adaptive.router->threshold = 0.5;
  EXPECT_EQ(config_problem(adaptive).text,
            "router.threshold is for the router adaptive; leave it out");
  adaptive.router->kind = RoutingKind::threshold;
  EXPECT_EQ(config_problem(adaptive).text,
            "router.gate is 'logit', but the router adaptive has no gates; set it to 'one'");
  adaptive.router->capacity.factor = 1.0;
  EXPECT_EQ(config_problem(adaptive).text,
            "router.dispatcher limits the rows per expert, but the router adaptive drops no token; "
            "leave capacity and batch_priority out");
  const auto of_printed = [&](const Change& change) { return problem(printed_mixture(), change); };
  EXPECT_EQ(of_printed([](auto&) {}), "");
  EXPECT_EQ(of_printed([](auto& c) { c.num_classes = 3; }),
            "a scalar output tells 2 classes apart, found 3");
  EXPECT_EQ(of_printed([](auto& c) { c.router->gate = Gate::one; }),
            std::string("router.gate_noise false is for the router ") + kTokenChoice +
                " with the gate 'softmax_all' or 'logit'");
  EXPECT_EQ(of_printed([](auto& c) { c.router->noise_in_evaluation = true; }),
            "router.gate_noise false is about training; set router.noise_in_evaluation to false");
  const auto model = trained_mixture(small_mixture());
  EXPECT_THROW(model->forward(torch::zeros({2, 1, 4, 6})), Error);
  EXPECT_THROW(model->forward(torch::zeros({2, 3, 6})), Error);
}

}  // namespace
}  // namespace moesaic
