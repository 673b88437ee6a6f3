// SPDX-License-Identifier: Apache-2.0
// One training step of networks of real layers on a GPU against the CPU: loss, gradients, routing.
#include <algorithm>
#include <string>

#include "moesaic/config/document.h"
#include "moesaic/models/registry.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "moesaic/ops/device.h"
#include "support/cuda.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::on_cpu;

struct Network {
  const char* name;
  const char* config;
  int64_t images;
};

constexpr Network kNetworks[] = {
    {"VMoE", R"({"preset": "vmoe/s32-last2-8experts", "num_classes": 10,
                 "encoder": {"moe": {"router": {"noise_std": 0}}}})",
     4},
    {"E3", R"({"preset": "e3/s32-last2-8experts", "num_classes": 10,
               "encoder": {"moe": {"router": {"noise_std": 0}}}})",
     4},
    {"WrnPMoE", R"({"preset": "pmoe/wrn-pmoe", "widen_factor": 1, "num_classes": 10})", 16},
    {"ResNet18", R"({"name": "image-moe", "expert": "resnet18", "num_experts": 4, "num_classes": 10,
                     "router": {}})",
     16},
    {"MobileNetV2", R"({"name": "image-moe", "expert": "mobilenetv2", "num_experts": 4,
                        "num_classes": 10, "router": {}})",
     16},
    {"SmallCnn", R"({"name": "image-moe", "expert": "cnn", "num_experts": 4, "num_classes": 10,
                     "router": {}})",
     16},
};

/// What a training step computes, on the CPU.
struct Step {
  at::Tensor logits;
  std::vector<at::Tensor> choices;
  std::map<std::string, at::Tensor> gradients;
};

Step training_step(const Network& network, at::Device device) {
  const BackendScope exact(device, {});
  const Document config = Document::from_text(network.config, network.name);
  const auto model = build_model(config.root(), 1);
  model->train();
  {
    const torch::NoGradGuard no_grad;  // Routers of zeros would choose by ties alone.
    int64_t seed = 10;
    for (auto& item : model->named_parameters()) {
      if (item.key().find("router") == std::string::npos) continue;
      item.value().copy_(testing::randn(item.value().sizes().vec(), ++seed, torch::kFloat) * 0.05);
    }
  }
  model->to(device);
  std::vector<int64_t> shape = model->input_shape();
  shape.insert(shape.begin(), network.images);
  const at::Tensor images = testing::randn(shape, 2, torch::kFloat).to(device);
  const at::Tensor labels =
      torch::arange(network.images, torch::device(device).dtype(torch::kLong)).remainder(10);
  const ModelOutput output = model->forward(images);
  torch::cross_entropy_loss(output.logits.to(torch::kFloat).slice(0, 0, network.images), labels)
      .backward();
  Step step{on_cpu(output.logits), {}, {}};
  for (const RoutingRecord& record : output.routings) {
    step.choices.push_back(record.routing.token.to(torch::kCPU));
  }
  for (const auto& item : model->named_parameters()) {
    if (item.value().grad().defined()) step.gradients[item.key()] = on_cpu(item.value().grad());
  }
  return step;
}

/// floor: a norm below which a tensor counts as zero but for rounding.
double relative_distance(const at::Tensor& found, const at::Tensor& wanted, double floor = 0) {
  return (found - wanted).norm().item<double>() / std::max(wanted.norm().item<double>(), floor);
}

/// Returns the fraction of equal numbers; two experts of a token may tie within rounding.
double equal_share(const at::Tensor& a, const at::Tensor& b) {
  return a.eq(b).to(torch::kDouble).mean().item<double>();
}

class NetworksCuda : public testing::CudaTest, public ::testing::WithParamInterface<Network> {
 protected:
  void SetUp() override {
    testing::CudaTest::SetUp();
    if (!IsSkipped() && !has_cuda_operators()) GTEST_SKIP() << "built without operators for a GPU";
  }
};

TEST_P(NetworksCuda, ATrainingStepIsThatOfTheCpu) {
  const Step cpu = training_step(GetParam(), torch::kCPU);
  const Step gpu = training_step(GetParam(), torch::kCUDA);
  EXPECT_LT(relative_distance(gpu.logits, cpu.logits), 1e-3);
  ASSERT_EQ(gpu.choices.size(), cpu.choices.size());
  for (size_t i = 0; i < cpu.choices.size(); ++i) {
    ASSERT_EQ(gpu.choices[i].sizes(), cpu.choices[i].sizes());
    EXPECT_GE(equal_share(gpu.choices[i], cpu.choices[i]), 0.99) << "routing " << i;
  }
  ASSERT_EQ(gpu.gradients.size(), cpu.gradients.size());
  double largest = 0;
  for (const auto& [name, gradient] : cpu.gradients) {
    largest = std::max(largest, gradient.norm().item<double>());
  }
  for (const auto& [name, gradient] : cpu.gradients) {
    // Batch norms of few images magnify rounding.
    EXPECT_LT(relative_distance(gpu.gradients.at(name), gradient, 1e-5 * largest), 2e-2) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, NetworksCuda, ::testing::ValuesIn(kNetworks),
                         [](const auto& instance) { return std::string(instance.param.name); });

class VMoECuda : public testing::CudaTest {};

TEST_F(VMoECuda, WavesMoveWithTheNetwork) {
  VMoEConfig config;
  config.image_size = 8;
  config.patch_size = 2;
  config.hidden_size = 8;
  config.encoder.num_layers = 1;
  config.encoder.num_heads = 2;
  config.encoder.position_emb.name = kSinCos2d;
  VMoE model(config, 1);
  Model& base = model;
  base.to(torch::kCUDA);
  EXPECT_TRUE(model.sincos_position_embedding().is_cuda());
  base.to(torch::kCPU, torch::kFloat);
  EXPECT_TRUE(model.sincos_position_embedding().is_cpu());
}

}  // namespace
}  // namespace moesaic
