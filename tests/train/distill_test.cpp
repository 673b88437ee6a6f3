// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/distill.h"

#include <torch/torch.h>

#include <cmath>

#include "moesaic/checkpoint/store.h"
#include "moesaic/models/registry.h"
#include "moesaic/train/objective.h"
#include "moesaic/train/run_plan.h"
#include "support/matchers.h"
#include "support/tensors.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

double softmax_of(const at::Tensor& logits_C, int64_t c, double temperature) {
  double sum = 0.0;
  for (int64_t i = 0; i < logits_C.size(0); ++i) {
    sum += std::exp(logits_C[i].item<double>() / temperature);
  }
  return std::exp(logits_C[c].item<double>() / temperature) / sum;
}

double sigmoid_of(const at::Tensor& logits_C, int64_t c, double temperature) {
  return 1.0 / (1.0 + std::exp(-logits_C[c].item<double>() / temperature));
}

TEST(Distillation, IsTheDivergenceAtATemperature) {
  const at::Tensor student = testing::randn({5, 3}, 1, torch::kFloat) * 2;
  const at::Tensor teacher = testing::randn({5, 3}, 2, torch::kFloat) * 2;
  for (const double T : {1.0, 2.5}) {
    double softmax = 0.0, sigmoid = 0.0;
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t c = 0; c < 3; ++c) {
        const double p = softmax_of(teacher[r], c, T), q = softmax_of(student[r], c, T);
        softmax += p * std::log(p / q);
        const double on = sigmoid_of(teacher[r], c, T), own = sigmoid_of(student[r], c, T);
        sigmoid += on * std::log(on / own) + (1 - on) * std::log((1 - on) / (1 - own));
      }
    }
    const auto loss = [&](const char* name) {
      return distillation_loss(name, student, teacher, T).item<double>();
    };
    EXPECT_NEAR(loss("softmax"), T * T * softmax / 5, 1e-5);
    EXPECT_NEAR(loss("ensemble_softmax"), T * T * softmax / 5, 1e-5);
    EXPECT_NEAR(loss("sigmoid"), T * T * sigmoid / 5, 1e-5);
    EXPECT_NEAR(distillation_loss("softmax", teacher, teacher, T).item<double>(), 0.0, 1e-6);
  }
}

TEST(Distillation, TeachesTheNetworkAlone) {
  const at::Tensor student = testing::randn({4, 3}, 1, torch::kFloat).requires_grad_();
  const at::Tensor teacher = testing::randn({4, 3}, 2, torch::kFloat).requires_grad_();
  distillation_loss("softmax", student, teacher, 2.0).backward();
  // The gradient of T^2 KL is T (q - p) of each row's mean.
  const at::Tensor wanted = 2.0 * ((student / 2).softmax(1) - (teacher / 2).softmax(1)) / 4;
  testing::expect_close(student.grad(), wanted.detach(), 1e-6);
  EXPECT_FALSE(teacher.grad().defined());
}

constexpr const char* kDistill =
    R"(phases.recover.distill={"teacher": "finetune", "temperature": 2, "weight": 0.5})";

TEST(Distillation, ByAnEarlierPhaseResumesWithTheSameBits) {
  const TempDir folder;
  train(folder / "run", {kDistill});
  EXPECT_THAT(read_text(folder / "run/metrics.jsonl"), HasSubstr("\"distill\""));
  for (const int64_t step : {9, 10, 11}) {
    const fs::path again = folder / ("again" + std::to_string(step));
    copy_killed_after(folder / "run", step, again);
    train(again, {kDistill}, true);
    expect_equal_bits(folder / "run", again);
  }
  train(folder / "plain");
  EXPECT_NE(bits(folder / "run").at("best/model.safetensors"),
            bits(folder / "plain").at("best/model.safetensors"));
}

TEST(Distillation, ByACheckpointIsThatByThePhase) {
  const TempDir folder;
  train(folder / "phase", {kDistill});
  const std::string path = (folder / "phase/checkpoints/finetune").string();
  train(folder / "path", {R"(phases.recover.distill={"teacher": ")" + path +
                          R"(", "temperature": 2, "weight": 0.5})"});
  EXPECT_EQ(bits(folder / "phase").at("checkpoints/recover/model.safetensors"),
            bits(folder / "path").at("checkpoints/recover/model.safetensors"));
}

TEST(Distillation, RefusesATeacherThatDoesNotFitOrIsNotThere) {
  const TempDir folder;
  const auto refusal = [&](const std::vector<std::string>& changes) {
    return error_of([&] { train(folder / "run", changes); });
  };
  EXPECT_THAT(refusal({R"(phases.recover.distill={"teacher": "pretrain"})"}),
              HasSubstr("phase 'recover': the teacher has other classes than the network"));
  EXPECT_THAT(refusal({R"(phases.recover.distill={"teacher": "fine"})"}),
              HasSubstr("'fine' is neither an earlier phase nor a checkpoint; did you mean"));
  EXPECT_THAT(refusal({R"(phases.recover.distill={"teacher": "recover"})"}),
              HasSubstr("teacher 'recover' is no earlier phase; choose pretrain, finetune, prune, "
                        "a run or a checkpoint"));
  EXPECT_THAT(refusal({kDistill, "phases.recover.loss=softmax_twice"}),
              HasSubstr("loss 'softmax_twice' has no distillation; choose softmax"));
  EXPECT_THAT(
      error_of([&] { Trainer(config_of(four_phases(), {kDistill}), options_for("")).run(); }),
      HasSubstr("teacher 'finetune' is a phase of a run without a folder; give a checkpoint"));
}

TEST(Distillation, WarnsOfATeacherOfInputsWithAnotherMean) {
  const auto said = [](const std::vector<std::string>& changes) {
    const RunConfig config = config_of(four_phases(), changes);
    const std::shared_ptr<Model> model = build_meta_model(config.model);
    DatasetCache datasets{DatasetOpener(open_tiny)};
    return test::said_by([&] { plan_phases(config, *model, datasets); });
  };
  EXPECT_THAT(said({kDistill}), Not(HasSubstr("the teacher was trained on")));
  EXPECT_THAT(said({kDistill, R"(phases.recover.preprocess={"values": "unit"})"}),
              HasSubstr("and gets those of [0] and [1]; set preprocess.mean"));
}

TEST(Distillation, IsCountedInThePlanOfMemory) {
  RunConfig config = config_of(four_phases(), {kDistill});
  const std::shared_ptr<Model> model = build_meta_model(config.model);
  DatasetCache datasets{DatasetOpener(open_tiny)};
  const std::vector<PhasePlan> plans = plan_phases(config, *model, datasets);
  replace_head(*model, 2);  // The teacher has two classes and all experts.
  EXPECT_EQ(plans[3].num_teacher_parameters, model->num_parameters());
  EXPECT_EQ(plans[0].num_teacher_parameters, 0);
  EXPECT_EQ(training_memory(*model, plans[3]).teacher,
            4.0 * static_cast<double>(model->num_parameters()));
}

}  // namespace
}  // namespace moesaic
