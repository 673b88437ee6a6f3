// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/conv_stem.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <string>

#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"
#include "support/tensors.h"

namespace moesaic::nn {
namespace {

ConvStem random_stem(const std::string& norm) {
  ConvStem stem(2, std::vector<StemLayer>{{3, 1, norm}, {4, 2, norm}}, make_generator(1));
  stem->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  uint64_t seed = 10;
  for (at::Tensor& parameter : stem->parameters()) {
    parameter.copy_(randn(parameter.sizes().vec(), ++seed));
  }
  return stem;
}

/// A convolution, number by number: x [C, H, W].
at::Tensor convolved_by_loops(const at::Tensor& x, const at::Tensor& weight, int64_t stride) {
  const int64_t height = (x.size(1) + stride - 1) / stride,
                width = (x.size(2) + stride - 1) / stride;
  at::Tensor out = at::zeros({weight.size(0), height, width}, x.options());
  auto y = out.accessor<double, 3>();
  const auto in = x.accessor<double, 3>();
  const auto w = weight.accessor<double, 4>();
  for (int64_t o = 0; o < weight.size(0); ++o) {
    for (int64_t row = 0; row < height; ++row) {
      for (int64_t column = 0; column < width; ++column) {
        for (int64_t c = 0; c < x.size(0); ++c) {
          for (int64_t k = 0; k < 9; ++k) {
            const int64_t r = row * stride + k / 3 - 1, z = column * stride + k % 3 - 1;
            const bool inside = r >= 0 && r < x.size(1) && z >= 0 && z < x.size(2);
            if (inside) y[o][row][column] += w[o][c][k / 3][k % 3] * in[c][r][z];
          }
        }
      }
    }
  }
  return out;
}

/// A layer of the stem before ReLU: x [B, C, H, W]; value("norms.{}.weight") is one of its tensors.
at::Tensor layer_by_loops(const at::Tensor& x, int64_t stride, bool training, const auto& value) {
  const auto of_channels = [](const at::Tensor& numbers) { return numbers.view({1, -1, 1, 1}); };
  std::vector<at::Tensor> maps;
  for (const at::Tensor& image : x.unbind()) {
    maps.push_back(convolved_by_loops(image, value("convs.{}.weight"), stride));
  }
  const at::Tensor y = at::stack(maps);
  at::Tensor mean, var;
  if (!value("norms.{}.running_mean").defined()) {
    mean = y.mean({1}, /*keepdim=*/true);
    var = y.var({1}, /*unbiased=*/false, /*keepdim=*/true) + 1e-6;
  } else if (training) {
    mean = y.mean({0, 2, 3}, /*keepdim=*/true);
    var = y.var({0, 2, 3}, /*unbiased=*/false, /*keepdim=*/true) + 1e-5;
  } else {
    mean = of_channels(value("norms.{}.running_mean"));
    var = of_channels(value("norms.{}.running_var")) + 1e-5;
  }
  return (y - mean) / var.sqrt() * of_channels(value("norms.{}.weight")) +
         of_channels(value("norms.{}.bias"));
}

void expect_equals_plain_loops(ConvStem stem) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> values;  // A forward pass in training changes some.
  for (const auto& item : stem->named_parameters()) values[item.key()] = item.value().clone();
  for (const auto& item : stem->named_buffers()) values[item.key()] = item.value().clone();
  const at::Tensor images = randn({3, 2, 6, 5}, 5);
  at::Tensor x = images;
  for (const int64_t layer : {0, 1}) {
    const auto value = [&](const std::string& name) {
      return values[fmt::format(fmt::runtime(name), layer)];
    };
    x = layer_by_loops(x, layer == 0 ? 1 : 2, stem->is_training(), value).relu();
  }
  const at::Tensor found = stem->forward(images);
  ASSERT_EQ(found.sizes(), (std::vector<int64_t>{3, 4, 3, 3}));
  expect_close(found, x, 1e-10);
}

class ConvStemNorm : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Norms, ConvStemNorm, ::testing::Values("layer_norm", "batch_norm"),
                         [](const auto& test) { return test.param; });

TEST_P(ConvStemNorm, EqualsPlainLoops) {
  ConvStem stem = random_stem(GetParam());
  for (at::Tensor& buffer : stem->buffers()) {
    if (buffer.is_floating_point()) buffer.copy_(randn(buffer.sizes().vec(), 3).abs() + 0.5);
  }
  stem->eval();
  expect_equals_plain_loops(stem);
  stem->train();
  expect_equals_plain_loops(stem);
}

TEST_P(ConvStemNorm, ItsGradientsAreThoseOfDifferences) {
  ConvStem stem = random_stem(GetParam());
  const auto forward = [&](const std::vector<at::Tensor>& inputs) {
    return stem->forward(inputs[0]);
  };
  expect_gradients(forward, {randn({2, 2, 4, 4}, 6).requires_grad_()});
  stem->forward(randn({2, 2, 4, 4}, 7)).square().sum().backward();
  for (const auto& item : stem->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().sum().item<double>(), 0.0) << item.key();
  }
}

TEST(ConvStem, StartsWithUnitVarianceFromItsGeneratorAlone) {
  const std::vector<StemLayer> layers = {{64, 1}, {128, 2}};
  ConvStem a(3, layers, make_generator(2)), b(3, layers, make_generator(2));
  const auto wanted = b->named_parameters();
  for (const auto& item : a->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), wanted[item.key()])) << item.key();
  }
  EXPECT_NEAR(wanted["convs.1.weight"].std().item<double>(), 1.0 / std::sqrt(64 * 9), 1e-3);
}

TEST(ConvStem, RefusesAnUnknownNorm) {
  const std::vector<StemLayer> layers = {{4, 1, "group_norm"}};
  EXPECT_THROW(ConvStem(3, layers, make_generator(1)), Error);
}

}  // namespace
}  // namespace moesaic::nn
