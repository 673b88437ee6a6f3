// SPDX-License-Identifier: Apache-2.0
// An objective from outside of the library trains and is evaluated like the library's own, and so
// does a kind of phase that has an objective of its own.
#include <torch/torch.h>

#include "moesaic/train/evaluate.h"
#include "moesaic/train/objective.h"
#include "support/matchers.h"
#include "support/toy_family.h"
#include "support/toy_phase.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

struct ToyHingeConfig {
  double margin = 1.0;
};
template <class Fields>
void describe(Fields& f, ToyHingeConfig& c) {
  f("margin", c.margin, "margin by which the true class's logit has to lead", above(0.0));
}

class ToyHinge final : public Objective {
 public:
  explicit ToyHinge(double margin) : margin_(margin) {}
  LossTerms operator()(Model& model, const Batch& batch,
                       const at::Generator& random) const override {
    const at::Tensor logits = model.forward(batch.inputs, random).logits;
    const at::Tensor loss = at::multi_margin_loss(logits, batch.labels, 1, margin_);
    return {loss, {{"hinge_in_margins", loss / margin_}}};
  }

 private:
  double margin_;
};

void add_toy_hinge() {
  testing::add_toy_family();
  if (objectives().find("toy_hinge") != nullptr) return;
  ObjectiveKind kind;
  kind.settings = NamedSettings("toy_hinge", ToyHingeConfig{});
  kind.description = "hinge loss of a test";
  kind.make = [](const NamedSettings& settings, const Model&, const std::string&) {
    return std::make_unique<ToyHinge>(settings.as<ToyHingeConfig>().margin);
  };
  kind.check = [](const NamedSettings&, const SettingLocations&, const Model& model,
                  const DatasetInfo&) {
    if (model.num_classes() < 2) fail_usage("toy_hinge compares classes");
  };
  objectives().add("toy_hinge", std::move(kind));
}

/// Shrinks as "shrink" does, and says that it minimises "sigmoid".
void add_toy_sigmoid() {
  testing::add_toy_family();
  testing::add_shrink_phase();
  if (phase_kinds().find("toy_sigmoid") != nullptr) return;
  PhaseKind kind = phase_kinds().at("shrink");
  kind.settings = NamedSettings("toy_sigmoid", testing::ShrinkConfig{});
  kind.objective = [](const PhaseConfig&) { return "sigmoid"; };
  phase_kinds().add("toy_sigmoid", std::move(kind));
}

RunConfig objective_run(const std::string& phase, const std::vector<std::string>& changes = {}) {
  return config_of(
      R"({"name": "toy-objective", "seed": 5, "log_every": 10, "evaluate_batch_size": 4,
                       "num_loader_threads": 0, "model": {"name": "toy", "image_size": 4},
                       "phases": [{"name": "learn", "data": "three", )" +
          phase + "}]}",
      changes);
}

RunConfig hinge_run(const std::vector<std::string>& changes = {}) {
  add_toy_hinge();
  return objective_run(R"("batch_size": 6, "steps": 60, "loss": "toy_hinge", "margin": 2.0,
                          "optimizer": {"lr": 0.02})",
                       changes);
}

TEST(ToyObjective, TrainsAndIsEvaluated) {
  const TempDir folder;
  const TrainResult result = Trainer(hinge_run(), options_for(folder / "run")).run();
  const std::vector<Json> trained = metric_lines(folder / "run", "train");
  ASSERT_EQ(trained.size(), 6U);
  EXPECT_LT(trained.back()["loss"], trained.front()["loss"]);
  EXPECT_NEAR(trained.back()["loss"], 2.0 * trained.back()["hinge_in_margins"].get<double>(), 1e-5);
  ASSERT_TRUE(result.evaluation);
  const Evaluation again =
      evaluate_checkpoint({.checkpoint = folder / "run", .open = open_tiny}).evaluation;
  EXPECT_EQ(again.metric("accuracy"), result.evaluation->metric("accuracy"));
  EXPECT_NEAR(again.metric("loss"), result.evaluation->metric("loss"), 1e-6);
}

TEST(ToyObjective, IsRefusedByItsOwnNamesAndCheck) {
  const auto refusal = [](const std::string& change) {
    return error_of([&] { Trainer(hinge_run({change}), options_for("")); });
  };
  EXPECT_THAT(refusal("phases.learn.loss=toy_hing"), HasSubstr("did you mean 'toy_hinge'?"));
  EXPECT_THAT(refusal("phases.learn.margn=1"), HasSubstr("did you mean 'margin'?"));
  EXPECT_THAT(refusal("phases.learn.margin=0"), HasSubstr("phases.learn.margin=0"));
  EXPECT_THAT(refusal("phases.learn.aux_losses={}"), HasSubstr("unknown key 'aux_losses'"));
}

TEST(ToyObjective, AKindOfPhaseIsEvaluatedByItsOwn) {
  add_toy_sigmoid();
  const TempDir folder;
  Trainer trainer(objective_run(R"("kind": "toy_sigmoid", "steps": 4)"),
                  options_for(folder / "run"));
  const TrainResult result = trainer.run();
  ASSERT_TRUE(result.evaluation);
  const auto loss_by = [&](const std::string& loss) {
    return evaluate(*trainer.model(), open_tiny("three", "test"), {.batch_size = 4, .loss = loss})
        .metric("loss");
  };
  EXPECT_NEAR(result.evaluation->metric("loss"), loss_by("sigmoid"), 1e-6);
  EXPECT_GT(std::abs(loss_by("sigmoid") - loss_by("")), 1e-2);
}

}  // namespace
}  // namespace moesaic
