// SPDX-License-Identifier: Apache-2.0

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "moesaic/checkpoint/store.h"
#include "moesaic/train/gradient_phase.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

const std::vector<std::string> kPlain = {"phases.pretrain.augment.mixup=0.3"};
constexpr double kDecay = 0.7;

/// The first phase of the tiny run, its network, and what that is after each step.
struct Course {
  std::shared_ptr<Model> model;
  std::unique_ptr<GradientPhase> phase;
  std::vector<TensorMap> weights;

  explicit Course(std::vector<std::string> changes) {
    changes.insert(changes.end(), kPlain.begin(), kPlain.end());
    const RunConfig config = config_of(four_phases(), changes);
    model = RunStart(config).model();
    DatasetCache datasets(open_tiny);
    const PhasePlan plan = plan_phases(config, *model, datasets)[0];
    phase = std::make_unique<GradientPhase>(
        plan, PhaseContext{.model = model, .data = open_tiny("three", "train"), .seed = 7});
    weights.push_back(now());
  }

  TensorMap now() const {
    TensorMap copy = state_of(*model);
    for (auto& [unused, tensor] : copy) tensor = tensor.clone();
    return copy;
  }
  void step() {
    phase->step();
    weights.push_back(now());
  }
};

/// The average of the first `count` networks by its formula in float64.
TensorMap average_of(const std::vector<TensorMap>& weights, size_t count) {
  TensorMap mean;
  for (const auto& [name, tensor] : weights[0]) mean[name] = tensor.to(at::kDouble);
  for (size_t i = 1; i < count; ++i) {
    for (auto& [name, tensor] : mean) {
      tensor = tensor * kDecay + weights[i].at(name).to(at::kDouble) * (1.0 - kDecay);
    }
  }
  return mean;
}

void expect_near(const TensorMap& found, const TensorMap& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    EXPECT_LE((found.at(name) - tensor).abs().max().item<double>(), 1e-6) << name;
  }
}

TEST(WeightAverage, IsWhatThePhaseLeavesAndWhatIsEvaluated) {
  Course plain({}), averaged({"phases.pretrain.ema_decay=0.7"});
  for (size_t step = 1; step <= 6; ++step) {
    plain.step();
    averaged.step();
    if (step == 6) break;
    expect_near(averaged.now(), plain.weights[step]);
    averaged.phase->swap_average();
    expect_near(averaged.now(), average_of(plain.weights, step + 1));
    averaged.phase->swap_average();
    expect_near(averaged.now(), plain.weights[step]);
  }
  const TensorMap wanted = average_of(plain.weights, 7);
  expect_near(averaged.now(), wanted);
  const at::Tensor last = plain.weights[6].at("head.weight");
  EXPECT_GT((last - wanted.at("head.weight")).abs().max().item<double>(), 1e-4);
}

TEST(WeightAverage, ResumesWithTheSameBits) {
  const std::vector<std::string> changes = {"phases.pretrain.ema_decay=0.7",
                                            "phases.recover.ema_decay=0.5",
                                            "phases.pretrain.augment.mixup=0.3",
                                            "phases.finetune.augment={\"mixup\": 0.4}",
                                            "phases.pretrain.optimizer.layer_decay=0.6",
                                            "model.encoder.drop_path_rate=0.3"};
  const TempDir folder;
  train(folder / "whole", changes);
  for (const int64_t step : {2, 5, 6, 10}) {
    SCOPED_TRACE(step);
    const fs::path resumed = folder / std::to_string(step);
    copy_killed_after(folder / "whole", step, resumed);
    train(resumed, changes, /*resume=*/true);
    expect_equal_bits(folder / "whole", resumed);
  }
}

/// Returns the loss that a run wrote of its evaluation at a step.
std::optional<double> written_loss(const fs::path& run, const std::string& phase,
                                   const Json& step) {
  std::optional<double> loss;
  for (const Json& line : metric_lines(run, "eval")) {
    if (line["phase"] == phase && line["step"] == step) loss = line["loss"].get<double>();
  }
  return loss;
}

TEST(WeightAverage, IsTheNetworkOfARunThatStoppedWithinThePhase) {
  const TempDir folder;
  train(folder / "run", {"phases.pretrain.ema_decay=0.7", "evaluate_every=1 step"});
  const fs::path step = folder / "run/checkpoints/step_4";
  const std::optional<double> written = written_loss(folder / "run", "pretrain", 4);
  ASSERT_TRUE(written);
  const auto model = load_model(step);
  const auto data = open_tiny("three", "test");
  EXPECT_NEAR(evaluate(*model, data, {.batch_size = 4}).metric("loss"), *written, 1e-5);
  const at::Tensor raw = load_checkpoint(step).model.at("head.weight");
  EXPECT_FALSE(at::equal(raw, state_of(*model).at("head.weight"))) << "resuming needs the weights";
}

TEST(WeightAverage, IsSavedAsBest) {
  const TempDir folder;
  train(folder / "run", {"phases.recover.ema_decay=0.9", "phases.recover.epochs=2",
                         "evaluate_every=1 step", "phases.recover.optimizer.lr=0.1"});
  const Json state = Json::parse(read_text(folder / "run/best/state.json"));
  const auto model = load_model(folder / "run/best");
  const Evaluation found = evaluate(*model, open_tiny("two", "test"), {.batch_size = 4});
  const std::optional<double> written = written_loss(folder / "run", "recover", state["best_step"]);
  ASSERT_TRUE(written);
  EXPECT_NEAR(found.metric("loss"), *written, 1e-5);
}

TEST(WeightAverage, OfACheckpointMustBeWhole) {
  Course course({"phases.pretrain.ema_decay=0.7"});
  PhaseState state = course.phase->state();
  state.tensors["head.bias.ema"] = torch::zeros({4});
  EXPECT_THAT(error_of([&] { course.phase->load(state); }),
              ::testing::HasSubstr("'head.bias.ema' must have the shape [3], found [4]"));
  state.tensors.erase("head.bias.ema");
  EXPECT_THAT(error_of([&] { course.phase->load(state); }),
              ::testing::HasSubstr("'head.bias.ema' is missing"));
}

}  // namespace
}  // namespace moesaic
