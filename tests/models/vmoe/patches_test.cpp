// SPDX-License-Identifier: Apache-2.0
// Which patch becomes which token, in images and patches that are not square, against plain
// loops.
#include <cmath>
#include <vector>

#include "moesaic/models/vmoe/vmoe.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

constexpr int64_t kChannels = 3, kHeight = 8, kWidth = 24, kPatchHeight = 4, kPatchWidth = 3,
                  kTokenWidth = 8, kGridHeight = kHeight / kPatchHeight,
                  kGridWidth = kWidth / kPatchWidth;

VMoEConfig wide_config() {
  return {.image_size = {kHeight, kWidth},
          .channels = kChannels,
          .patch_size = {kPatchHeight, kPatchWidth},
          .hidden_size = kTokenWidth,
          .num_classes = 0,
          .classifier = "gap",
          .encoder = {.num_layers = 1, .num_heads = 2, .mlp_dim = 4}};
}

/// A network whose one block leaves its tokens alone: its outputs are those of tokens, normalised
/// and averaged, which tells which position a patch was given.
std::shared_ptr<VMoE> patches_alone(const VMoEConfig& config) {
  auto model = std::make_shared<VMoE>(config, 1);
  const torch::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (auto& item : model->named_parameters()) {
    item.value().copy_(randn(item.value().sizes().vec(), ++seed, torch::kFloat));
  }
  const auto block = std::dynamic_pointer_cast<nn::EncoderBlockImpl>(model->blocks->ptr(0));
  for (auto& parameter : block->parameters()) parameter.zero_();
  model->eval();
  return model;
}

/// In float64, pixel by pixel.
std::vector<double> averaged(const VMoE& model, const at::Tensor& image_CHW) {
  const at::Tensor positions = model.position_embedding[0],
                   kernels = model.embedding->weight.detach(),
                   bias = model.embedding->bias.detach(), scale = model.norm->weight.detach(),
                   shift = model.norm->bias.detach();
  const auto number = [](const at::Tensor& x) { return x.item<double>(); };
  std::vector<double> sum(kTokenWidth, 0.0);
  for (int64_t row = 0; row < kGridHeight; ++row) {
    for (int64_t column = 0; column < kGridWidth; ++column) {
      std::vector<double> token;
      double mean = 0.0, square = 0.0;
      for (int64_t d = 0; d < kTokenWidth; ++d) {
        double value = number(bias[d]) + number(positions[row * kGridWidth + column][d]);
        for (int64_t c = 0; c < kChannels; ++c) {
          for (int64_t y = 0; y < kPatchHeight; ++y) {
            for (int64_t x = 0; x < kPatchWidth; ++x) {
              value += number(kernels[d][c][y][x]) *
                       number(image_CHW[c][row * kPatchHeight + y][column * kPatchWidth + x]);
            }
          }
        }
        token.push_back(value);
        mean += value / kTokenWidth;
        square += value * value / kTokenWidth;
      }
      const double root = std::sqrt(square - mean * mean + 1e-6);
      for (int64_t d = 0; d < kTokenWidth; ++d) {
        const auto i = static_cast<size_t>(d);
        sum[i] += (token[i] - mean) / root * number(scale[d]) + number(shift[d]);
      }
    }
  }
  for (double& value : sum) value /= kGridHeight * kGridWidth;
  return sum;
}

TEST(VMoEPatches, RunRowByRowBesideTheirPositions) {
  const auto model = patches_alone(wide_config());
  const torch::NoGradGuard no_grad;
  const at::Tensor images = randn({2, kChannels, kHeight, kWidth}, 9, torch::kFloat);
  const at::Tensor found = model->forward(images).logits.to(torch::kDouble);
  for (int64_t i = 0; i < images.size(0); ++i) {
    expect_close(found[i], torch::tensor(averaged(*model, images[i]), torch::kDouble), 1e-5);
  }
}

}  // namespace
}  // namespace moesaic
