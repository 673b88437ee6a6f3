// SPDX-License-Identifier: Apache-2.0
// server FILE.pt2 CHANNELS HEIGHT WIDTH: reads images as bytes and prints the class of each.
#include <torch/nativert/ModelRunnerHandle.h>
#include <torch/torch.h>

#include <iostream>
#include <string>
#include <vector>

int main(int, char** arguments) {
  const torch::NoGradGuard no_grad;
  torch::nativert::ModelRunnerHandle network(arguments[1], "model");
  const int64_t channels = std::stoll(arguments[2]), height = std::stoll(arguments[3]),
                width = std::stoll(arguments[4]), size = channels * height * width;
  std::vector<char> batch(static_cast<size_t>(32 * size));
  do {
    std::cin.read(batch.data(), static_cast<std::streamsize>(batch.size()));
    const int64_t count = std::cin.gcount() / size;
    if (count == 0) break;
    const torch::Tensor images =
        torch::from_blob(batch.data(), {count, channels, height, width}, torch::kByte);
    const torch::Tensor logits = network.runWithFlatInputsAndOutputs({images})[0].toTensor();
    for (int64_t i = 0; i < count; ++i) std::cout << logits[i].argmax().item<int64_t>() << '\n';
    std::cout.flush();
  } while (std::cin);
}
