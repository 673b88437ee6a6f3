// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/encoder_block.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/nn/init.h"
#include "moesaic/ops/autocast.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

void randomize(torch::nn::Module& module, uint64_t seed) {
  const torch::NoGradGuard no_grad;
  module.to(torch::kDouble);
  for (at::Tensor& parameter : module.parameters()) {
    parameter.copy_(randn(parameter.sizes().vec(), ++seed));
  }
}

at::Tensor normalized(const at::Tensor& x, const at::Tensor& scale) {
  const at::Tensor mean = x.mean();
  const at::Tensor variance = (x * x).mean() - mean * mean;
  return (x - mean) / (variance + 1e-6).sqrt() * scale;
}

/// One query [d] on tokens [T, d], head by head.
at::Tensor attend_reference(nn::AttentionImpl& attention, const at::Tensor& query_d,
                            const at::Tensor& x_Td) {
  const int64_t d = query_d.size(0), heads = attention.options().num_heads, c = d / heads;
  const at::Tensor weight = attention.qkv->weight, bias = attention.qkv->bias;
  std::vector<at::Tensor> mixed;
  for (int64_t h = 0; h < heads; ++h) {
    const auto part = [&](int64_t which, const at::Tensor& x) {
      const int64_t row = which * d + h * c;
      return at::mv(weight.narrow(0, row, c), x) + bias.narrow(0, row, c);
    };
    at::Tensor q = part(0, query_d);
    if (attention.options().qk_norm) q = normalized(q, attention.query_norm->weight);
    std::vector<at::Tensor> fractions;
    at::Tensor sum = torch::zeros({c}, torch::kDouble), total = torch::zeros({}, torch::kDouble);
    for (int64_t t = 0; t < x_Td.size(0); ++t) {
      at::Tensor k = part(1, x_Td[t]);
      if (attention.options().qk_norm) k = normalized(k, attention.key_norm->weight);
      const at::Tensor fraction = (at::dot(q, k) / std::sqrt(static_cast<double>(c))).exp();
      sum = sum + fraction * part(2, x_Td[t]);
      total = total + fraction;
    }
    mixed.push_back(sum / total);
  }
  return at::mv(attention.out->weight, at::cat(mixed)) + attention.out->bias;
}

TEST(Attention, IsItsFormula) {
  for (const bool qk_norm : {false, true}) {
    nn::Attention attention(nn::AttentionOptions{.width = 6, .num_heads = 3, .qk_norm = qk_norm},
                            nn::make_generator(1));
    randomize(*attention, 10);
    const at::Tensor x = randn({2, 4, 6}, 2), query = randn({2, 3, 6}, 3);
    const at::Tensor own = attention->forward(x), other = attention->attend(query, x);
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t t = 0; t < 3; ++t) {
        expect_close(own[b][t], attend_reference(*attention, x[b][t], x[b]), 1e-12);
        expect_close(other[b][t], attend_reference(*attention, query[b][t], x[b]), 1e-12);
      }
    }
  }
}

TEST(Attention, ItsGradientIsThatOfFloat32WhereProductsAreRounded) {
  torch::manual_seed(1);
  nn::AttentionImpl attention({.width = 8, .num_heads = 2}, nn::make_generator(1));
  const at::Tensor x = randn({2, 5, 8}, 3, torch::kFloat);
  const auto gradients = [&](const char* precision) {
    attention.zero_grad();
    const at::Tensor input = x.clone().set_requires_grad(true);
    const Autocast autocast(precision, at::kCPU);
    const at::Tensor y = attention.forward(input.to(attention.out->weight.scalar_type()));
    EXPECT_EQ(y.scalar_type(), precision == std::string("bfloat16")
                                   ? at::kBFloat16
                                   : attention.out->weight.scalar_type());
    y.to(at::kFloat).square().sum().backward();
    return std::pair{input.grad(), attention.qkv->weight.grad().clone()};
  };
  const auto [wanted_x, wanted_w] = gradients("float32");
  const auto [found_x, found_w] = gradients("bfloat16");
  attention.to(at::kBFloat16);
  const auto [half_x, half_w] = gradients("float32");
  EXPECT_LE((half_x - wanted_x).norm().item<double>(), 0.02 * wanted_x.norm().item<double>());
  EXPECT_LE((found_x - wanted_x).norm().item<double>(), 0.02 * wanted_x.norm().item<double>());
  EXPECT_LE((found_w - wanted_w).norm().item<double>(), 0.02 * wanted_w.norm().item<double>());
}

TEST(Attention, DropsItsWeightsInTrainingOnly) {
  nn::Attention attention(nn::AttentionOptions{.width = 6, .num_heads = 3, .dropout = 0.5},
                          nn::make_generator(1));
  randomize(*attention, 10);
  const at::Tensor x = randn({2, 4, 6}, 2);
  const at::Tensor plain = attention->forward(x);
  const at::Tensor dropped = attention->forward(x, nn::make_generator(3));
  EXPECT_FALSE(torch::allclose(dropped, plain));
  EXPECT_TRUE(torch::equal(attention->forward(x, nn::make_generator(3)), dropped));
  attention->eval();
  EXPECT_TRUE(torch::equal(attention->forward(x, nn::make_generator(3)), plain));
}

TEST(Attention, DroppingNothingIsTheSameSum) {
  nn::Attention attention(nn::AttentionOptions{.width = 6, .num_heads = 3, .dropout = 1e-12},
                          nn::make_generator(1));
  randomize(*attention, 10);
  const at::Tensor x = randn({2, 4, 6}, 2);
  expect_close(attention->forward(x, nn::make_generator(3)), attention->forward(x), 1e-9);
}

TEST(MapHead, PoolsByTheProbeThenAddsAPerceptron) {
  nn::MapHead head(nn::AttentionOptions{.width = 6, .num_heads = 2, .qk_norm = true},
                   nn::MlpOptions{.width = 6, .hidden = 8}, nn::make_generator(1));
  randomize(*head, 30);
  const at::Tensor x = randn({2, 5, 6}, 2);
  const at::Tensor found = head->forward(x);
  ASSERT_EQ(found.sizes(), (std::vector<int64_t>{2, 6}));
  for (int64_t b = 0; b < 2; ++b) {
    const at::Tensor pooled = attend_reference(*head->attention, head->probe[0][0], x[b]);
    const at::Tensor normed = normalized(pooled, head->norm->weight) + head->norm->bias;
    const at::Tensor hidden =
        at::gelu(at::mv(head->mlp->fc1->weight, normed) + head->mlp->fc1->bias, "tanh");
    expect_close(found[b], pooled + at::mv(head->mlp->fc2->weight, hidden) + head->mlp->fc2->bias,
                 1e-12);
  }
}

TEST(Mlp, EqualsTwoLinearLayersAndTheirGradients) {
  nn::Mlp mlp(nn::MlpOptions{.width = 6, .hidden = 10}, nn::make_generator(1));
  mlp->fc1->bias.detach().copy_(randn({10}, 2, torch::kFloat));
  mlp->fc2->bias.detach().copy_(randn({6}, 3, torch::kFloat));
  const at::Tensor x = randn({3, 5, 6}, 4, torch::kFloat);
  const at::Tensor found = mlp->forward(x);
  found.square().sum().backward();
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : mlp->parameters()) gradients.push_back(parameter.grad().clone());
  mlp->zero_grad();
  const at::Tensor wanted = mlp->fc2->forward(at::gelu(mlp->fc1->forward(x), "tanh"));
  wanted.square().sum().backward();
  expect_close(found, wanted, 1e-6);
  for (size_t i = 0; i < gradients.size(); ++i) {
    expect_close(gradients[i], mlp->parameters()[i].grad(), 1e-5);
  }
}

/// Every row of a block's output is one of four sums: with each branch or without, those that stay
/// over 1 - rate.
TEST(EncoderBlock, StochasticDepthKeepsOrDropsABranchOfAnImage) {
  constexpr double kRate = 0.4, kImages = 200;
  for (const bool has_experts : {false, true}) {
    nn::EncoderBlockOptions options;
    options.attention = {.width = 8, .num_heads = 2};
    options.mlp = {.width = 8, .hidden = 6};
    options.drop_path = kRate;
    if (has_experts) options.moe = nn::MoELayerOptions{.width = 8, .hidden = 6, .num_experts = 3};
    nn::EncoderBlock block(options, nn::make_generator(1));
    const torch::NoGradGuard no_grad;
    const at::Tensor x_BTd = randn({static_cast<int64_t>(kImages), 3, 8}, 2, torch::kFloat);
    const at::Tensor found = block->forward(x_BTd, nn::make_generator(3)).x_BTd;
    const auto branch = [&](const at::Tensor& y_BTd) {
      const at::Tensor normed = block->norm2->forward(y_BTd);
      if (!has_experts) return block->mlp->forward(normed);
      return block->moe->forward(normed.reshape({-1, 8})).y_Td.view_as(y_BTd);
    };
    const at::Tensor attended = block->attention->forward(block->norm1->forward(x_BTd));
    std::vector<double> fractions;
    for (const double first : {0.0, 1.0 / (1.0 - kRate)}) {
      for (const double second : {0.0, 1.0 / (1.0 - kRate)}) {
        const at::Tensor between = x_BTd + first * attended;
        const at::Tensor wanted = between + second * branch(between);
        const at::Tensor is_this = (found - wanted).abs().amax({1, 2}).lt(1e-5);
        fractions.push_back(is_this.sum().item<double>() / kImages);
      }
    }
    EXPECT_NEAR(fractions[0] + fractions[1] + fractions[2] + fractions[3], 1.0, 1e-9);
    EXPECT_NEAR(fractions[0], kRate * kRate, 0.1);
    EXPECT_NEAR(fractions[3], (1 - kRate) * (1 - kRate), 0.1);
    EXPECT_TRUE(torch::equal(block->forward(x_BTd, nn::make_generator(3)).x_BTd, found));
    block->eval();
    const at::Tensor plain = block->forward(x_BTd, nn::make_generator(3)).x_BTd;
    expect_close(plain, x_BTd + attended + branch(x_BTd + attended), 1e-5);
  }
}

}  // namespace

}  // namespace moesaic
