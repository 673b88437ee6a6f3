// SPDX-License-Identifier: Apache-2.0
// Phases of gated mixtures: what they recover, that they continue with the same bits, and what they
// refuse.
#include <fmt/format.h>
#include <torch/torch.h>

#include "moesaic/data/dataset.h"
#include "moesaic/papers/gated.h"
#include "papers/run_fixture.h"
#include "support/toy_family.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

RunConfig gated_run(const std::vector<std::string>& changes = {}) {
  return config_of(
      R"({"name": "gated", "seed": 5, "log_every": 16, "checkpoint_every": 16,
          "num_checkpoints": 100, "evaluate_batch_size": 4096, "num_loader_threads": 0,
          "model": {"name": "gated-moe", "width": 5},
          "phases": [
            {"name": "both", "kind": "gated_sgd", "data": "gated-small", "steps": 24,
             "loss": "squared", "optimizer": {"lr": 0.05}, "batch_size": 64, "chunk_size": 8},
            {"name": "regressors", "kind": "gated_sgd", "data": "gated-small", "steps": 48,
             "loss": "l4", "optimizer": {"lr": 0.001}, "batch_size": 128},
            {"name": "signs", "kind": "gated_signs", "data": "gated-small", "steps": 1,
             "num_samples": 500},
            {"name": "gates", "kind": "gated_sgd", "data": "gated-small", "steps": 32,
             "loss": "l_log", "optimizer": {"lr": 0.5}, "batch_size": 64},
            {"name": "em", "kind": "gated_em", "data": "gated-small", "steps": 20,
             "num_samples": 500}]})",
      changes);
}

at::Tensor parameter(Model& model, const std::string& name) {
  return model.named_parameters()["mixture." + name].detach().to(torch::kDouble);
}

TEST(GatedRun, RecoversTheMixtureByTheTwoLosses) {
  const auto model = train_in_memory(gated_run(
      {"phases.both.steps=0", "phases.em.steps=0", "phases.regressors.steps=3000",
       "phases.regressors.optimizer.lr=0.004", "phases.regressors.batch_size=512",
       "phases.regressors.schedule={\"name\": \"linear\"}", "phases.signs.num_samples=4000",
       "phases.gates.steps=300", "phases.gates.batch_size=512"}));
  const GatedTruth truth = gated_truth({.width = 5});
  const at::Tensor a = parameter(*model, "regressors");
  const at::Tensor w = parameter(*model, "gates");
  const at::Tensor true_a = truth.a_kd.to(torch::kDouble), true_w = truth.w_kd.to(torch::kDouble);
  const RecoveryError error = recovery_error(a, true_a, w, true_w);
  EXPECT_LT(error.regressors, 0.02);
  EXPECT_LT(error.gates, 0.05);
  EXPECT_LE(w.norm(2, {1}).max().item<double>(), 1.0 + 1e-6);
  // Signs too, which the error does not see.
  EXPECT_LT((a.mm(true_a.t()).abs().amax(1) - a.mm(true_a.t()).amax(1)).abs().max().item<double>(),
            1e-12);
}

TEST(GatedRun, GoesOnWithTheSameBits) {
  expect_same_bits(gated_run(), {16, 40, 73, 105, 112}, 125);
}

TEST(GatedRun, SeedsSeeOtherSamplesAndBlocksDoNotMatter) {
  const auto trained = [](const std::vector<std::string>& changes) {
    std::vector<std::string> all = changes;
    all.emplace_back("model.regressors=axes");  // The seed decides nothing but the samples.
    return parameter(*train_in_memory(gated_run(all)), "regressors");
  };
  const at::Tensor once = trained({});
  EXPECT_TRUE(torch::equal(once, trained({})));
  EXPECT_TRUE(
      torch::equal(once, trained({"phases.both.chunk_size=5", "phases.regressors.chunk_size=1"})));
  EXPECT_FALSE(torch::equal(once, trained({"seed=6"})));
}

TEST(GatedRun, TrainsOnlyWhatThePhaseNames) {
  const auto run = [](std::vector<std::string> changes) {
    changes.insert(changes.end(),
                   {"phases.regressors.steps=0", "phases.signs.steps=0", "phases.gates.steps=0"});
    return train_in_memory(gated_run(changes));
  };
  const auto before = run({"phases.both.steps=0", "phases.em.steps=0"});
  const auto moved = [&](const std::shared_ptr<Model>& after) {
    const auto differs = [&](const char* name) {
      return !torch::equal(parameter(*before, name), parameter(*after, name));
    };
    return std::pair{differs("regressors"), differs("gates")};
  };
  const auto trained = [&](const std::string& trains) {
    return moved(run({"phases.em.steps=0", "phases.both.trainable=[\"" + trains + "\"]"}));
  };
  EXPECT_EQ(trained("regressors"), std::pair(true, false));
  EXPECT_EQ(trained("gates"), std::pair(false, true));
  EXPECT_EQ(trained(".*"), std::pair(true, true));
  const auto by_em = [&](const std::string& frozen) {
    return moved(run({"phases.both.steps=0", "phases.em.frozen=[" + frozen + "]"}));
  };
  EXPECT_EQ(by_em(""), std::pair(true, true));
  EXPECT_EQ(by_em("\"regressors\""), std::pair(false, true));
  EXPECT_EQ(by_em("\"gates\""), std::pair(true, false));
  EXPECT_THAT(refusal_of([] { return gated_run({"phases.signs.frozen=[\"regressors\"]"}); }),
              AllOf(HasSubstr("phase 'signs'"), HasSubstr("leave none of the parameters")));
}

TEST(GatedRun, RefusesWhatDoesNotFitInOneLine) {
  const auto refusal = [](const std::vector<std::string>& changes) {
    return refusal_of([&] { return gated_run(changes); });
  };
  EXPECT_THAT(refusal({"model.link=step"}),
              AllOf(HasSubstr("link 'step' is not valid for L4"), HasSubstr("Condition 1")));
  EXPECT_THAT(refusal({"model.num_experts=4"}), HasSubstr("choose at most 3 experts"));
  EXPECT_THAT(refusal({"model.width=6"}), HasSubstr("the model takes rows of 6 numbers"));
  EXPECT_THAT(refusal({"phases.both.data=three"}), HasSubstr("the model takes rows of 5 numbers"));
  EXPECT_THAT(refusal({"phases.signs.steps=2"}), HasSubstr("has one step, found 2"));
  EXPECT_EQ(refusal({"model.num_experts=4", "phases.regressors.loss=squared"}), "no error");
  EXPECT_THAT(refusal({"phases.both.loss=l5"}), HasSubstr("'l4'"));
  EXPECT_THAT(refusal({"phases.both.max_gate_norm=2"}), HasSubstr("unknown key 'max_gate_norm'"));
  testing::add_toy_family();
  const RunConfig toy = config_of(R"({"name": "x", "model": {"name": "toy", "image_size": 4},
      "phases": [{"name": "p", "kind": "gated_em", "data": "three", "steps": 1}]})");
  EXPECT_THAT(refusal_of([&] { return toy; }), HasSubstr("needs a model with a gated mixture"));
}

TEST(GatedRun, IsAdvisedNoHeadThatItCannotGet) {
  TrainerOptions options = options_with_described("");
  options.open = DatasetOpener([](std::string_view name, std::string_view split) {
    DatasetInfo info{.name = std::string(name), .split = std::string(split)};
    info.targets = {"a", "b"};
    return make_input_dataset(
        info, {.values_NCHW = torch::zeros({8, 1, 1, 5}), .targets_NK = torch::zeros({8, 2})});
  });
  EXPECT_THAT(error_of([&] { Trainer(gated_run(), options); }),
              EndsWith("'gated-small' has 2 targets, the model has 1 output"));
}

TEST(GatedRun, WarnsOfSmallBatchesAndOfAnotherMixtureThanTheDatas) {
  const auto said = [](const std::vector<std::string>& changes) {
    return test::said_by([&] { Trainer(gated_run(changes), options_with_described("")); });
  };
  EXPECT_THAT(said({"phases.regressors.batch_size=64"}),
              HasSubstr("a batch of 64 is small for L4: fourth moments of 5 dimensions are 70"));
  EXPECT_THAT(said({"phases.signs.num_samples=4"}),
              HasSubstr("phase 'signs': 4 samples do not determine regressors of 5 dimensions"));
  EXPECT_THAT(
      said({"model.link=relu"}),
      HasSubstr("phase 'signs': the model's link is relu, that of 'gated-small' is identity"));
  EXPECT_THAT(said({"model.noise=1"}),
              HasSubstr("the model's noise is 1, that of 'gated-small' is 0.05"));
  EXPECT_THAT(said({"model.num_experts=3"}),
              HasSubstr("the model's num_experts is 3, that of 'gated-small' is 2"));
  EXPECT_THAT(said({}), Not(HasSubstr("that of 'gated-small'")));
}

TEST(GatedRun, LearnsBiasesOfGatesFromATableOfOnesOwn) {
  const GatedMixtureConfig mixture{.width = 3, .gate_biases = {-1.0}};
  const TempDir folder;
  const std::string data =
      write_table(folder, gated_examples(mixture, gated_truth(mixture), "train", 0, 4000));
  const RunConfig config = config_of(
      R"({"name": "own", "seed": 2, "evaluate_batch_size": 400, "num_loader_threads": 0,
          "model": {"name": "gated-moe", "width": 3, "has_gate_biases": true},
          "phases": [{"name": "em", "kind": "gated_em", "data": ")" +
      data + R"(", "steps": 40,
                      "num_samples": 3600, "gate_lr": 1.0}]})");
  const auto model = train_in_memory(config);
  // Which expert comes last is open, so that gates may be the true ones or their negatives.
  const at::Tensor a = parameter(*model, "regressors"), w = parameter(*model, "gates")[0];
  const double bias = parameter(*model, "gates_bias").item<double>();
  const double sign = a[0][0].abs().item<double>() > 0.5 ? 1.0 : -1.0;
  EXPECT_NEAR(a.abs().amax(1).min().item<double>(), 1.0, 0.02);
  EXPECT_NEAR(sign * bias, -1.0, 0.25);
  EXPECT_NEAR(sign * w[2].item<double>(), 1.0, 0.25);
}

TEST(GatedRun, ARateThatIsTooHighIsADivergence) {
  EXPECT_THAT(error_of([] { train_in_memory(gated_run({"phases.regressors.optimizer.lr=10"})); }),
              HasSubstr("lower phases.regressors.optimizer.lr (10 now)"));
}

}  // namespace
}  // namespace moesaic
