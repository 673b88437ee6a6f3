// SPDX-License-Identifier: Apache-2.0
// Router, experts with dropout, and training steps on a GPU: what they wait for, and which products
// may round their inputs.
#include "fake_gpu/fake_gpu_fixture.h"
#include "moesaic/models/registry.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/moe_layer.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/ops/device.h"
#include "moesaic/train/gradient_phase.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using at::Tensor;
using testing::on_fake;

constexpr int64_t kTokens = 512, kWidth = 64, kHidden = 128, kExperts = 8;

nn::MoELayer layer_on_fake(double dropout) {
  nn::MoELayer layer(nn::MoELayerOptions{.width = kWidth,
                                         .hidden = kHidden,
                                         .num_experts = kExperts,
                                         .dropout = dropout,
                                         .rule = RouteOptions{.k = 2},
                                         .noise = {.scale = 1.0}});
  layer->to(at::kCUDA);
  layer->train();
  return layer;
}

/// A phase of the tiny V-MoE, with widths that grouped GEMMs take.
struct TinyRun {
  explicit TinyRun(const std::string& precision)
      : config(train_test::config_of(train_test::four_phases(), {"precision=" + precision})),
        model(RunStart(config).model()),
        plan(plan_phases(config, *model, datasets)[0]) {
    model->to(at::kCUDA);
    phase.emplace(
        plan,
        PhaseContext{.model = model, .data = train_test::open_tiny("three", "train"), .seed = 7});
  }

  RunConfig config;
  std::shared_ptr<Model> model;
  DatasetCache datasets{train_test::open_tiny};
  PhasePlan plan;
  std::optional<GradientPhase> phase;
};

class ModulesOnAGpu : public testing::FakeGpuTest {
 protected:
  /// Counts a step, and the metrics of it that a run reads when the next step has started.
  struct StepCounts {
    FakeGpuCounts step, late;
  };
  static StepCounts count_step(const std::string& precision) {
    TinyRun run(precision);
    run.phase->step().deferred_metrics();
    reset();
    const StepReport report = run.phase->step();
    const FakeGpuCounts step = counts();
    reset();
    EXPECT_TRUE(report.deferred_metrics);
    report.deferred_metrics();
    return {step, counts()};
  }
};

TEST_F(ModulesOnAGpu, AnExactRouterIsBesideProductsThatRound) {
  const BackendScope scope(at::kCUDA, {.tf32 = true});
  const nn::MoELayer layer = layer_on_fake(0.0);
  const Tensor x = on_fake({kTokens, kWidth}, at::kFloat),
               weight = on_fake({8, kWidth}, at::kFloat);
  const FakeGpuCounts router = counts_of([&] { layer->router->logits(x); });
  EXPECT_EQ(router.products, 1u);
  EXPECT_EQ(router.tf32_products, 0u);
  const FakeGpuCounts other = counts_of([&] { at::linear(x, weight); });
  EXPECT_EQ(other.products, 1u);
  EXPECT_EQ(other.tf32_products, 1u);
}

TEST_F(ModulesOnAGpu, WithoutTf32NoProductRounds) {
  const Tensor x = on_fake({kTokens, kWidth}, at::kFloat),
               weight = on_fake({8, kWidth}, at::kFloat);
  const FakeGpuCounts found = counts_of([&] { at::linear(x, weight); });
  EXPECT_EQ(found.products, 1u);
  EXPECT_EQ(found.tf32_products, 0u);
}

TEST_F(ModulesOnAGpu, DropoutInExpertsWaitsForNothingInBfloat16) {
  const nn::MoELayer layer = layer_on_fake(0.1);
  const Tensor x = on_fake({kTokens, kWidth}, at::kFloat, true);
  const at::Generator random = nn::make_generator(7, at::kCUDA);
  const FakeGpuCounts found = counts_of([&] {
    Tensor y;
    {
      const Autocast autocast("bfloat16", at::kCUDA);
      y = layer->forward(x, random).y_Td;
    }
    y.backward(at::empty_like(y));
  });
  testing::expect_no_wait(found);
}

TEST_F(ModulesOnAGpu, ATrainingStepInBfloat16WaitsOnceAndLate) {
  const auto [step, late] = count_step("bfloat16");
  EXPECT_EQ(step.waits, 0u);
  EXPECT_EQ(late.waits, 1u);
  EXPECT_EQ(step.copies_to_host + late.copies_to_host, 1u);
}

// Products of float32 are one for each expert, for which each pass reads the offsets.
TEST_F(ModulesOnAGpu, ATrainingStepInFloat32ReadsTheOffsetsToo) {
  const auto [step, late] = count_step("float32");
  EXPECT_EQ(step.waits, 2u);
  EXPECT_EQ(late.waits, 1u);
  EXPECT_EQ(step.copies_to_host + late.copies_to_host, 3u);
}

}  // namespace
}  // namespace moesaic
