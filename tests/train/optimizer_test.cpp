// SPDX-License-Identifier: Apache-2.0
// Against plain loops in float64.
#include "moesaic/train/gradient_phase.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "support/tensors.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using ::moesaic::train_test::error_of;
using Numbers = std::vector<double>;

Numbers numbers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(torch::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

struct TwoParameters {
  at::Tensor weight = randn({7, 5}, 1).requires_grad_();
  at::Tensor bias = randn({5}, 2).requires_grad_();
  Optimizer::NamedParameters named() { return {{"fc.weight", weight}, {"fc.bias", bias}}; }
  void give_gradients(uint64_t seed) {
    weight.mutable_grad() = randn({7, 5}, seed);
    bias.mutable_grad() = randn({5}, seed + 100);
  }
};

void expect_near(const at::Tensor& found, const Numbers& wanted) {
  const Numbers values = numbers(found);
  ASSERT_EQ(values.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(values[i], wanted[i], 1e-12) << i;
}

void sgd_loop(Numbers& p, Numbers& m, const Numbers& g, double lr, double mu, double decay) {
  for (size_t i = 0; i < p.size(); ++i) {
    m[i] = g[i] + mu * m[i];
    p[i] -= lr * (m[i] + decay * p[i]);
  }
}

void adamw_loop(Numbers& p, Numbers& m, Numbers& v, const Numbers& g, double lr,
                const OptimizerConfig& c, double decay, int t) {
  for (size_t i = 0; i < p.size(); ++i) {
    m[i] = c.betas[0] * m[i] + (1 - c.betas[0]) * g[i];
    v[i] = c.betas[1] * v[i] + (1 - c.betas[1]) * g[i] * g[i];
    const double m_hat = m[i] / (1 - std::pow(c.betas[0], t));
    const double v_hat = v[i] / (1 - std::pow(c.betas[1], t));
    p[i] -= lr * (m_hat / (std::sqrt(v_hat) + c.eps) + decay * p[i]);
  }
}

TEST(Optimizer, SgdFollowsThePlainLoop) {
  TwoParameters setup;
  Optimizer optimizer(setup.named(), {.name = "sgd", .momentum = 0.8, .weight_decay = 0.1});
  Numbers w = numbers(setup.weight), b = numbers(setup.bias), mw(35), mb(5);
  for (int t = 1; t <= 5; ++t) {
    setup.give_gradients(t);
    const double lr = 0.1 / t;
    sgd_loop(w, mw, numbers(setup.weight.grad()), lr, 0.8, 0.1);
    sgd_loop(b, mb, numbers(setup.bias.grad()), lr, 0.8, 0.0);  // a bias does not decay
    optimizer.step(lr);
    expect_near(setup.weight, w);
    expect_near(setup.bias, b);
  }
  expect_near(optimizer.state().at("fc.weight.momentum"), mw);
  EXPECT_EQ(optimizer.num_steps(), 5);
}

TEST(Optimizer, SgdWithoutMomentumIsPlainDescent) {
  TwoParameters setup;
  Optimizer optimizer(setup.named(), {.name = "sgd", .momentum = 0.0});
  Numbers w = numbers(setup.weight), m(35);
  for (int t = 1; t <= 3; ++t) {
    setup.give_gradients(t);
    sgd_loop(w, m, numbers(setup.weight.grad()), 0.1, 0.0, 0.0);
    optimizer.step(0.1);
    expect_near(setup.weight, w);
  }
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(Optimizer, AdamWFollowsThePlainLoop) {
  TwoParameters setup;
  const OptimizerConfig config{.betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.2};
  Optimizer optimizer(setup.named(), config);
  Numbers w = numbers(setup.weight), b = numbers(setup.bias), mw(35), vw(35), mb(5), vb(5);
  for (int t = 1; t <= 6; ++t) {
    setup.give_gradients(t);
    const double lr = 0.05 * t;
    adamw_loop(w, mw, vw, numbers(setup.weight.grad()), lr, config, 0.2, t);
    adamw_loop(b, mb, vb, numbers(setup.bias.grad()), lr, config, 0.0, t);
    optimizer.step(lr);
    expect_near(setup.weight, w);
    expect_near(setup.bias, b);
  }
  expect_near(optimizer.state().at("fc.weight.exp_avg"), mw);
  expect_near(optimizer.state().at("fc.bias.exp_avg_sq"), vb);
}

TEST(Optimizer, DecayIsExcludedByThePatternsOnly) {
  for (const bool exclude : {true, false}) {
    TwoParameters setup;
    OptimizerConfig config{.name = "sgd", .weight_decay = 0.5};
    if (!exclude) config.no_decay.clear();
    Optimizer optimizer({{"b1", setup.bias}}, config);
    const Numbers before = numbers(setup.bias);
    setup.bias.mutable_grad() = torch::zeros_like(setup.bias);
    optimizer.step(0.1);
    EXPECT_NEAR(numbers(setup.bias)[0], before[0] * (exclude ? 1.0 : 0.95), 1e-15);
  }
}

TEST(Optimizer, DefaultPatternsSpareBiasesNormsAndEmbeddings) {
  const Patterns patterns(OptimizerConfig{}.no_decay);
  for (const char* name : {"blocks.1.moe.experts.b1", "blocks.0.attention.qkv.bias", "cls",
                           "position_embedding", "blocks.0.norm1.weight", "norm.weight"}) {
    EXPECT_TRUE(patterns.any_matches(name)) << name;
  }
  for (const char* name : {"blocks.1.moe.experts.w1", "blocks.0.attention.qkv.weight",
                           "blocks.1.moe.router.weight", "embedding.weight", "head.weight"}) {
    EXPECT_FALSE(patterns.any_matches(name)) << name;
  }
}

/// The gradient of step t is there in odd steps only.
TEST(Optimizer, AParameterThatTheLossDoesNotReachMovesAsByZeros) {
  for (const std::string name : {"sgd", "adamw"}) {
    TwoParameters setup;
    const OptimizerConfig config{.name = name, .momentum = 0.8, .weight_decay = 0.1};
    Optimizer optimizer(setup.named(), config);
    Numbers w = numbers(setup.weight), m(35), v(35);
    for (int t = 1; t <= 4; ++t) {
      optimizer.zero_grad();
      setup.give_gradients(t);
      if (t % 2 == 0) setup.weight.mutable_grad().reset();
      const Numbers g = t % 2 == 0 ? Numbers(35) : numbers(setup.weight.grad());
      name == "sgd" ? sgd_loop(w, m, g, 0.1, 0.8, 0.1)
                    : adamw_loop(w, m, v, g, 0.1, config, 0.1, t);
      optimizer.step(0.1);
      EXPECT_EQ(optimizer.gradients().size(), t % 2 == 0 ? 1u : 2u);
      expect_near(setup.weight, w);
    }
  }
}

TEST(Optimizer, AFrozenParameterWithoutGradientStays) {
  TwoParameters setup;
  Optimizer optimizer(setup.named(), {.weight_decays = {{"", 0.5}}}, {"weight"});
  const at::Tensor before = setup.weight.detach().clone();
  setup.bias.mutable_grad() = torch::ones_like(setup.bias);
  optimizer.step(0.1);
  EXPECT_TRUE(torch::equal(setup.weight.detach(), before));
  optimizer.zero_grad();
  EXPECT_TRUE(optimizer.gradients().empty());
}

TEST(Optimizer, AFrozenParameterStaysButItsGradientCounts) {
  TwoParameters setup;
  Optimizer optimizer(setup.named(), {.weight_decays = {{"", 0.5}}}, {"^fc.bias"});
  const at::Tensor before = setup.bias.detach().clone();
  setup.give_gradients(1);
  EXPECT_EQ(optimizer.gradients().size(), 2u);
  optimizer.step(0.1);
  EXPECT_TRUE(torch::equal(setup.bias.detach(), before));
  EXPECT_FALSE(optimizer.state().contains("fc.bias.exp_avg"));
  EXPECT_TRUE(optimizer.state().contains("fc.weight.exp_avg"));
}

TEST(Optimizer, TheFirstPatternDecidesAFactor) {
  TwoParameters setup;
  Optimizer optimizer(setup.named(), OptimizerConfig{});
  setup.give_gradients(1);
  const at::Tensor weight = setup.weight.grad().clone(), bias = setup.bias.grad().clone();
  optimizer.scale_gradients(PatternValues({{"bias", 3.0}, {"fc", 2.0}}));
  EXPECT_TRUE(torch::equal(setup.weight.grad(), weight * 2));
  EXPECT_TRUE(torch::equal(setup.bias.grad(), bias * 3));
}

TEST(Optimizer, GoesOnWithTheSameBitsFromItsState) {
  for (const char* name : {"sgd", "adamw"}) {
    TwoParameters through, saved;
    const OptimizerConfig config{.name = name, .weight_decay = 0.01};
    Optimizer one(through.named(), config), two(saved.named(), config);
    for (int t = 0; t < 3; ++t) {
      through.give_gradients(t);
      one.step(0.1);
    }
    {
      const torch::NoGradGuard no_grad;
      saved.weight.copy_(through.weight);
      saved.bias.copy_(through.bias);
    }
    two.load_state(one.state(), one.num_steps());
    for (int t = 3; t < 6; ++t) {
      through.give_gradients(t);
      saved.give_gradients(t);
      one.step(0.1);
      two.step(0.1);
    }
    EXPECT_TRUE(torch::equal(through.weight, saved.weight)) << name;
    EXPECT_TRUE(torch::equal(through.bias, saved.bias)) << name;
  }
}

TEST(Optimizer, LoadsStrictly) {
  TwoParameters setup;
  Optimizer optimizer(setup.named(), OptimizerConfig{});
  TensorMap state = optimizer.state();
  const auto load = [&] { optimizer.load_state(state, 1); };
  state["x.exp_avg"] = torch::zeros({1});
  EXPECT_EQ(error_of(load), "failure: optimizer: unexpected 'x.exp_avg'");
  state.erase("x.exp_avg");
  state["fc.bias.exp_avg"] = torch::zeros({4});
  EXPECT_EQ(error_of(load),
            "failure: optimizer: 'fc.bias.exp_avg' must have the shape [5], found [4]");
  state.erase("fc.bias.exp_avg");
  EXPECT_EQ(error_of(load), "failure: optimizer: 'fc.bias.exp_avg' is missing");
}

TEST(Optimizer, UnknownNameIsRefused) {
  EXPECT_EQ(error_of([] { make_update_rule({.name = "adamv"}); }),
            "usage: unknown optimizer 'adamv'; did you mean 'adam'?");
}

/// Two experts with stacked weights and biases.
struct TwoExperts {
  at::Tensor w = randn({2, 3, 4}, 1).requires_grad_();
  at::Tensor b = randn({2, 4}, 2).requires_grad_();
  at::Tensor router = randn({2, 3}, 3).requires_grad_();
  Optimizer::NamedParameters named() {
    return {{"experts.w", w}, {"experts.b", b}, {"router.weight", router}};
  }
  void give_gradients(uint64_t seed) {
    w.mutable_grad() = randn({2, 3, 4}, seed);
    b.mutable_grad() = randn({2, 4}, seed + 100);
    router.mutable_grad() = randn({2, 3}, seed + 200);
  }
};

OptimizerConfig plain_sgd(const std::string& name, double lr, double momentum) {
  return {.name = name, .lr = lr, .momentum = momentum};
}

TEST(Optimizer, NormalizedSgdGivesEachExpertAStepOfTheSameLength) {
  TwoExperts setup;
  const ParamGroupConfig experts{{"^experts"}, plain_sgd("normalized_sgd", 0.002, 0.9)};
  Optimizer optimizer(setup.named(), plain_sgd("sgd", 0.1, 0.0), {}, {experts});
  Numbers w = numbers(setup.w), b = numbers(setup.b), router = numbers(setup.router);
  Numbers mw(24), mb(8), mr(6);
  for (int t = 1; t <= 3; ++t) {
    setup.give_gradients(t);
    if (t == 2) {  // an expert that no input came to
      setup.w.mutable_grad()[1].zero_();
      setup.b.mutable_grad()[1].zero_();
    }
    Numbers gw = numbers(setup.w.grad()), gb = numbers(setup.b.grad());
    for (size_t e = 0; e < 2; ++e) {
      double squares = 0.0;
      for (size_t i = 0; i < 12; ++i) squares += gw[12 * e + i] * gw[12 * e + i];
      for (size_t i = 0; i < 4; ++i) squares += gb[4 * e + i] * gb[4 * e + i];
      const double norm = squares > 0 ? std::sqrt(squares) : 1.0;
      for (size_t i = 0; i < 12; ++i) gw[12 * e + i] /= norm;
      for (size_t i = 0; i < 4; ++i) gb[4 * e + i] /= norm;
    }
    // The schedule halves the rate of both.
    sgd_loop(w, mw, gw, 0.001, 0.9, 0.0);
    sgd_loop(b, mb, gb, 0.001, 0.9, 0.0);
    sgd_loop(router, mr, numbers(setup.router.grad()), 0.05, 0.0, 0.0);
    optimizer.step(0.05);
    expect_near(setup.w, w);
    expect_near(setup.b, b);
    expect_near(setup.router, router);
  }
  const TensorMap state = optimizer.state();
  EXPECT_EQ(state.size(), 2U);
  TwoExperts other;
  Optimizer again(other.named(), plain_sgd("sgd", 0.1, 0.0), {}, {experts});
  again.load_state(state, 3);
  EXPECT_TRUE(torch::equal(again.state().at("experts.w.momentum"), state.at("experts.w.momentum")));
}

/// Two experts that are networks of their own, of parameters of different shapes, and a router.
struct SeparateExperts {
  std::vector<std::pair<std::string, at::Tensor>> own;
  SeparateExperts() {
    for (const char* name : {"experts.0.conv.weight", "experts.0.conv.bias",
                             "experts.1.conv.weight", "experts.1.conv.bias", "router.weight"}) {
      const bool bias = std::string(name).ends_with("bias");
      own.emplace_back(
          name, randn(bias ? std::vector<int64_t>{3} : std::vector<int64_t>{3, 2}, own.size() + 1)
                    .requires_grad_());
    }
  }
};

TEST(Optimizer, NormalizedSgdTakesTheNormOverEachNetworkOfItsOwn) {
  SeparateExperts setup;
  OptimizerConfig normalized = plain_sgd("normalized_sgd", 0.1, 0.9);
  normalized.l2 = 0.01;
  Optimizer optimizer(setup.own, plain_sgd("sgd", 0.1, 0.0), {}, {{{"^experts"}, normalized}});
  std::vector<Numbers> values, momenta;
  for (const auto& [name, parameter] : setup.own) {
    values.push_back(numbers(parameter));
    momenta.emplace_back(values.back().size());
  }
  for (int t = 1; t <= 3; ++t) {
    std::vector<Numbers> gradients;
    for (size_t i = 0; i < setup.own.size(); ++i) {
      at::Tensor& parameter = setup.own[i].second;
      const bool unseen = t == 2 && (i == 2 || i == 3);  // an expert that no image came to
      parameter.mutable_grad().reset();
      if (!unseen) {
        const double size = i < 2 ? 1.0 : 1e-21;  // whose square float32 does not hold
        parameter.mutable_grad() =
            randn(parameter.sizes().vec(), static_cast<uint64_t>(10 * t) + i) * size;
      }
      gradients.push_back(unseen ? Numbers(parameter.numel()) : numbers(parameter.grad()));
    }
    for (size_t expert = 0; expert < 2; ++expert) {
      double squares = 0.0;
      for (size_t i = 2 * expert; i < 2 * expert + 2; ++i) {
        for (const double g : gradients[i]) squares += g * g;
      }
      for (size_t i = 2 * expert; i < 2 * expert + 2; ++i) {
        for (size_t j = 0; j < gradients[i].size(); ++j) {
          double& g = gradients[i][j];
          g = (squares > 0 ? g / std::sqrt(squares) : 0.0) + 0.01 * values[i][j];
        }
        sgd_loop(values[i], momenta[i], gradients[i], 0.1, 0.9, 0.0);
      }
    }
    sgd_loop(values[4], momenta[4], gradients[4], 0.1, 0.0, 0.0);
    optimizer.step(0.1);
    for (size_t i = 0; i < values.size(); ++i) expect_near(setup.own[i].second, values[i]);
  }
}

TEST(Optimizer, NormalizedSgdTakesAFullStepByAGradientNextToNothing) {
  at::Tensor w = torch::zeros({2, 3}).requires_grad_();
  Optimizer optimizer({{"w", w}}, plain_sgd("normalized_sgd", 1.0, 0.0));
  w.mutable_grad() = torch::tensor({{3e-39F, 0.0F, 4e-39F}, {0.0F, 0.0F, 0.0F}});
  optimizer.step(1.0);
  EXPECT_TRUE(
      torch::allclose(w, torch::tensor({{-0.6F, 0.0F, -0.8F}, {0.0F, 0.0F, 0.0F}}), 0, 1e-5));
}

TEST(Optimizer, NormalizedSgdTakesOneNumberOfEachExpertIntoItsNorm) {
  at::Tensor w = torch::zeros({2, 2}).requires_grad_(), b = torch::zeros({2}).requires_grad_();
  Optimizer optimizer({{"w", w}, {"b", b}}, plain_sgd("normalized_sgd", 1.0, 0.0));
  w.mutable_grad() = torch::tensor({{3.0F, 0.0F}, {0.0F, 5.0F}});
  b.mutable_grad() = torch::tensor({4.0F, 12.0F});
  optimizer.step(1.0);
  EXPECT_TRUE(torch::allclose(w, torch::tensor({{-0.6F, 0.0F}, {0.0F, -5.0F / 13}})));
  EXPECT_TRUE(torch::allclose(b, torch::tensor({-0.8F, -12.0F / 13})));
}

TEST(Optimizer, NormalizedSgdByTheSumOfTheNormsOfTensors) {
  OptimizerConfig config = plain_sgd("normalized_sgd", 1.0, 0.0);
  config.expert_norm = "sum";
  at::Tensor w = torch::zeros({2, 2}).requires_grad_(), b = torch::zeros({2}).requires_grad_();
  Optimizer stacked({{"w", w}, {"b", b}}, config);
  w.mutable_grad() = torch::tensor({{3.0F, 4.0F}, {0.0F, 0.0F}});
  b.mutable_grad() = torch::tensor({-5.0F, 0.0F});
  stacked.step(1.0);
  EXPECT_TRUE(torch::allclose(w, torch::tensor({{-0.3F, -0.4F}, {0.0F, 0.0F}})));
  EXPECT_TRUE(torch::allclose(b, torch::tensor({0.5F, 0.0F})));

  at::Tensor first = torch::zeros({2}).requires_grad_(),
             second = torch::zeros({1}).requires_grad_();
  Optimizer separate({{"experts.0.a", first}, {"experts.0.b", second}}, config);
  first.mutable_grad() = torch::tensor({3e-30F, 4e-30F});
  second.mutable_grad() = torch::tensor({-5e-30F});
  separate.step(1.0);
  EXPECT_TRUE(torch::allclose(first, torch::tensor({-0.3F, -0.4F})));
  EXPECT_TRUE(torch::allclose(second, torch::tensor({0.5F})));
}

TEST(Optimizer, APartWithARateOfItsOwnDoesNotFollowTheOthers) {
  at::Tensor w = torch::zeros({1}).requires_grad_(), v = w.detach().clone().requires_grad_(),
             router = w.detach().clone().requires_grad_();
  Optimizer optimizer({{"w", w}, {"v", v}, {"router", router}}, plain_sgd("sgd", 0.1, 0.0), {},
                      {{{"^w"}, plain_sgd("sgd", 1.0, 0.0)}, {{"^v"}, plain_sgd("sgd", 1.0, 0.0)}});
  for (at::Tensor* parameter : {&w, &v, &router}) parameter->mutable_grad() = torch::ones({1});
  optimizer.step(0.05, {0.25, std::nullopt});
  EXPECT_EQ(w.item<float>(), -0.25F);
  EXPECT_EQ(v.item<float>(), -0.5F);
  EXPECT_EQ(router.item<float>(), -0.05F);
}

TEST(Optimizer, NormalizedSgdRefusesParametersOfDifferentExperts) {
  TwoParameters setup;  // [7, 5] and [5]
  Optimizer optimizer(setup.named(), plain_sgd("normalized_sgd", 0.1, 0.0));
  setup.give_gradients(1);
  EXPECT_NE(error_of([&] { optimizer.step(0.1); }).find("have no common norm"), std::string::npos);
}

TEST(Optimizer, L2EntersTheMomentsOfAdam) {
  TwoParameters setup;
  const OptimizerConfig config{.name = "adam", .l2 = 0.3};
  Optimizer optimizer(setup.named(), config);
  Numbers w = numbers(setup.weight), m(35), v(35);
  for (int t = 1; t <= 3; ++t) {
    setup.give_gradients(t);
    Numbers g = numbers(setup.weight.grad());
    for (size_t i = 0; i < g.size(); ++i) g[i] += 0.3 * w[i];
    adamw_loop(w, m, v, g, 0.01, config, 0.0, t);
    optimizer.step(0.01);
    expect_near(setup.weight, w);
  }
}

TEST(Optimizer, ASkippedStepChangesNoBitWhateverTheGradients) {
  for (const std::string name : {"sgd", "normalized_sgd", "adam", "adamw"}) {
    const OptimizerConfig config{
        .name = name, .momentum = 0.9, .weight_decay = name == "adam" ? 0.0 : 0.1, .l2 = 0.1};
    const auto run = [&](const at::Tensor& skip) {
      const at::Tensor w = randn({4, 5}, 1).requires_grad_();
      Optimizer optimizer({{"w", w}}, config);
      w.mutable_grad() = randn({4, 5}, 2);
      optimizer.step(0.1, {}, skip);
      TensorMap state = optimizer.state();
      state["w"] = w.detach();
      for (auto& [unused, tensor] : state) tensor = tensor.clone();
      for (const double bad : {double{NAN}, double{INFINITY}, 1.0}) {
        w.mutable_grad() = at::full_like(w.detach(), bad);
        optimizer.step(0.1, {}, at::ones({}));
        EXPECT_TRUE(torch::equal(w, state.at("w"))) << name << " " << bad;
        for (const auto& [slot, tensor] : optimizer.state()) {
          EXPECT_TRUE(torch::equal(tensor, state.at(slot))) << name << " " << slot << " " << bad;
        }
      }
      return state;
    };
    const TensorMap plain = run({});
    for (const auto& [slot, tensor] : run(at::zeros({}))) {
      EXPECT_TRUE(torch::equal(tensor, plain.at(slot))) << name << " " << slot;
    }
    EXPECT_FALSE(torch::equal(plain.at("w"), randn({4, 5}, 1))) << name;
  }
}

}  // namespace
}  // namespace moesaic
