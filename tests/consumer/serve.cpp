// SPDX-License-Identifier: Apache-2.0
#include <torch/script.h>

#include <iostream>

int main(int, char** arguments) {
  const torch::NoGradGuard no_grad;
  torch::jit::Module network = torch::jit::load(arguments[1]);
  network.eval();
  const torch::Tensor images = torch::zeros({8, 1, 28, 28});  // normalised as preprocess.json says
  std::cout << network.forward({images}).toTensor().sizes() << '\n';
}
