// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/gradient_phase.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/models/registry.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/train/objective.h"
#include "support/tensors.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using train_test::config_of;
using train_test::four_phases;
using train_test::open_tiny;

/// Copies of the parameters and of the optimizer's state.
TensorMap copied_tensors(const Phase& phase, const Model& model) {
  TensorMap map = phase.state().tensors;
  for (const auto& item : model.named_parameters()) map[item.key()] = item.value().detach();
  for (auto& [unused, tensor] : map) tensor = tensor.clone();
  return map;
}

/// The first phase of the tiny run and its network.
struct Started {
  std::shared_ptr<Model> model;
  PhasePlan plan;
  std::unique_ptr<GradientPhase> phase;

  explicit Started(const std::vector<std::string>& changes, bool defer_metrics = false) {
    const RunConfig config = config_of(four_phases(), changes);
    model = RunStart(config).model();
    DatasetCache datasets(open_tiny);
    plan = plan_phases(config, *model, datasets)[0];
    phase = std::make_unique<GradientPhase>(plan, PhaseContext{.model = model,
                                                               .data = open_tiny("three", "train"),
                                                               .seed = 7,
                                                               .defer_metrics = defer_metrics});
  }

  TensorMap all() const { return copied_tensors(*phase, *model); }
};

/// The gradients' momentum after one step, which is the clipped gradient itself.
TensorMap first_gradients(const std::vector<std::string>& changes) {
  std::vector<std::string> all = {"phases.0.optimizer={\"name\": \"sgd\"}", "phases.0.clip_norm=0",
                                  "phases.0.augment={}", "model.encoder.moe.router.noise_std=0",
                                  "phases.0.aux_losses={\"importance\": 0.5}"};
  all.insert(all.end(), changes.begin(), changes.end());
  Started started(all);
  started.phase->step();
  return started.phase->state().tensors;
}

void expect_equal_up_to(const TensorMap& a, const TensorMap& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  double largest = 0.0;
  for (const auto& [name, tensor] : a) {
    const at::Tensor& other = b.at(name);
    largest = std::max(largest, other.abs().max().item<double>());
    EXPECT_LE((tensor - other).abs().max().item<double>(), tolerance) << name;
  }
  EXPECT_GT(largest, 100 * tolerance);
}

TEST(GradientPhase, TellsBeforeItChangesWhatASaveCopies) {
  const RunConfig config = config_of(four_phases());
  const auto model = RunStart(config).model();
  DatasetCache datasets(open_tiny);
  int told = 0;
  std::optional<TensorMap> before;
  std::unique_ptr<GradientPhase> phase;
  PhaseContext context{
      .model = model, .data = open_tiny("three", "train"), .seed = 7, .before_optimizer_step = [&] {
        ++told;
        expect_equal_tensors(copied_tensors(*phase, *model), *before);
        EXPECT_TRUE(model->named_parameters()["head.bias"].grad().defined());
      }};
  phase = std::make_unique<GradientPhase>(plan_phases(config, *model, datasets)[0], context);
  for (int step = 1; step <= 2; ++step) {
    before = copied_tensors(*phase, *model);
    phase->step();
    EXPECT_EQ(told, step);
    const TensorMap after = copied_tensors(*phase, *model);
    EXPECT_TRUE(std::any_of(after.begin(), after.end(), [&](const auto& item) {
      return !torch::equal(item.second, before->at(item.first));
    }));
  }
}

TEST(GradientPhase, AccumulatesTheMeanOverPartsOfABatch) {
  const RunConfig config =
      config_of(four_phases(), {"phases.0.augment={}", "model.encoder.moe.router.noise_std=0",
                                "phases.0.aux_losses={\"importance\": 0.5}"});
  const auto model = RunStart(config).model();
  LoaderOptions options{.batch_size = 6, .seed = 7, .shuffle = true, .drop_last = true};
  const Batch batch = Loader(open_tiny("three", "train"), options).next();
  // The head starts at zero, so that without this no gradient would reach the blocks.
  TensorMap mean;
  for (int64_t part = 0; part < 3; ++part) {
    const ModelOutput out = model->forward(batch.inputs.narrow(0, 2 * part, 2));
    const LossTerms objective = classification_terms("softmax", {0.0, {{"importance", 0.5}}}, out,
                                                     batch.labels.narrow(0, 2 * part, 2));
    (objective.loss / 3).backward();
  }
  for (const auto& item : model->named_parameters()) {
    mean[item.key() + ".momentum"] = item.value().grad();
  }
  expect_equal_up_to(
      first_gradients({"phases.0.batch_size=6", "phases.0.gradient_accumulation_steps=3"}), mean,
      1e-6);
}

TEST(GradientPhase, WithoutCouplingPartsGiveTheGradientsOfTheWholeBatch) {
  const std::vector<std::string> plain = {"phases.0.batch_size=6", "phases.0.aux_losses={}"};
  const TensorMap whole = first_gradients(plain);
  for (const char* parts :
       {"phases.0.gradient_accumulation_steps=2", "phases.0.gradient_accumulation_steps=6"}) {
    expect_equal_up_to(first_gradients({plain[0], plain[1], parts}), whole, 1e-6);
  }
}

TEST(GradientPhase, ReportsTheMeanOverParts) {
  const std::vector<std::string> plain = {"phases.0.batch_size=6", "phases.0.aux_losses={}",
                                          "phases.0.augment={}",
                                          "model.encoder.moe.router.noise_std=0"};
  std::vector<std::string> parts = plain;
  parts.push_back("phases.0.gradient_accumulation_steps=3");
  const StepReport whole = Started(plain).phase->step(), sum = Started(parts).phase->step();
  EXPECT_EQ(whole.images, sum.images);
  for (const char* name : {"loss", "cross_entropy", "accuracy", "grad_norm"}) {
    EXPECT_NEAR(whole.metrics.at(name), sum.metrics.at(name), 1e-5) << name;
  }
}

TEST(GradientPhase, ScalesClipsAndFreezes) {
  const TensorMap plain = first_gradients({});
  TensorMap changed =
      first_gradients({"phases.0.gradient_scale=[{\"pattern\": \"head\", \"value\": 3}]",
                       "phases.0.clip_value=0.05", "phases.0.frozen=[\"router\"]"});
  EXPECT_FALSE(changed.contains("blocks.1.moe.router.weight.momentum"));
  const at::Tensor head = plain.at("head.weight.momentum");
  EXPECT_TRUE(torch::allclose(changed.at("head.weight.momentum"), (head * 3).clamp(-0.05, 0.05)));
  EXPECT_GT((head * 3).abs().max().item<double>(), 0.05);
}

TEST(GradientPhase, RecomputingChangesNoBit) {
  for (const char* precision : {"precision=float32", "precision=bfloat16"}) {
    Started plain({precision}), again({precision, "activation_checkpointing=true"});
    EXPECT_TRUE(again.model->activation_checkpointing());
    for (int step = 0; step < 4; ++step) {
      EXPECT_EQ(plain.phase->step().metrics, again.phase->step().metrics) << precision;
    }
    const TensorMap state = plain.phase->state().tensors;
    for (const auto& [name, slot] : again.phase->state().tensors) {
      EXPECT_TRUE(torch::equal(slot, state.at(name))) << precision << " " << name;
    }
  }
}

std::vector<double> losses_in(const std::string& precision) {
  Started started({"precision=" + precision, "phases.0.steps=200", "phases.0.augment={}",
                   "phases.0.aux_losses={}", "phases.0.batch_size=18"});
  std::vector<double> losses;
  for (int step = 0; step < 200; ++step) {
    losses.push_back(started.phase->step().metrics.at("loss"));
  }
  for (const auto& item : started.model->named_parameters()) {
    EXPECT_EQ(item.value().scalar_type(), at::kFloat) << item.key();
  }
  for (const auto& [name, slot] : started.phase->state().tensors) {
    EXPECT_EQ(slot.scalar_type(), at::kFloat) << name;
  }
  return losses;
}

TEST(GradientPhase, LossFallsInBfloat16AsInFloat32) {
  const std::vector<double> exact = losses_in("float32"), rounded = losses_in("bfloat16");
  // The head begins at zero, and the warm-up with a learning rate of 0: two losses of ln 3.
  for (size_t step = 0; step < 2; ++step) {
    EXPECT_NEAR(exact[step], std::log(3.0), 1e-6);
    EXPECT_NEAR(rounded[step], std::log(3.0), 1e-6);
  }
  // Together at first, within bfloat16's rounding of a loss; later each finds its own way down.
  for (size_t step = 0; step < 5; ++step) EXPECT_NEAR(rounded[step], exact[step], 0.01) << step;
  EXPECT_NE(rounded[4], exact[4]);
  // Every batch holds six images of each of three classes. Who cannot tell two of these apart
  // gets no further than ln 2 for these, and 0 for the third.
  const double two_alike = 2.0 / 3.0 * std::log(2.0);
  EXPECT_LT(exact.back(), two_alike);
  EXPECT_LT(rounded.back(), two_alike);
}

TEST(GradientPhase, AStepWhoseLossSaysSoEndsItWithoutAnUpdate) {
  const auto stop = [](const std::string& rule) { return "phases.0.stop=" + rule; };
  // Every loss is that small; the first is the least so far, and so may others be.
  Started small({stop("{\"loss_threshold\": 1000}"), "phases.0.optimizer.lr=0.5"});
  int64_t steps = 0;
  double min = INFINITY;
  StepReport report;
  while (!small.phase->is_done()) {
    report = small.phase->step();
    const double loss = report.metrics.at("loss");
    EXPECT_EQ(report.steps, loss > min ? 0 : 1);
    min = std::min(min, loss);
    steps += report.steps;
    EXPECT_EQ(small.phase->state().values.at("updates"), steps);
  }
  EXPECT_EQ(report.steps, 0);
  EXPECT_LT(steps, small.plan.steps);
  EXPECT_EQ(small.phase->state().values.at("min_loss"), min);
  // A rise of nothing ends it as well, but not before its time.
  Started late({stop("{\"loss_rise\": 0, \"min_steps\": 1000000}"), "phases.0.optimizer.lr=0.5"});
  while (!late.phase->is_done()) EXPECT_EQ(late.phase->step().steps, 1);
}

TEST(GradientPhase, ReadsLateWhatItReadsAtOnce) {
  Started at_once({}), late({}, true);
  std::vector<StepReport> reports;
  std::vector<std::map<std::string, double>> metrics;
  while (!at_once.phase->is_done()) {
    metrics.push_back(at_once.phase->step().metrics);
    reports.push_back(late.phase->step());
    EXPECT_TRUE(reports.back().metrics.empty());
  }
  EXPECT_TRUE(late.phase->is_done());
  for (size_t i = 0; i < reports.size(); ++i)
    EXPECT_EQ(reports[i].deferred_metrics(), metrics[i]) << i;
  expect_equal_tensors(late.all(), at_once.all());
}

TEST(GradientPhase, AStepThatIsNotFiniteAndThoseAfterItChangeNothing) {
  for (const double bad : {NAN, INFINITY}) {
    for (const char* optimizer : {"adamw", "sgd", "normalized_sgd"}) {
      Started started(
          {"model.encoder.moe.layers=[]", "phases.0.aux_losses={}", "phases.2.on_entry={}",
           "phases.0.optimizer={\"name\": \"" + std::string(optimizer) +
               "\", \"weight_decay\": 0.1}",
           "phases.0.trainable=[\"head.weight\"]"},
          true);
      started.phase->step().deferred_metrics();
      started.phase->step().deferred_metrics();
      at::Tensor bias = started.model->named_parameters()["head.bias"];
      const TensorMap before = started.all();
      const at::Tensor good = bias.detach().clone();
      const auto set_bias = [&](const at::Tensor& to) {
        const torch::NoGradGuard no_grad;
        bias.copy_(to);
      };
      set_bias(at::full_like(good, bad));
      const StepReport wrong = started.phase->step();
      set_bias(good);
      const StepReport next = started.phase->step();
      expect_equal_tensors(started.all(), before);
      EXPECT_THROW(wrong.deferred_metrics(), DivergedError) << optimizer;
      EXPECT_TRUE(std::isfinite(next.deferred_metrics().at("loss"))) << optimizer;
    }
  }
}

TEST(GradientPhase, AStopRuleReadsAtOnce) {
  const StepReport report =
      Started({"phases.0.stop={\"loss_threshold\": 0.1}"}, true).phase->step();
  EXPECT_FALSE(report.deferred_metrics);
  EXPECT_TRUE(report.metrics.contains("loss"));
}

/// The 18 images are four batches of 4 and one of 2.
TEST(GradientPhase, UpdatesOnTheSmallerLastBatchIfAsked) {
  const auto images = [](const std::string& drop_last) {
    Started started({"phases.0.drop_last=" + drop_last, "phases.0.batch_size=4"});
    std::vector<int64_t> found;
    for (int64_t step = 0; step < started.plan.steps_per_epoch; ++step) {
      found.push_back(started.phase->step().images);
    }
    return found;
  };
  EXPECT_EQ(images("true"), (std::vector<int64_t>{4, 4, 4, 4}));
  EXPECT_EQ(images("false"), (std::vector<int64_t>{4, 4, 4, 4, 2}));
  EXPECT_THAT(train_test::error_of([] {
                Started({"phases.0.drop_last=false", "phases.0.gradient_accumulation_steps=2"});
              }),
              ::testing::HasSubstr("or gradient_accumulation_steps to 1"));
}

TEST(GradientPhase, AveragesNeedWholeOptimizers) {
  EXPECT_THAT(train_test::error_of([] {
                Started({"phases.0.ema_decay=0.9", "parallel.shard_optimizer=true"});
              }),
              ::testing::HasSubstr("phases.0.ema_decay"));
}

}  // namespace
}  // namespace moesaic
