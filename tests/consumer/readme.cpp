// SPDX-License-Identifier: Apache-2.0
#include <moesaic/nn/moe_layer.h>
#include <torch/torch.h>

int main() {
  moesaic::nn::MoELayer layer(
      moesaic::nn::MoELayerOptions{.width = 16, .hidden = 32, .num_experts = 8});
  torch::optim::Adam optimizer(layer->parameters(), 1e-2);
  const torch::Tensor x = torch::randn({256, 16});  // [tokens, width]
  (layer->forward(x).y_Td - x).square().mean().backward();
  optimizer.step();
  layer->keep_experts({0, 1, 2, 3});
}
