// SPDX-License-Identifier: Apache-2.0
// A phase on a GPU does what it does on the CPU.
#include "moesaic/train/gradient_phase.h"
#include "moesaic/models/registry.h"
#include "moesaic/ops/device.h"
#include "moesaic/train/evaluate.h"
#include "support/cuda.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using testing::on_cpu;
using train_test::config_of;
using train_test::four_phases;
using train_test::open_tiny;

class GradientPhaseCuda : public testing::CudaTest {
 protected:
  void SetUp() override {
    testing::CudaTest::SetUp();
    if (!IsSkipped() && !has_cuda_operators()) GTEST_SKIP() << "built without operators for a GPU";
  }
};

struct Trained {
  double loss;
  TensorMap momentum;
  double test_loss;
};

/// After one step, whose momentum is the gradient itself.
Trained one_step(at::Device device) {
  const RunConfig config =
      config_of(four_phases(), {"phases.0.optimizer={\"name\": \"sgd\"}", "phases.0.clip_norm=0",
                                "model.encoder.moe.router.noise_std=0",
                                "phases.0.aux_losses={\"importance\": 0.5}"});
  const auto model = RunStart(config).model();
  DatasetCache datasets(open_tiny);
  const PhasePlan plan = plan_phases(config, *model, datasets)[0];
  model->to(device);
  GradientPhase phase(
      plan,
      PhaseContext{
          .model = model, .data = open_tiny("three", "train"), .seed = 7, .defer_metrics = false});
  const double loss = phase.step().metrics.at("loss");
  const Evaluation evaluation = evaluate(*model, open_tiny("three", "test"));
  return {loss, phase.state().tensors, evaluation.metric("loss")};
}

TEST_F(GradientPhaseCuda, UpdatesAsOnTheCpu) {
  const Trained cpu = one_step(at::kCPU), gpu = one_step(at::kCUDA);
  EXPECT_NEAR(gpu.loss, cpu.loss, 1e-5);
  EXPECT_NEAR(gpu.test_loss, cpu.test_loss, 1e-4);
  for (const auto& [name, gradient] : cpu.momentum) {
    EXPECT_TRUE(gpu.momentum.at(name).is_cuda()) << name;
    EXPECT_TRUE(at::allclose(on_cpu(gpu.momentum.at(name)), on_cpu(gradient), 1e-4, 1e-5)) << name;
  }
}

/// Of the first batch, importance included, which noise in the router moves.
double first_loss(const std::string& noise_std) {
  const RunConfig config =
      config_of(four_phases(), {"phases.0.aux_losses={\"importance\": 0.5}",
                                "model.encoder.moe.router.noise_std=" + noise_std});
  const auto model = RunStart(config).model();
  DatasetCache datasets(open_tiny);
  const PhasePlan plan = plan_phases(config, *model, datasets)[0];
  model->to(at::kCUDA);
  return GradientPhase(plan, {.model = model,
                              .data = open_tiny("three", "train"),
                              .seed = 7,
                              .defer_metrics = false})
      .step()
      .metrics.at("loss");
}

TEST_F(GradientPhaseCuda, DrawsTheSameNoiseThereAgain) {
  EXPECT_NE(first_loss("1"), first_loss("0"));
  EXPECT_EQ(first_loss("1"), first_loss("1"));
}

}  // namespace
}  // namespace moesaic
