// SPDX-License-Identifier: Apache-2.0
// The program that docs/operators.md points to: trains one MoE layer to copy its input, then
// removes half of its experts.
#include <moesaic/base/error.h>
#include <moesaic/nn/moe_layer.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  torch::manual_seed(0);
  moesaic::nn::MoELayer layer(
      moesaic::nn::MoELayerOptions{.width = 16, .hidden = 32, .num_experts = 8});
  torch::optim::Adam optimizer(layer->parameters(), 1e-2);
  const torch::Tensor x = torch::randn({256, 16});  // [tokens, width]
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = (layer->forward(x).y_Td - x).square().mean();
    loss.backward();
    optimizer.step();
    if (step % 100 == 0 || step == 199) std::cout << step << "  " << loss.item<float>() << '\n';
  }
  layer->keep_experts({0, 1, 2, 3});
  const auto out = layer->forward(x);
  std::cout << "rows computed after pruning: " << out.routing.offsets[-1].item<int>() << " of "
            << out.routing.max_rows() << '\n';
  try {
    layer->keep_experts({0, 9});
  } catch (const moesaic::Error& error) {
    std::cout << error.what() << '\n';
  }
}
