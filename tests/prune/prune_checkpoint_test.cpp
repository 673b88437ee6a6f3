// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/prune_checkpoint.h"

#include "base/support.h"
#include "checkpoint/shards.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/papers/clusters.h"
#include "prune/plan_networks.h"
#include "support/matchers.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

void save(const fs::path& folder, const Model& model) {
  save_checkpoint(folder, {.config = {{"model", model.config()},
                                      {"data", "fashion-mnist"},
                                      {"classes", {"a", "b", "c", "d", "e"}},
                                      {"run", nullptr}},
                           .state = {{"step", 12}},
                           .model = state_of(model),
                           .optimizer = {{"head.weight.momentum", torch::ones({5, 12})}}});
}

std::string refusal_of(const PruneCheckpointOptions& options) {
  return test::usage_of([&] { prune_checkpoint(options); });
}

class PruneCheckpoint : public ::testing::Test {
 protected:
  PruneCheckpoint() {
    save(folder_ / "pretrained", *small_vmoe(small_vmoe_config(), 1));
    save(folder_ / "finetuned", *small_vmoe(small_vmoe_config(), 50));
  }

  std::string refusal() const { return refusal_of(options_); }

  /// Returns the plan of this file's text.
  PrunePlan plan_of(const std::string& text) const {
    test::put(folder_ / "plan.json", text);
    return read_plan(folder_ / "plan.json");
  }

  /// Returns options to prune by the plan of this text.
  PruneCheckpointOptions by_plan(const std::string& text) const {
    return {.finetuned = options_.finetuned, .out = folder_ / "by_plan", .plan = plan_of(text)};
  }

  /// Returns the network that is pruned to four experts, and what is left to two.
  std::shared_ptr<Model> pruned_twice() {
    options_.prune.keep = KeepSpec::count(4);
    prune_checkpoint(options_);
    options_.finetuned = options_.out;
    options_.out = folder_ / "again";
    options_.prune.keep = KeepSpec::count(2);
    prune_checkpoint(options_);
    return load_model(options_.out);
  }

  const test::TempDir folder_;
  PruneCheckpointOptions options_{.finetuned = folder_ / "finetuned",
                                  .pretrained = folder_ / "pretrained",
                                  .out = folder_ / "out",
                                  .prune = {.keep = KeepSpec::count(2)}};
};

TEST_F(PruneCheckpoint, OfNetworksInPartsIsThatOfOneFile) {
  prune_checkpoint(options_);
  for (auto* folder : {&options_.pretrained, &options_.finetuned}) {
    const fs::path parts = folder->string() + " in parts";
    testing::save_in_parts(parts, load_checkpoint(*folder), 4);
    *folder = parts;
  }
  options_.out = folder_ / "of parts";
  prune_checkpoint(options_);
  EXPECT_EQ(test::get(folder_ / "out/MANIFEST.json"),
            test::get(folder_ / "of parts/MANIFEST.json"));
}

TEST_F(PruneCheckpoint, WritesASmallerNetworkThatLoads) {
  const PruneCheckpointResult result = prune_checkpoint(options_);
  const auto before = load_model(options_.finetuned), pretrained = load_model(options_.pretrained);
  const PrunePlan plan =
      plan_pruning(*before, pretrained.get(), "router-norm-change", KeepSpec::count(2));
  EXPECT_EQ(to_json(result.plan), to_json(plan));
  apply_plan(*before, plan);

  const auto after = load_model(options_.out);
  const at::Tensor images = small_images(3);
  EXPECT_TRUE(at::equal(run(*after, images).logits, run(*before, images).logits));
  EXPECT_EQ(after->config()["encoder"]["moe"]["kept_experts"]["1"], plan.layers[0].kept);
  EXPECT_LT(fs::file_size(options_.out / "model.safetensors"),
            fs::file_size(options_.finetuned / "model.safetensors"));
}

TEST_F(PruneCheckpoint, APretrainedNetworkWithAnotherKIsAnother) {
  auto config = small_vmoe_config();
  config.encoder.moe.router.k = 1;
  save(folder_ / "top-1", *small_vmoe(config, 1));
  options_.pretrained = folder_ / "top-1";
  EXPECT_THAT(refusal(), HasSubstr("a token selects 1 experts, not: a token selects 2 experts"));
  EXPECT_FALSE(fs::exists(options_.out));
}

/// A mixture of six experts, of which the router's rows have these norms.
std::shared_ptr<ClusterMoE> mixture_with_norms(const std::vector<double>& norms) {
  const ClusterMoEConfig config{.num_patches = 3, .width = 5, .num_experts = 6, .init_scale = 1.0};
  auto model = std::make_shared<ClusterMoE>(config, 1);
  const torch::NoGradGuard no_grad;
  for (size_t e = 0; e < norms.size(); ++e) {
    at::Tensor row = model->moe->router->weight[static_cast<int64_t>(e)];
    row.copy_(testing::randn({5}, e + 1, torch::kFloat));
    row.mul_(norms[e] / row.norm().item<double>());
  }
  return model;
}

TEST_F(PruneCheckpoint, PrunesAMixtureOfFilterNetworksToo) {
  save(folder_ / "mixture", *mixture_with_norms({9, 2, 3, 1, 5, 1}));
  save(folder_ / "before", *mixture_with_norms({9, 1, 1, 5, 1, 2}));
  options_.pretrained = folder_ / "before";
  options_.finetuned = folder_ / "mixture";
  const PruneCheckpointResult result = prune_checkpoint(options_);
  ASSERT_EQ(result.plan.layers.size(), 1U);
  EXPECT_EQ(result.plan.layers[0].block, 0);
  EXPECT_EQ(result.plan.layers[0].kept, (std::vector<int64_t>{2, 4}));  // changes 2 and 4
  EXPECT_EQ(result.before.num_parameters - result.after.num_parameters, 4 * 16 * (5 + 1));
  // Of an image's one choice, 4 of 6 go to experts that are not there.
  EXPECT_NEAR(result.before.flops - result.after.flops, 4.0 / 6 * 2 * 3 * 5 * 16, 1e-6);

  const auto pruned = load_model(options_.out);
  EXPECT_EQ(pruned->config()["router"]["kept_experts"], (std::vector<int64_t>{2, 4}));
  const at::Tensor images = testing::randn({50, 1, 3, 5}, 3, torch::kFloat);
  const auto full = load_model(options_.finetuned);
  const ModelOutput wanted = run(*full, images), found = run(*pruned, images);
  const at::Tensor choice = wanted.routings[0].routing.choice;
  EXPECT_TRUE(at::equal(found.routings[0].routing.choice, choice));
  const at::Tensor lost = (choice != 2).logical_and(choice != 4);
  EXPECT_GT(lost.sum().item<int64_t>(), 0);
  testing::expect_close(found.logits, wanted.logits.masked_fill(lost, 0.0), 1e-6);
}

TEST_F(PruneCheckpoint, TellsTheMembersOfAnEnsembleApart) {
  save(options_.finetuned = folder_ / "ensemble", *small_vmoe(small_ensemble_config(3, 1)));
  options_.pretrained.clear();
  options_.prune.criterion = "random";
  test::put(folder_ / "keep.json", R"({"1": [0, 3, 4, 5]})");
  options_.prune.keep = KeepSpec::parse((folder_ / "keep.json").string());
  EXPECT_THAT(describe(prune_checkpoint(options_)),
              AllOf(HasSubstr("4 of 6  0 | 3 | 4 5\n"), HasSubstr("6 of 6  0 1 | 2 3 | 4 5\n")));
}

TEST_F(PruneCheckpoint, KeepsTheFactsAndDropsTheOptimizer) {
  const PruneCheckpointResult result = prune_checkpoint(options_);
  const Checkpoint checkpoint = load_checkpoint(options_.out);
  EXPECT_TRUE(checkpoint.optimizer.empty());
  EXPECT_EQ(checkpoint.config["data"], "fashion-mnist");
  EXPECT_EQ(checkpoint.config["classes"].size(), 5U);
  EXPECT_EQ(checkpoint.state["pruned"], to_json(result.plan));
}

TEST_F(PruneCheckpoint, CostsFall) {
  const PruneCheckpointResult result = prune_checkpoint(options_);
  // 2 layers lose 4 experts of (12 * 20 + 20) + (20 * 12 + 12) numbers each.
  EXPECT_EQ(result.before.num_parameters - result.after.num_parameters, 2 * 4 * 512);
  EXPECT_EQ(result.before.bytes - result.after.bytes, 2 * 4 * 512 * 4);
  EXPECT_EQ(result.before.bytes, result.before.num_parameters * 4);
  // Of 17 tokens' 2 choices, 4 of 6 go to experts that are not there, 2 products of 12 x 20 each.
  EXPECT_NEAR(result.before.flops - result.after.flops, 2 * 2 * 17 * (2 * 4.0 / 6) * 2 * 12 * 20,
              1e-6);
  const std::string table = describe(result);
  EXPECT_THAT(table, AllOf(HasSubstr("2 of 6"), HasSubstr("parameters"), HasSubstr("bytes"),
                           HasSubstr("MFLOPs"), HasSubstr("->")));
}

TEST_F(PruneCheckpoint, NeedsThePretrainedNetworkForItsChangeOnly) {
  options_.pretrained.clear();
  EXPECT_THAT(refusal(), HasSubstr("--pretrained"));
  EXPECT_FALSE(fs::exists(options_.out));
  options_.prune.criterion = "magnitude";
  prune_checkpoint(options_);
  EXPECT_TRUE(fs::exists(options_.out / "MANIFEST.json"));
}

TEST_F(PruneCheckpoint, RefusesAPretrainedNetworkOfAnotherKind) {
  VMoEConfig config = small_vmoe_config();
  config.channels = 3;
  options_.pretrained = folder_ / "other";
  save(options_.pretrained, *small_vmoe(config, 1));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("another network"), HasSubstr("embedding.weight")));
  EXPECT_FALSE(fs::exists(options_.out));
  config.encoder.moe.layers.clear();
  save(options_.pretrained = folder_ / "dense", *small_vmoe(config, 1));
  EXPECT_THAT(refusal(), HasSubstr("no routers"));
}

TEST_F(PruneCheckpoint, RefusesAPretrainedNetworkWithExpertsOfAnotherWidth) {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.layers = {0, 1, 2, 3};  // No MLP but experts has the width.
  save(options_.finetuned = folder_ / "all", *small_vmoe(config, 2));
  config.encoder.mlp_dim = 24;
  save(options_.pretrained = folder_ / "wider", *small_vmoe(config, 1));
  EXPECT_THAT(refusal(), HasSubstr("'blocks.0.moe.experts.w1' is [6, 12, 24], not [6, 12, 20]"));
  options_.prune.criterion = "random";
  EXPECT_THAT(refusal(), HasSubstr("another network"));
}

TEST_F(PruneCheckpoint, RefusesAPretrainedNetworkOfAnotherFamilyRuleOrEnsemble) {
  save(options_.pretrained = folder_ / "chooses", *small_vmoe(expert_choice_config(1.0)));
  EXPECT_THAT(refusal(),
              HasSubstr("in block 1 experts select tokens, not: a token selects 2 experts"));
  save(options_.pretrained = folder_ / "three", *small_vmoe(small_ensemble_config(3)));
  EXPECT_THAT(refusal(), HasSubstr("its family is 'e3', not 'vmoe'"));
  save(options_.finetuned = folder_ / "two", *small_vmoe(small_ensemble_config(2)));
  EXPECT_THAT(refusal(), HasSubstr("it has 3 members, not 2"));
}

TEST_F(PruneCheckpoint, APretrainedNetworkMayHaveOtherNumbersOfExperts) {
  EXPECT_EQ(pruned_twice()->moe_blocks()[0].layer->kept().size(), 2U);
}

TEST_F(PruneCheckpoint, OverwritesNothing) {
  fs::create_directory(options_.out);
  prune_checkpoint(options_);  // an empty folder is fine
  const std::string config = test::get(options_.out / "config.json");
  EXPECT_THAT(refusal(), HasSubstr("already exists"));
  EXPECT_EQ(test::get(options_.out / "config.json"), config);
  options_.out = folder_ / "file";
  test::put(options_.out, "mine");
  EXPECT_THAT(refusal(), HasSubstr("already exists"));
  EXPECT_EQ(test::get(options_.out), "mine");
}

TEST_F(PruneCheckpoint, AnErrorLeavesNothing) {
  options_.prune.keep = KeepSpec::count(1);
  refusal();
  options_.prune.keep = KeepSpec::count(2);
  options_.prune.criterion = "randm";
  EXPECT_THAT(refusal(), HasSubstr("'random'"));
  options_.prune.criterion = "random";
  options_.finetuned = folder_ / "nowhere";
  refusal();
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"finetuned", "pretrained"}));
}

TEST_F(PruneCheckpoint, TiesAreWorthAWarning) {
  options_.finetuned = options_.pretrained;
  EXPECT_THAT(test::said_by([&] { prune_checkpoint(options_); }),
              AllOf(HasSubstr("warning: "),
                    HasSubstr("check that the pretrained and the fine-tuned network differ")));
}

TEST_F(PruneCheckpoint, PlansWithoutWritingAndDoesWhatAPlanSays) {
  options_.dry_run = true;
  options_.out.clear();
  const PruneCheckpointResult planned = prune_checkpoint(options_);
  EXPECT_LT(planned.after.num_parameters, planned.before.num_parameters);
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"finetuned", "pretrained"}));

  PruneCheckpointOptions given = by_plan(to_json(planned.plan).dump());
  prune_checkpoint(given);
  options_.dry_run = false;
  options_.out = folder_ / "out";
  prune_checkpoint(options_);
  for (const char* file : {"model.safetensors", "config.json", "state.json"}) {
    EXPECT_EQ(test::get(given.out / file), test::get(options_.out / file)) << file;
  }
  given.plan = plan_of(R"({"layers": [{"layer": 2, "experts": 6, "kept": [1]}]})");
  given.out = folder_ / "other";
  EXPECT_THAT(refusal_of(given), HasSubstr("plan.json: block 2 has no experts"));
  EXPECT_FALSE(fs::exists(given.out));
}

TEST_F(PruneCheckpoint, TokensMayChooseAmongTheExpertsLeft) {
  options_.prune.criterion = "random";
  options_.prune.replace = kReroute;
  options_.prune.keep = KeepSpec::count(3);
  const PrunePlan plan = prune_checkpoint(options_).plan;
  const auto before = load_model(options_.finetuned);
  apply_plan(*before, plan);
  const auto after = load_model(options_.out);
  EXPECT_EQ(after->config()["encoder"]["moe"]["router"]["pruned_selection"], "reroute");
  EXPECT_EQ(after->config(), before->config());
  const ModelOutput found = run(*after, small_images(3));
  EXPECT_TRUE(at::equal(found.logits, run(*before, small_images(3)).logits));
  for (const RoutingRecord& record : found.routings) {
    EXPECT_EQ(record.routing.offsets[-1].item<int64_t>(), 3 * 17 * 2) << "two experts a token";
  }
  PruneCheckpointOptions again = options_;
  again.finetuned = options_.out;
  again.out = folder_ / "again";
  again.prune.replace = kReplaceByNothing;
  EXPECT_THAT(refusal_of(again),
              StartsWith("prune: --replace nothing: block 1 reroutes tokens of removed experts"));
  again.prune.replace.reset();
  prune_checkpoint(again);
  EXPECT_EQ(load_model(again.out)->config()["encoder"]["moe"]["router"]["pruned_selection"],
            "reroute");
}

TEST_F(PruneCheckpoint, RemovedExpertsMayLeaveTheirMeans) {
  options_.prune.criterion = "reap";
  options_.prune.replace = kReplaceByMean;
  EXPECT_THAT(refusal(), HasSubstr("images are needed"));
  options_.calibrate = use_on_images;
  options_.prune.keep = KeepSpec::count(4);
  const PrunePlan plan = prune_checkpoint(options_).plan;
  const auto before = load_model(options_.finetuned);
  apply_plan(*before, plan);
  const auto after = load_model(options_.out);
  EXPECT_TRUE(after->config()["encoder"]["moe"]["mean_replacement"]);
  const at::Tensor images = small_images(3);
  EXPECT_TRUE(at::equal(run(*after, images).logits, run(*before, images).logits));
  // Two vectors of 12 numbers in each of two layers, for 17 tokens, beside the same without them.
  PrunePlan bare = plan;
  bare.replace = kReplaceByNothing;
  for (PruneLayerPlan& layer : bare.layers) layer.means_Eo = at::Tensor();
  const auto without = load_model(options_.finetuned);
  apply_plan(*without, bare);
  EXPECT_EQ(after->flops_per_image(even_rows_per_token(*after)) -
                without->flops_per_image(even_rows_per_token(*without)),
            2.0 * 17 * 2 * 2 * 12);

  // Pruned again, once with what it takes and once without.
  PruneCheckpointOptions again = options_;
  again.finetuned = options_.out;
  again.out = folder_ / "again";
  again.prune.keep = KeepSpec::count(2);
  prune_checkpoint(again);
  const auto twice = load_model(again.out);
  EXPECT_EQ(twice->moe_blocks()[0].layer->replacement_outputs.size(0), 4);
  again.out = folder_ / "mixed";
  again.prune.replace = kReplaceByNothing;
  EXPECT_THAT(refusal_of(again),
              HasSubstr("earlier pruning kept mean outputs; choose the replacement 'mean'"));
  EXPECT_FALSE(fs::exists(again.out));
}

/// Returns the rows of an image that both layers' experts compute by capacity, whole and with two
/// experts each.
std::pair<double, double> capacity_rows(const VMoEConfig& config) {
  const auto model = small_vmoe(config);
  const auto rows = [&] {
    const double of_experts =
        footprint(*model).capacity_flops - model->flops_per_image({{1, 0.0}, {3, 0.0}});
    return of_experts / (2 * 2 * 12 * 20);  // Two products of 12 x 20 numbers.
  };
  const double whole = rows();
  for (MoEBlock block : model->moe_blocks()) block.layer->keep_experts({1, 4});
  return {whole, rows()};
}

TEST(Footprint, CountsTheCapacityBuffersOfTheExpertsThatAreLeft) {
  VMoEConfig config = small_vmoe_config();
  VMoERouterConfig& router = config.encoder.moe.router;
  const auto expect = [&](double whole, double pruned) {
    const auto [of_all, of_two] = capacity_rows(config);
    EXPECT_NEAR(of_all, 2 * whole, 1e-9);
    EXPECT_NEAR(of_two, 2 * pruned, 1e-9);
  };
  expect(17 * 2, 17 * 2 * 2 / 6.0);  // Nothing is dropped: evenly spread rows.
  // 17 * 2 * 1 / 6 = 5.7 rows of an expert, raised to 8.
  config.encoder.moe.group_size = 17;
  router.capacity.factor = 1.0;
  expect(6 * 8, 2 * 8);
  router.capacity.evaluation_factor = 1.5;  // 8.5, raised to 12
  expect(6 * 12, 2 * 12);
  router.pruned = PrunedSelection::reroute;  // Of two experts 25.5, but a group has 17 tokens.
  expect(6 * 12, 2 * 17);
  router = VMoERouterConfig();
  router.kind = RoutingKind::expert_choice;
  router.l = 5;
  expect(6 * 5, 2 * 5);
}

TEST_F(PruneCheckpoint, APlanKeepsWhatATokenSelectsAndMayNameNoCriterion) {
  PruneCheckpointOptions given =
      by_plan(R"({"layers": [{"layer": 1, "experts": 6, "kept": [3]}]})");
  EXPECT_THAT(refusal_of(given),
              HasSubstr("block 1 would keep 1 experts, fewer than the 2 that a token selects"));
  EXPECT_FALSE(fs::exists(given.out));
  given = by_plan(R"({"criterion": "mine", "layers":
      [{"layer": 1, "experts": 6, "kept": [1, 3], "scores": [1, 1, 1, 1, 1, 1]}]})");
  prune_checkpoint(given);
  EXPECT_EQ(load_model(given.out)->moe_blocks()[0].layer->kept().size(), 2U);
}

TEST_F(PruneCheckpoint, ThatRemovesNothingSaysSo) {
  options_.dry_run = true;
  const auto said = [&](const PruneCheckpointOptions& options) {
    return test::said_by([&] { prune_checkpoint(options); });
  };
  EXPECT_EQ(said(options_), "");
  options_.prune.keep = KeepSpec::fraction(1.0);
  const std::string all =
      "warning: prune: all 12 experts are kept, so the network is unchanged; a fraction to keep is "
      "one of the experts before any pruning\n";
  EXPECT_EQ(said(options_), all);
  options_.pretrained.clear();
  options_.plan =
      plan_of(R"({"layers": [{"layer": 1, "experts": 6, "kept": [0, 1, 2, 3, 4, 5]}]})");
  EXPECT_EQ(said(options_), all);
}

TEST_F(PruneCheckpoint, APlanOfAnotherNetworkIsRefusedBeforeItsMeansAreMeasured) {
  PruneCheckpointOptions given = by_plan(R"({"replace": "mean", "layers":
      [{"layer": 1, "experts": 8, "kept": [1, 3]}]})");
  given.calibrate = [](const Checkpoint&, Model&) -> ExpertStatistics {
    ADD_FAILURE() << "calibrates";
    return {};
  };
  EXPECT_THAT(refusal_of(given),
              HasSubstr("plan.json: block 1 has 6 experts, the plan was made for 8"));
}

TEST_F(PruneCheckpoint, WhatRemovedExpertsLeaveMayDifferFromWhatAPlanSays) {
  for (const auto& [said, given] : {std::pair(kReplaceByMean, kReplaceByNothing),
                                    std::pair(kReplaceByNothing, kReplaceByMean)}) {
    PruneCheckpointOptions options =
        by_plan(std::string(R"({"replace": ")") + said +
                R"(", "layers": [{"layer": 1, "experts": 6, "kept": [1, 3]}]})");
    options.calibrate = use_on_images;
    for (const bool other : {false, true}) {
      options.out = folder_ / (said + std::to_string(other));
      options.prune.replace = other ? std::optional<std::string>(given) : std::nullopt;
      EXPECT_EQ(prune_checkpoint(options).plan.replace, other ? given : said);
      EXPECT_EQ(load_model(options.out)->moe_blocks()[0].layer->replacement_outputs.defined(),
                (other ? given : said) == std::string(kReplaceByMean));
    }
  }
}

TEST_F(PruneCheckpoint, MeansAreComparedWithThePretrainedNetworkToo) {
  options_.prune.replace = kReplaceByMean;
  options_.calibrate = use_on_images;
  EXPECT_EQ(pruned_twice()->moe_blocks()[1].layer->replacement_outputs.size(0), 4);
}

TEST_F(PruneCheckpoint, EqualsRemovalInMemoryForEveryFamilyAndCriterion) {
  const auto mixture = mixture_with_norms({1, 6, 3, 5, 2, 4});
  save(options_.pretrained = options_.finetuned = folder_ / "mixture", *mixture);
  for (const char* criterion : {"magnitude", "router-magnitude", "aimer", "random"}) {
    SCOPED_TRACE(criterion);
    options_.prune.criterion = criterion;
    options_.out = folder_ / criterion;
    const PrunePlan written = prune_checkpoint(options_).plan;
    const auto copy = load_model(options_.finetuned);
    const PrunePlan plan = plan_pruning(*copy, nullptr, criterion, options_.prune.keep);
    EXPECT_EQ(to_json(written), to_json(plan));
    apply_plan(*copy, plan);
    expect_equal_tensors(state_of(*load_model(options_.out)), state_of(*copy));
  }
}

}  // namespace
}  // namespace moesaic
