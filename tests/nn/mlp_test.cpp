// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/encoder_block.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/nn/init.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::expect_close;
using testing::randn;

TEST(Mlp, EqualsTwoLinearLayersAndTheirGradients) {
  nn::Mlp mlp(6, 10, nn::make_generator(1));
  {
    const torch::NoGradGuard no_grad;
    mlp->fc1->bias.copy_(randn({10}, 2, torch::kFloat));
    mlp->fc2->bias.copy_(randn({6}, 3, torch::kFloat));
  }
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

}  // namespace
}  // namespace moesaic
