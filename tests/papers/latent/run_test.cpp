// SPDX-License-Identifier: Apache-2.0
// Phases of Algorithm 1 of the latent paper: their steps against plain loops, that they continue
// with the same bits, and what they refuse.
#include <fmt/format.h>

#include <cmath>
#include <sstream>

#include "moesaic/base/random.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/source.h"
#include "moesaic/data/views.h"
#include "moesaic/papers/latent.h"
#include "moesaic/train/run_plan.h"
#include "papers/latent/parts.h"
#include "papers/run_fixture.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using at::Tensor;

RunConfig latent_run(const std::vector<std::string>& changes = {}) {
  return config_of(
      R"({"name": "latent", "seed": 5, "log_every": 50, "checkpoint_every": 50,
          "num_checkpoints": 100, "evaluate_batch_size": 2048, "num_loader_threads": 0,
          "model": {"name": "latent-moe", "width": 24, "num_experts": 2, "num_neurons": 6},
          "phases": [
            {"name": "explore", "kind": "spherical_sgd", "data": "latent-small", "steps": 150,
             "chunk_size": 50},
            {"name": "route", "kind": "router_ascent", "data": "latent-small", "steps": 60,
             "batch_size": 30},
            {"name": "specialise", "kind": "spherical_sgd", "data": "latent-small", "steps": 120,
             "chunk_size": 50, "lr": 0.5, "routing": "adaptive", "router": "ideal", "restart": true},
            {"name": "solve", "kind": "ridge", "data": "latent-small", "steps": 170, "chunk_size": 50,
             "num_held_out": 70, "lambdas": [1e-4, 1e-2, 1]}]})",
      changes);
}

/// Settings that leave out all phases but one.
std::vector<std::string> only_phase(const std::string& phase,
                                    std::vector<std::string> changes = {}) {
  for (const char* other : {"explore", "route", "specialise", "solve"}) {
    if (phase != other) changes.push_back("phases." + std::string(other) + ".steps=0");
  }
  return changes;
}

struct TrainedLatent {
  std::shared_ptr<LatentMoE> model;
  TensorMap before;  ///< The network before the phase that is watched.
};

/// Trains without a folder; remembers the network at the end of phase `before`.
TrainedLatent train_latent(const RunConfig& config, const std::string& before = "") {
  TrainedLatent trained;
  TrainerOptions options = options_with_described("");
  options.on_phase_end = [&](Model& model, const std::string& phase, int64_t) {
    if (phase != before) return;
    for (const auto& [name, tensor] : state_of(model)) trained.before[name] = tensor.clone();
  };
  Trainer trainer(config, options);
  trainer.run();
  trained.model = std::dynamic_pointer_cast<LatentMoE>(trainer.model());
  return trained;
}

/// Samples that phase number `index` of the runs above takes.
DatasetInputs samples_of(int64_t index, int64_t count) {
  const auto data = open_dataset("latent-small", "train");
  return data->generate(stream_offset(phase_seed(5, index)), count);
}

double item(const Tensor& tensor) {
  return tensor.item<double>();
}

TEST(LatentRun, AStepOfThePhasesIsThatOfAlgorithm1) {
  for (const std::string activation : {"relu", "hermite"}) {
    SCOPED_TRACE(activation);
    const std::vector<std::string> changes =
        only_phase("specialise", {"phases.specialise.restart=false", "phases.specialise.lr=0.01",
                                  "model.activation=" + activation});
    const TrainedLatent found = train_latent(latent_run(changes), "route");
    const DatasetInputs inputs = samples_of(2, 120);
    const Tensor x_Sd = inputs.values_NCHW.flatten(1).to(torch::kDouble);
    const Tensor y_S = inputs.targets_NK.flatten().to(torch::kDouble);
    const Tensor mean = open_dataset("latent-small", "train")->directions().at("mean");
    const Tensor between = (mean[0] - mean[1]).to(torch::kDouble) / 3.0;
    const auto at = [&](const char* name) {
      return found.before.at(std::string("moe.experts.") + name).to(torch::kDouble).clone();
    };
    Tensor w = at("w");
    const Tensor a = at("a"), b = at("b");
    for (int64_t i = 0; i < 120; ++i) {
      const double side = item(x_Sd[i].dot(between));
      const int64_t m = side >= 0 ? 0 : 1;
      for (int64_t j = 0; j < 6; ++j) {
        const double p = item(w[m][j].dot(x_Sd[i])), z = p + item(b[m][j]);
        double slope = z > 0 ? 1.0 : 0.0;
        if (activation == "hermite") {
          const Tensor c = at("hermite")[m][j];
          slope = item(c[3]) * (3 * z * z - 3) / std::sqrt(6.0) +
                  item(c[4]) * (4 * z * z * z - 12 * z) / std::sqrt(24.0) +
                  item(c[5]) * (5 * z * z * z * z - 30 * z * z + 15) / std::sqrt(120.0);
        }
        const double k = 0.01 / 6.0 * item(y_S[i]) * item(a[m][j]) * slope;
        const Tensor moved = w[m][j] + k * (x_Sd[i] - p * w[m][j]);
        w[m][j].copy_(moved / moved.norm());
      }
    }
    expect_close(found.model->experts->w.to(torch::kDouble), w, 1e-4);
    expect_close(found.model->moe->router->weight[1].to(torch::kDouble), -between, 1e-6);
    EXPECT_EQ(found.model->config().at("routing"), "adaptive");
  }
}

/// Checks the rows of each sample: expert and gate.
std::vector<std::vector<std::pair<int64_t, float>>> rows_by_sample(const RoutedBlock& block,
                                                                   int64_t samples) {
  std::vector<std::vector<std::pair<int64_t, float>>> rows(static_cast<size_t>(samples));
  const RoutedSamples& routed = block.rows;
  for (int64_t k = 0; k + 1 < routed.offset.size(0); ++k) {
    for (auto r = routed.offset[k].item<int64_t>(); r < routed.offset[k + 1].item<int64_t>(); ++r) {
      rows[static_cast<size_t>(routed.sample[r].item<int64_t>())].emplace_back(
          k, routed.gate[r].item<float>());
    }
  }
  return rows;
}

TEST(LatentRouting, TiesGoToOneExpertAtRandomWithTheGateOneOverM) {
  const SampleRng ties(3, 4);
  const Tensor x = randn({4000, 5}, 1, torch::kFloat), y = torch::zeros({4000});
  const Tensor router = torch::zeros({4, 5});
  const auto whole = rows_by_sample(route_samples(x, y, router, nn::kTopOne, ties, 100), 4000);
  int64_t count[4] = {};
  for (const auto& rows : whole) {
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0].second, 0.25F);
    ++count[rows[0].first];
  }
  for (const int64_t samples : count) EXPECT_NEAR(static_cast<double>(samples), 1000.0, 140.0);
  // A sample's expert depends on its number only.
  const auto part = rows_by_sample(
      route_samples(x.narrow(0, 50, 9), y.narrow(0, 50, 9), router, nn::kTopOne, ties, 150), 9);
  for (size_t i = 0; i < 9; ++i) EXPECT_EQ(part[i], whole[i + 50]);
}

TEST(LatentRouting, IsByTheLargestLogitOrByTheSign) {
  const SampleRng ties(3, 4);
  const Tensor x = randn({60, 5}, 1, torch::kFloat), y = torch::zeros({60});
  const Tensor router = randn({3, 5}, 2, torch::kFloat);
  const Tensor h = x.to(torch::kDouble).mm(router.to(torch::kDouble).t());
  const auto top = rows_by_sample(route_samples(x, y, router, nn::kTopOne, ties, 0), 60);
  const auto adaptive =
      rows_by_sample(route_samples(x, y, router, nn::kEveryAboveZero, ties, 0), 60);
  for (int64_t s = 0; s < 60; ++s) {
    const auto i = static_cast<size_t>(s);
    std::vector<std::pair<int64_t, float>> above;
    double sum = 0.0;
    int64_t largest = 0;
    for (int64_t m = 0; m < 3; ++m) {
      if (item(h[s][m]) >= 0) above.emplace_back(m, 1.0F);
      if (item(h[s][m]) > item(h[s][largest])) largest = m;
      sum += std::exp(item(h[s][m]));
    }
    EXPECT_EQ(adaptive[i], above);
    ASSERT_EQ(top[i].size(), 1U);
    EXPECT_EQ(top[i][0].first, largest);
    EXPECT_NEAR(top[i][0].second, std::exp(item(h[s][largest])) / sum, 1e-5);
  }
}

TEST(LatentRun, TheRouterAscendsTheGradientOfTheCorrelation) {
  const std::vector<std::string> changes = {
      "phases.explore.router=ideal", "phases.explore.steps=1",    "phases.route.steps=1",
      "phases.route.batch_size=500", "phases.specialise.steps=0", "phases.solve.steps=0"};
  const TrainedLatent found = train_latent(latent_run(changes), "explore");
  const TrainedLatent start = train_latent(latent_run(changes), "none");
  const auto model = start.model;
  load_state(*model, found.before, "test");
  model->moe->router->set_options(nn::latent_router_options(24, 2, nn::kTopOne, {}));
  const DatasetInputs inputs = samples_of(1, 500);
  const Tensor f = model->forward(inputs.values_NCHW).logits;
  (f * inputs.targets_NK).mean().backward();
  const Tensor wanted = found.before.at("moe.router.weight") + model->moe->router->weight.grad();
  const Tensor& theta = found.model->moe->router->weight;
  expect_close(theta, wanted, 1e-5);
  EXPECT_FALSE(torch::allclose(theta, found.before.at("moe.router.weight"), 1e-5, 1e-4));
  EXPECT_LT(theta.sum(0).abs().max().item<double>(), 1e-5);
}

/// Checks the second layers against the normal equations of both experts' features.
void check_ridge(const std::string& router) {
  const std::vector<std::string> changes =
      only_phase("solve", {"phases.specialise.steps=1", "phases.specialise.router=" + router,
                           "phases.solve.steps=400", "phases.solve.lambdas=[1e-3]"});
  const TrainedLatent found = train_latent(latent_run(changes), "specialise");
  const DatasetInputs inputs = samples_of(3, 400);
  const Tensor x_Sd = inputs.values_NCHW.flatten(1);
  auto& own = *found.model->experts;
  const Tensor h_SM = x_Sd.mm(found.model->moe->router->weight.detach().t());
  std::vector<Tensor> features;
  for (int64_t m = 0; m < 2; ++m) {
    const Tensor z = x_Sd.mm(own.w[m].detach().t()) + own.b[m].detach();
    features.push_back(z.relu() / 6.0 * h_SM.select(1, m).ge(0).unsqueeze(1));
  }
  const Tensor phi = at::cat(features, 1).to(torch::kDouble);
  const Tensor gram = phi.t().mm(phi) / 400;
  const Tensor moment = phi.t().mv(inputs.targets_NK.flatten().to(torch::kDouble)) / 400;
  const Tensor damped = gram + 1e-3 * gram.diagonal().mean() * torch::eye(12, torch::kDouble);
  const Tensor wanted = std::get<0>(at::linalg_solve_ex(damped, moment));
  const Tensor a = own.a.detach().flatten().to(torch::kDouble);
  EXPECT_LT(item((a - wanted).norm() / wanted.norm()), 1e-4);
  // Biases are new, and about half of the first layers are turned round.
  const Tensor before = found.before.at("moe.experts.w");
  EXPECT_FALSE(torch::equal(own.b, found.before.at("moe.experts.b")));
  const Tensor kept = (own.w * before).sum(2);
  expect_close(kept.abs(), torch::ones({2, 6}), 1e-5);
  EXPECT_TRUE(kept.min().item<double>() < 0 && kept.max().item<double>() > 0);
}

TEST(LatentRun, RidgeRegressionSolvesForAllExpertsAtOnce) {
  check_ridge("ideal");
}

TEST(LatentRun, RidgeRegressionIsJointWhereExpertsShareSamples) {
  check_ridge("as_it_is");  // A router of zeros sends every sample to both.
}

TEST(LatentRun, RidgeRegressionChoosesLambdaByHeldOutSamples) {
  const auto error = [](const std::string& lambdas) {
    const TempDir folder;
    Trainer(latent_run(only_phase(
                "solve", {"phases.specialise.steps=1", "phases.solve.lambdas=" + lambdas})),
            options_with_described(folder / "run"))
        .run();
    std::istringstream metrics(read_text(folder / "run/metrics.jsonl"));
    std::map<std::string, double> found;
    for (std::string line; std::getline(metrics, line);) {
      const auto row = nlohmann::json::parse(line);
      for (const auto& [name, value] : row.items()) {
        if (name.starts_with("held_out") || name == "lambda") found[name] = value;
      }
    }
    return found;
  };
  const auto found = error("[1e-6,1e-2,1,100]");
  ASSERT_EQ(found.size(), 5U);
  std::string best;
  for (const auto& [name, value] : found) {
    if (name != "lambda" && (best.empty() || value < found.at(best))) best = name;
  }
  EXPECT_EQ(std::stod(best.substr(std::string("held_out_").size())), found.at("lambda"));
  EXPECT_GT(found.at("held_out_100"), found.at(best));
}

TEST(LatentRun, GoesOnWithTheSameBits) {
  expect_same_bits(latent_run(), {50, 150, 200, 260, 310, 380, 430}, 500);
}

TEST(LatentRun, GoesOnWithTheSameBitsWhereAPhaseEndsEarly) {
  expect_same_bits(latent_run({"phases.explore.stop_alignment=0.4"}), {50, 100, 150}, 450);
}

TEST(LatentRun, SeedsSeeOtherSamplesAndBlocksRoundOnly) {
  const auto weights = [](std::vector<std::string> changes) {
    changes.insert(changes.end(), {"phases.solve.steps=0", "phases.route.steps=0",
                                   "phases.explore.lr=0.2", "phases.specialise.lr=0.1"});
    return train_latent(latent_run(changes)).model->experts->w.detach();
  };
  const Tensor once = weights({});
  EXPECT_TRUE(torch::equal(once, weights({})));
  expect_close(once, weights({"phases.specialise.chunk_size=7"}), 1e-5);
  EXPECT_FALSE(torch::allclose(once, weights({"seed=6"}), 1e-2, 1e-2));
}

TEST(LatentRun, RestartsDrawFirstLayersAndSigns) {
  const auto at_end = [](const std::string& restart) {
    return train_latent(
        latent_run(only_phase(
            "specialise", {"phases.specialise.steps=1", "phases.specialise.restart=" + restart})),
        "route");
  };
  const TrainedLatent kept = at_end("false"), drawn = at_end("true");
  const auto near_start = [](const TrainedLatent& run) {
    const Tensor cosine = (run.model->experts->w * run.before.at("moe.experts.w")).sum(2);
    return cosine.min().item<double>() > 0.9;
  };
  EXPECT_TRUE(near_start(kept));
  EXPECT_FALSE(near_start(drawn));
  EXPECT_FALSE(torch::equal(drawn.model->experts->a, drawn.before.at("moe.experts.a")));
  EXPECT_TRUE(torch::equal(drawn.model->experts->b, drawn.before.at("moe.experts.b")));
}

TEST(LatentRun, ARestartMayChangeTheNumbersOfExpertsAndNeurons) {
  const std::vector<std::string> changes = {"phases.specialise.num_experts=3",
                                            "phases.specialise.num_neurons=9",
                                            "phases.specialise.router=as_it_is"};
  const TrainedLatent found = train_latent(latent_run(only_phase("specialise", changes)), "route");
  const nn::ShallowExpertsImpl& own = *found.model->experts;
  EXPECT_EQ(own.w.sizes(), at::IntArrayRef({3, 9, 24}));
  expect_close(own.w.detach().norm(2, {2}), torch::ones({3, 9}), 1e-5);
  EXPECT_TRUE(own.a.abs().eq(1).all().item<bool>());
  EXPECT_GT(own.b.abs().max().item<double>(), 0.5);
  EXPECT_LE(own.b.abs().max().item<double>(), 1.0);
  EXPECT_EQ(found.model->config().at("num_experts"), 3);
  EXPECT_EQ(found.model->config().at("num_neurons"), 9);
  const TrainedLatent routed = train_latent(
      latent_run({changes[0], changes[1], changes[2], "phases.solve.steps=0"}), "route");
  const Tensor before = routed.before.at("moe.router.weight");
  EXPECT_GT(before.norm().item<double>(), 0.0);
  EXPECT_TRUE(routed.model->moe->router->weight.equal(
      before.index_select(0, torch::tensor({0, 1, 0}, torch::kLong))));
  expect_same_bits(latent_run(changes), {200, 260, 380}, 500);
}

TEST(LatentRun, GoesThroughATableEpochByEpoch) {
  const TempDir folder;
  const std::string data = write_table(folder, samples_of(0, 100));
  std::vector<std::string> changes = only_phase(
      "specialise", {"phases.specialise.restart=false", "phases.specialise.lr=0.01",
                     "phases.specialise.steps=200", "phases.specialise.router=as_it_is"});
  for (const char* phase : {"explore", "route", "specialise", "solve"}) {
    changes.push_back(fmt::format("phases.{}.data={}", phase, data));
  }
  const TrainedLatent found = train_latent(latent_run(changes), "route");
  const DatasetInputs rows = open_dataset(data, "train")->inputs();
  ASSERT_EQ(rows.targets_NK.size(0), 90);
  const Tensor x_Sd = rows.values_NCHW.flatten(1), y_S = rows.targets_NK.flatten();
  Tensor w = found.before.at("moe.experts.w").clone();
  const Tensor a = found.before.at("moe.experts.a"), b = found.before.at("moe.experts.b");
  const auto first = static_cast<int64_t>(mix64(phase_seed(5, 2)) % 90);
  for (int64_t i = first; i < first + 200; ++i) {
    const Tensor& x = x_Sd[i % 90];
    const Tensor p = w.matmul(x);  // A router of zeros sends every sample to both experts.
    const Tensor k = 0.01 / 6.0 * y_S[i % 90] * a * (p + b).gt(0);
    w += k.unsqueeze(2) * (x - p.unsqueeze(2) * w);
    w /= w.norm(2, {2}, true);
  }
  expect_close(found.model->experts->w, w, 1e-4);
  const auto refusal = [&](const std::string& change) {
    std::vector<std::string> with = changes;
    with.push_back(change);
    return refusal_of([&] { return latent_run(with); });
  };
  EXPECT_THAT(refusal("phases.route.batch_size=91"), HasSubstr("91 samples are more than the 90"));
  EXPECT_THAT(refusal("phases.solve.steps=21"),
              HasSubstr("21 samples of steps and 70 held out are more than the 90"));
  EXPECT_THAT(refusal("phases.specialise.router=ideal"), HasSubstr("needs the means"));
}

TEST(LatentRun, EndsOnceTheLocalTasksAreFound) {
  const auto steps = [](const std::string& until) {
    TrainerOptions options = options_with_described("");
    int64_t made = 0;
    options.on_phase_end = [&](Model&, const std::string& phase, int64_t step) {
      if (phase == "explore") made = step;
    };
    Trainer(latent_run(only_phase("explore", {"phases.explore.stop_alignment=" + until})), options)
        .run();
    return made;
  };
  EXPECT_EQ(steps("0"), 150);
  EXPECT_EQ(steps("0.01"), 50);
  EXPECT_EQ(steps("1"), 150);
}

TEST(LatentRun, RefusesWhatDoesNotFitInOneLine) {
  const auto refusal = [](const std::vector<std::string>& changes) {
    return refusal_of([&] { return latent_run(changes); });
  };
  EXPECT_THAT(refusal({"model.width=25"}), HasSubstr("the model takes rows of 25 numbers"));
  EXPECT_THAT(refusal({"phases.solve.frozen=[\"router\"]"}),
              AllOf(HasSubstr("phase 'solve'"), HasSubstr("leave 'trainable' and 'frozen' out")));
  EXPECT_THAT(refusal({"phases.explore.routing=top2"}), HasSubstr("'top1'"));
  EXPECT_THAT(refusal({"phases.solve.lambdas=[0]"}), HasSubstr("lambdas"));
  EXPECT_THAT(refusal({"phases.explore.num_neurons=9"}),
              HasSubstr("phase 'explore': only a restart changes num_experts and num_neurons"));
  const RunConfig gated = config_of(R"({"name": "x", "model": {"name": "gated-moe", "width": 5},
      "phases": [{"name": "p", "kind": "ridge", "data": "gated-small", "steps": 1}]})");
  EXPECT_THAT(refusal_of([&] { return gated; }),
              HasSubstr("needs a model of one layer of two-layer experts"));
}

/// A phase of a run before its first step, and its network.
struct StartedPhase {
  std::shared_ptr<LatentMoE> model;
  std::unique_ptr<Phase> phase;
};

StartedPhase start_phase(size_t index, const std::vector<std::string>& changes = {}) {
  const RunConfig config = latent_run(changes);
  DatasetCache datasets;
  StartedPhase started{std::dynamic_pointer_cast<LatentMoE>(RunStart(config).model()), nullptr};
  const PhasePlan plan = plan_phases(config, *started.model, datasets).at(index);
  started.phase = phase_kinds()
                      .at(plan.config.kind.name())
                      .make(plan, {.model = started.model,
                                   .data = datasets.get("latent-small", "train"),
                                   .seed = phase_seed(5, static_cast<int64_t>(index))});
  return started;
}

/// Steps until the phase fails, and expects the network as it was. Returns what was said.
std::string failure_that_changes_nothing(const StartedPhase& started) {
  TensorMap before;
  for (const auto& [name, tensor] : state_of(*started.model)) before[name] = tensor.clone();
  const std::string said = error_of([&] {
    while (!started.phase->is_done()) started.phase->step();
  });
  for (const auto& [name, tensor] : state_of(*started.model)) {
    EXPECT_TRUE(tensor.equal(before.at(name)) || tensor.isnan().all().item<bool>()) << name;
  }
  return said;
}

TEST(LatentRun, AStepThatFailsLeavesTheNetworkAsItWas) {
  EXPECT_THAT(failure_that_changes_nothing(start_phase(2, {"phases.specialise.lr=1000"})),
              HasSubstr("turns a neuron by more than 45 degrees"));
  EXPECT_THAT(failure_that_changes_nothing(
                  start_phase(2, {"phases.specialise.lr=1000", "phases.specialise.num_neurons=9"})),
              HasSubstr("turns a neuron by more than 45 degrees"));
  EXPECT_THAT(failure_that_changes_nothing(start_phase(1, {"phases.route.lr=1e5"})),
              HasSubstr("a step moves logits by"));
  const StartedPhase ridge = start_phase(3);
  ridge.model->moe->router->weight.detach().fill_(std::nan(""));
  EXPECT_THAT(failure_that_changes_nothing(ridge), HasSubstr("the logits of token 0 are NaN"));
  const StartedPhase none = start_phase(3);
  none.model->experts->w.detach().fill_(std::nan(""));  // No sum of squares is above 0.
  EXPECT_THAT(failure_that_changes_nothing(none), HasSubstr("no sample to any expert"));
}

TEST(LatentRun, TheTurnOfAStepIsOfTheNeuronsThatTakeIt) {
  const StartedPhase started =
      start_phase(2, {"phases.specialise.restart=false", "phases.specialise.chunk_size=120",
                      "phases.specialise.lr=0.1"});
  Tensor& a = started.model->experts->a;
  a.detach().copy_(randn({2, 6}, 3, torch::kFloat));
  const DatasetInputs inputs = samples_of(2, 120);
  const Tensor mean = open_dataset("latent-small", "train")->directions().at("mean");
  double sum = 0.0;
  for (int64_t i = 0; i < 120; ++i) {
    const Tensor x = inputs.values_NCHW[i].flatten();
    const int64_t m = item(x.dot(mean[0] - mean[1])) >= 0 ? 0 : 1;
    sum += item(x.square().sum() * inputs.targets_NK[i][0].square() * a[m].square().mean());
  }
  EXPECT_NEAR(started.phase->step().metrics.at("turn"), 0.1 / 6 * std::sqrt(sum / 120), 1e-5);
}

TEST(LatentRun, AStepThatIsTooLargeIsADivergence) {
  const auto divergence = [](const std::string& phase, const std::string& lr) {
    return error_of([&] { train_latent(latent_run({"phases." + phase + ".lr=" + lr})); });
  };
  EXPECT_THAT(divergence("explore", "1000"),
              AllOf(HasSubstr("phase 'explore', step 1: training diverged: a step turns a neuron"),
                    HasSubstr("lower phases.explore.lr (1000 now)")));
  EXPECT_THAT(divergence("specialise", "1000"), HasSubstr("lower phases.specialise.lr"));
  EXPECT_THAT(divergence("route", "1e300"), HasSubstr("lower phases.route.lr"));
}

}  // namespace
}  // namespace moesaic
