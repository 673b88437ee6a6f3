// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/gated.h"

#include <torch/script.h>

#include "moesaic/export/formats.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

const GruConfig kSmallGru{.num_steps = 6, .input_size = 4, .hidden_size = 7, .num_classes = 3};

TEST(Gru, TorchScriptEqualsItInBothViews) {
  for (const char* view : nn::kGruViewNames) {
    for (const char* gates : nn::kGruGatesNames) {
      SCOPED_TRACE(std::string(view) + ", " + gates);
      GruConfig config = kSmallGru;
      config.view = view;
      config.gates = gates;
      Gru model(config, 2);
      torch::jit::Module script = to_torchscript(model);
      for (const int64_t batch : {1, 5}) {
        const at::Tensor images = randn({batch, 1, 6, 4}, 3, torch::kFloat);
        expect_close(script.forward({images}).toTensor(), model.forward(images).logits, 1e-6);
      }
    }
  }
}

TEST(Gru, GatesOverTimeAreMeansOverUnits) {
  Gru model(kSmallGru, 2);
  const at::Tensor images = randn({5, 1, 6, 4}, 3, torch::kFloat);
  const auto gates = model.gates_over_time(images);
  const nn::GruStates states = model.gru->forward(images.squeeze(1));
  expect_close(gates.at("update"), states.update.mean(2), 1e-7);
  expect_close(gates.at("reset"), states.reset.mean(2), 1e-7);
  EXPECT_EQ(gates.size(), 2U);
}

TEST(Gru, ANewHeadHasTheClassesAndZeros) {
  Gru model(kSmallGru, 2);
  model.reset_head(5);
  EXPECT_EQ(model.num_classes(), 5);
  const at::Tensor logits = model.forward(randn({2, 1, 6, 4}, 3, torch::kFloat)).logits;
  EXPECT_EQ(logits.size(1), 5);
  EXPECT_EQ(logits.abs().sum().item<double>(), 0.0);
}

}  // namespace
}  // namespace moesaic
