// SPDX-License-Identifier: Apache-2.0
// Learning rates that fall from the head to the embedding.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>

#include "moesaic/train/gradient_phase.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using train_test::config_of;
using train_test::error_of;
using train_test::four_phases;
using train_test::open_tiny;

// Two blocks, the second with experts; a gradient of ones moves a number by its learning rate.
TEST(LayerDecay, IsThatOfTimm) {
  constexpr double kLr = 0.1, kDecay = 0.5, kWeightDecay = 0.25;
  const auto model = RunStart(config_of(four_phases())).model();
  Optimizer::NamedParameters named;
  for (const auto& item : model->named_parameters()) {
    const torch::NoGradGuard no_grad;
    at::Tensor parameter = item.value();
    parameter.fill_(2.0);
    parameter.mutable_grad() = torch::ones_like(parameter);
    named.emplace_back(item.key(), parameter);
  }
  const OptimizerConfig config{.name = "sgd",
                               .layer_decay = kDecay,
                               .momentum = 0.0,
                               .weight_decay = kWeightDecay,
                               .no_decay = {"bias$"}};
  Optimizer optimizer(named, config, {}, {},
                      [&](const std::string& name) { return model->layers_after(name); });
  optimizer.step(kLr);
  const std::map<std::string, double> wanted = {{"head.weight", 1.0},
                                                {"head.bias", 1.0},
                                                {"norm.weight", kDecay},
                                                {"blocks.1.norm1.weight", kDecay},
                                                {"blocks.1.moe.router.weight", kDecay},
                                                {"blocks.1.moe.experts.w1", kDecay},
                                                {"blocks.0.attention.qkv.bias", 0.25},
                                                {"blocks.0.mlp.fc2.weight", 0.25},
                                                {"embedding.weight", 0.125},
                                                {"cls", 0.125},
                                                {"position_embedding", 0.125}};
  const auto parameters = model->named_parameters();
  for (const auto& [name, scale] : wanted) {
    const double slope = 1.0 + (name.ends_with("bias") ? 0.0 : kWeightDecay * 2.0);
    const at::Tensor moved = parameters[name].detach();
    EXPECT_LE((moved - (2.0 - kLr * scale * slope)).abs().max().item<double>(), 1e-6) << name;
  }
}

TEST(LayerDecay, ANormAfterPoolingLearnsAsTheHead) {
  const auto of = [](const std::string& after) {
    const RunConfig config =
        config_of(four_phases(), {"model.classifier=gap", "model.norm_after_pooling=" + after});
    return RunStart(config).model()->layers_after("norm.weight");
  };
  EXPECT_EQ(of("true"), 0);
  EXPECT_EQ(of("false"), 1);
}

std::string refusal(const std::vector<std::string>& changes, const std::string& run) {
  return error_of([&] {
    const RunConfig config = config_of(run, changes);
    DatasetCache datasets(open_tiny);
    plan_phases(config, *RunStart(config).model(), datasets);
  });
}

TEST(LayerDecay, NeedsAFamilyThatTellsItsLayers) {
  const std::string run = R"({"name": "flat",
      "model": {"name": "image-moe", "expert": "mobilenetv2", "image_size": 4, "channels": 1,
                "num_classes": 3, "width": 0.05, "router": {}},
      "phases": [{"name": "train", "data": "three", "batch_size": 6, "steps": 5}]})";
  EXPECT_EQ(refusal({}, run), "no error");
  EXPECT_THAT(refusal({"phases.train.optimizer.layer_decay=0.5"}, run),
              ::testing::HasSubstr("does not number its layers; set optimizer.layer_decay to 1"));
}

TEST(Mixup, NeedsALossOfMixedLabels) {
  const std::string mixup = "phases.recover.augment={\"mixup\": 0.2}";
  EXPECT_EQ(refusal({mixup}, four_phases()), "no error");
  EXPECT_THAT(refusal({mixup, "phases.recover.loss=hinge"}, four_phases()),
              ::testing::HasSubstr("loss 'hinge' takes no mixed labels; choose softmax"));
}

}  // namespace
}  // namespace moesaic
