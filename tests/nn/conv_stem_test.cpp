// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/conv_stem.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "moesaic/nn/init.h"
#include "support/tensors.h"

namespace moesaic::nn {
namespace {

ConvStem random_stem() {
  ConvStem stem(2, std::vector<StemLayer>{{3, 1}, {4, 2}}, make_generator(1));
  stem->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  uint64_t seed = 10;
  for (at::Tensor& parameter : stem->parameters()) {
    parameter.copy_(randn(parameter.sizes().vec(), ++seed));
  }
  return stem;
}

/// One layer, number by number: x [C, H, W].
at::Tensor by_loops(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scale,
                    const at::Tensor& shift, int64_t stride) {
  const int64_t height = (x.size(1) + stride - 1) / stride,
                width = (x.size(2) + stride - 1) / stride;
  at::Tensor out = at::zeros({weight.size(0), height, width}, x.options());
  auto y = out.accessor<double, 3>();
  const auto in = x.accessor<double, 3>();
  const auto w = weight.accessor<double, 4>();
  for (int64_t row = 0; row < height; ++row) {
    for (int64_t column = 0; column < width; ++column) {
      double mean = 0.0, square = 0.0;
      for (int64_t o = 0; o < weight.size(0); ++o) {
        double sum = 0.0;
        for (int64_t c = 0; c < x.size(0); ++c) {
          for (int64_t k = 0; k < 9; ++k) {
            const int64_t r = row * stride + k / 3 - 1, z = column * stride + k % 3 - 1;
            const bool inside = r >= 0 && r < x.size(1) && z >= 0 && z < x.size(2);
            if (inside) sum += w[o][c][k / 3][k % 3] * in[c][r][z];
          }
        }
        y[o][row][column] = sum;
        mean += sum / static_cast<double>(weight.size(0));
        square += sum * sum / static_cast<double>(weight.size(0));
      }
      const double root = std::sqrt(square - mean * mean + 1e-6);
      for (int64_t o = 0; o < weight.size(0); ++o) {
        const double scaled = (y[o][row][column] - mean) / root * scale[o].item<double>();
        y[o][row][column] = std::max(0.0, scaled + shift[o].item<double>());
      }
    }
  }
  return out;
}

TEST(ConvStem, EqualsPlainLoops) {
  ConvStem stem = random_stem();
  const torch::NoGradGuard no_grad;
  const at::Tensor images = randn({3, 2, 6, 5}, 5);
  const at::Tensor found = stem->forward(images);
  ASSERT_EQ(found.sizes(), (std::vector<int64_t>{3, 4, 3, 3}));
  const auto values = stem->named_parameters();
  for (int64_t i = 0; i < images.size(0); ++i) {
    at::Tensor x = images[i];
    for (const int64_t layer : {0, 1}) {
      const std::string number = std::to_string(layer), norm = "norms." + number;
      x = by_loops(x, values["convs." + number + ".weight"], values[norm + ".weight"],
                   values[norm + ".bias"], layer == 0 ? 1 : 2);
    }
    expect_close(found[i], x, 1e-10);
  }
}

TEST(ConvStem, ItsGradientsAreThoseOfDifferences) {
  ConvStem stem = random_stem();
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

}  // namespace
}  // namespace moesaic::nn
