// SPDX-License-Identifier: Apache-2.0
// Optimizer steps, schedules, clipping and losses against tensors of the reference implementation
// of V-MoE; see tests/golden/README.md.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "moesaic/checkpoint/tensors.h"
#include "moesaic/train/gradient_phase.h"
#include "moesaic/train/objective.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

constexpr double kUpdateTolerance = 2e-6;

const TensorMap& golden_training() {
  static const TensorMap tensors =
      read_tensors(MOESAIC_TEST_SOURCE_DIR "/tests/golden/training.safetensors");
  return tensors;
}

/// The part of a name behind `prefix`, for each tensor that has it.
TensorMap golden_below(const std::string& prefix) {
  TensorMap found;
  for (const auto& [name, tensor] : golden_training()) {
    if (name.starts_with(prefix)) found[name.substr(prefix.size())] = tensor;
  }
  return found;
}

struct ReferencePhase : GradientConfig {
  std::vector<std::string> frozen;
};

/// The reference's optimizers, of 8 steps of which 5 are made.
std::vector<ReferencePhase> reference_optimizers() {
  std::vector<ReferencePhase> list(7);
  for (ReferencePhase& phase : list) {
    phase.optimizer.name = "sgd";
    phase.optimizer.lr = 0.1;
    phase.schedule.name = "constant";
  }
  list[0].clip_norm = 10.0;
  list[0].schedule = {"cosine", 2, 0.0, 0.001};
  list[1].clip_norm = 1.0;
  list[1].schedule = {"linear", 2, 0.0, 0.001};
  list[1].optimizer.weight_decay = 0.01;
  list[1].optimizer.no_decay = {};
  list[2].clip_value = 0.5;
  list[2].optimizer.lr = 0.05;
  list[2].optimizer.momentum = 0.0;
  list[3].clip_norm = 1.0;
  list[3].schedule = {"linear", 2, 0.0, 0.001};
  list[3].optimizer.name = "adamw";
  list[3].optimizer.weight_decays = {{".*/kernel", 0.1}};
  list[4].optimizer.name = "adamw";
  list[4].optimizer.lr = 0.01;
  list[4].optimizer.weight_decays = {{"head/kernel", 3.0}, {".*/kernel", 0.03}};
  list[5].frozen = {"Router"};
  list[5].clip_norm = 2.0;
  list[6].gradient_scale = {{"Moe/Mlp", 8.0}, {"head", 0.5}};
  return list;
}

TEST(ReferenceOptimizer, EveryUpdateIsTheReferences) {
  const std::vector<ReferencePhase> phases = reference_optimizers();
  for (size_t i = 0; i < phases.size(); ++i) {
    const ReferencePhase& phase = phases[i];
    Optimizer::NamedParameters parameters;
    for (const auto& [name, value] : golden_below(fmt::format("optim/{}/param_0/", i))) {
      parameters.emplace_back(name, value.clone().requires_grad_());
    }
    ASSERT_EQ(parameters.size(), 5u);
    Optimizer optimizer(parameters, phase.optimizer, phase.frozen);
    for (int64_t step = 1; step <= 5; ++step) {
      const TensorMap gradients = golden_below(fmt::format("optim/{}/grad_{}/", i, step));
      for (auto& [name, parameter] : parameters) {
        parameter.mutable_grad() = gradients.at(name).clone();
      }
      optimizer.scale_gradients(PatternValues(phase.gradient_scale));
      std::vector<at::Tensor> list = optimizer.gradients();
      clip_gradients(list, gradient_norm(list), phase.clip_norm);
      clip_gradient_values(list, phase.clip_value);
      optimizer.step(learning_rate(phase.schedule, phase.optimizer.lr, step - 1, 8));
      const TensorMap wanted = golden_below(fmt::format("optim/{}/param_{}/", i, step));
      for (const auto& [name, parameter] : parameters) {
        SCOPED_TRACE(fmt::format("optimizer {}, step {}, {}", i, step, name));
        expect_close(parameter.detach(), wanted.at(name), kUpdateTolerance);
      }
    }
  }
}

struct ScheduleCase {
  ScheduleConfig schedule;
  double peak;
  int64_t steps;
};

TEST(ReferenceOptimizer, SchedulesHaveItsValues) {
  const std::vector<ScheduleCase> cases = {{{"cosine", 500, 0.0, 1e-5}, 0.003, 10000},
                                           {{"cosine", 2, 0.0, 1e-5}, 0.03, 10},
                                           {{"linear", 10, 0.0, 1e-5}, 0.003, 50},
                                           {{"rsqrt", 5, 0.0, std::nullopt, 10, 10}, 0.001, 60}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [schedule, peak, steps] = cases[i];
    const TensorMap golden = golden_below(fmt::format("schedule/{}/", i));
    const at::Tensor counts = golden.at("count").to(at::kLong);
    for (int64_t k = 0; k < counts.size(0); ++k) {
      const int64_t count = counts[k].item<int64_t>();
      // Past its end the reference's cooldown goes on below 0.
      const double wanted = std::max(0.0, golden.at("value")[k].item<double>());
      EXPECT_NEAR(learning_rate(schedule, peak, count, steps), wanted, 2e-7 * peak)
          << "schedule " << i << " at " << count;
    }
  }
}

TEST(ReferenceOptimizer, ClipsAtTheNormWithoutAnEpsilon) {
  for (int i = 0; i < 3; ++i) {
    const TensorMap golden = golden_below(fmt::format("clip/{}/", i));
    std::vector<at::Tensor> gradients = {golden.at("a").clone(), golden.at("b").clone()};
    clip_gradients(gradients, gradient_norm(gradients), 10.0);
    EXPECT_TRUE(torch::allclose(gradients[0], golden.at("clipped_a"), 3e-7, 0.0)) << i;
    EXPECT_TRUE(torch::allclose(gradients[1], golden.at("clipped_b"), 3e-7, 0.0)) << i;
  }
}

TEST(ReferenceOptimizer, LossesOfPlainAndMixedLabels) {
  const TensorMap golden = golden_below("loss/");
  const at::Tensor labels = golden.at("labels").argmax(1);
  for (const std::string name : {"softmax", "sigmoid"}) {
    expect_close(training_losses(name, golden.at("logits"), {labels, {}}),
                 golden.at(name + "_xent"), 1e-6);
    const Targets mixed{labels, golden.at("mixed_labels")};
    expect_close(training_losses(name, golden.at("logits"), mixed), golden.at(name + "_xent_mixed"),
                 1e-6);
  }
}

TEST(ReferenceOptimizer, LossesOfEnsembles) {
  const TensorMap golden = golden_below("loss/");
  const at::Tensor labels = golden.at("labels").slice(0, 0, 3);
  const Targets targets{labels.argmax(1), labels};
  for (const std::string name : {"ensemble_softmax", "ensemble_sigmoid"}) {
    const at::Tensor& logits = golden.at("logits");
    expect_close(training_losses(name, logits, targets), golden.at(name + "_xent_train"), 1e-6);
    expect_close(evaluation_losses(name, logits, targets), golden.at(name + "_xent_eval"), 1e-6);
    EXPECT_TRUE(torch::equal(log_mean_probabilities(name, logits, 2).argmax(1).to(at::kInt),
                             golden.at(name + "_xent_prediction").to(at::kInt)));
  }
}

}  // namespace
}  // namespace moesaic
