// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/plan.h"

#include <fmt/format.h>

#include "base/support.h"
#include "moesaic/config/document.h"
#include "moesaic/nn/mlp_experts.h"
#include "moesaic/prune/criteria.h"
#include "prune/plan_networks.h"
#include "support/matchers.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

using Ids = std::vector<int64_t>;

/// Gives the rows of a router these norms.
void set_norms(const MoEBlock& block, const std::vector<double>& norms) {
  const torch::NoGradGuard no_grad;
  nn::MoELayer layer = block.layer;
  at::Tensor weight = layer->router->weight;
  weight.zero_();
  for (size_t row = 0; row < norms.size(); ++row) {
    weight[static_cast<int64_t>(row)][0] = norms[row];
  }
}

void set_norms(const Model& model, const std::vector<double>& norms) {
  for (const MoEBlock& block : model.moe_blocks()) set_norms(block, norms);
}

KeepSpec spec(const std::string& json) {
  return KeepSpec::from_value(Document::from_text(json, "keep.json").root());
}

TEST(PrunePlan, KeepsTheHighestScores) {
  const auto model = small_vmoe();
  set_norms(*model, {3, 1, 6, 2, 5, 4});
  const PrunePlan plan = plan_pruning(*model, nullptr, "router-magnitude", KeepSpec::count(3));
  ASSERT_EQ(plan.layers.size(), 2U);
  EXPECT_EQ(plan.layers[0].block, 1);
  EXPECT_EQ(plan.layers[1].block, 3);
  for (const PruneLayerPlan& layer : plan.layers) {
    EXPECT_EQ(layer.num_experts, 6);
    EXPECT_EQ(layer.kept, (Ids{2, 4, 5}));
    EXPECT_EQ(layer.scores, (std::vector<double>{3, 1, 6, 2, 5, 4}));
  }
}

TEST(PrunePlan, RefusesWhatIsNotFiniteInEitherNetworkByEveryCriterion) {
  for (const std::string& criterion : criterion_names()) {
    for (const char* name : {"head.bias", "blocks.3.moe.experts.b2", "embedding.weight"}) {
      const auto before = small_vmoe(), after = small_vmoe();
      const auto refusal = [&](Model& model) {
        const torch::NoGradGuard no_grad;
        at::Tensor values = model.named_parameters()[name].view({-1});
        values[0] = NAN;
        const std::string text = test::failure_of(
            [&] { plan_pruning(*after, before.get(), criterion, KeepSpec::count(3)); });
        values[0] = 0.0;
        return text;
      };
      EXPECT_EQ(refusal(*after), std::string("prune: '") + name +
                                     "' of the fine-tuned network holds NaN or infinity");
      EXPECT_EQ(refusal(*before), std::string("prune: '") + name +
                                      "' of the pretrained network holds NaN or infinity");
    }
  }
}

TEST(PrunePlan, ComparesWithThePretrainedNetwork) {
  const auto before = small_vmoe(), after = small_vmoe();
  set_norms(*before, {9, 1, 1, 5, 1, 1});
  set_norms(*after, {9, 2, 3, 1, 5, 1});  // changes: 0 1 2 -4 4 0
  const PrunePlan plan =
      plan_pruning(*after, before.get(), "router-norm-change", KeepSpec::count(3));
  EXPECT_EQ(plan.layers[0].kept, (Ids{1, 2, 4}));
  EXPECT_EQ(plan.layers[0].scores, (std::vector<double>{0, 1, 2, -4, 4, 0}));
}

TEST(PrunePlan, ATieKeepsTheLowerExpert) {
  const auto model = small_vmoe();
  set_norms(*model, {1, 2, 2, 1, 2, 1});
  const auto kept = [&](int64_t count) {
    return plan_pruning(*model, nullptr, "router-magnitude", KeepSpec::count(count)).layers[0].kept;
  };
  EXPECT_EQ(kept(2), (Ids{1, 2}));
  EXPECT_EQ(kept(4), (Ids{0, 1, 2, 4}));
  EXPECT_EQ(kept(5), (Ids{0, 1, 2, 3, 4}));
}

TEST(PrunePlan, RulesHoldForTheirBlockOnly) {
  const auto model = small_vmoe();
  set_norms(*model, {3, 1, 6, 2, 5, 4});
  const PrunePlan plan =
      plan_pruning(*model, nullptr, "router-magnitude", spec("{\"3\": [1, 0, 3]}"));
  EXPECT_EQ(plan.layers[0].kept, (Ids{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(plan.layers[1].kept, (Ids{0, 1, 3}));
}

TEST(PrunePlan, OnlyPresentExpertsCanStay) {
  const auto model = small_vmoe();
  set_norms(*model, {3, 1, 6, 2, 5, 4});
  for (MoEBlock& block : model->moe_blocks()) block.layer->keep_experts({0, 1, 3, 5});
  const PrunePlan plan = plan_pruning(*model, nullptr, "router-magnitude", KeepSpec::count(2));
  EXPECT_EQ(plan.layers[0].num_experts, 6);
  EXPECT_EQ(plan.layers[0].scores.size(), 6U);
  EXPECT_EQ(plan.layers[0].kept, (Ids{0, 5}));
  apply_plan(*model, plan);
  EXPECT_EQ(model->moe_blocks()[1].layer->kept(), (Ids{0, 5}));
}

TEST(PrunePlan, IsRefusedWithTheBlockAndTheNumbers) {
  const auto model = small_vmoe();
  model->moe_blocks()[1].layer->keep_experts({0, 1, 2, 5});
  const auto message = [&](const KeepSpec& keep) {
    return test::usage_of([&] { plan_pruning(*model, nullptr, "random", keep); });
  };
  EXPECT_THAT(message(KeepSpec::count(1)),
              HasSubstr("block 1 would keep 1 of 6 experts, fewer than the 2 that a token selects; "
                        "keep at least 2; 1 is a count, and 1.0 the fraction that keeps all"));
  EXPECT_THAT(message(KeepSpec::parse("0.1")),
              AllOf(HasSubstr("keep '0.1'"), HasSubstr("block 1 would keep 1 of 6"),
                    HasSubstr("; keep at least 0.3333")));
  plan_pruning(*model, nullptr, "random", KeepSpec::parse("0.3333"));
  EXPECT_THAT(message(KeepSpec::count(5)), HasSubstr("block 3 cannot keep 5 experts, it has 4"));
  EXPECT_THAT(message(spec("{\"3\": [0, 3]}")),
              HasSubstr("keep.json:1:7: block 3 has no expert 3; it has 0, 1, 2, 5"));
  EXPECT_THAT(message(spec("{\"1\": [0, 6]}")), HasSubstr("block 1 has no expert 6"));
  EXPECT_THAT(message(spec("{\"1\": [4]}")), HasSubstr("fewer than the 2"));
  EXPECT_THAT(message(spec("{\"2\": 2}")), HasSubstr("block 2 has no experts"));

  VMoEConfig other = small_vmoe_config();
  other.encoder.moe.layers = {1};
  const auto pretrained = small_vmoe(other);
  EXPECT_THAT(test::usage_of([&] {
                plan_pruning(*model, pretrained.get(), "router-norm-change", KeepSpec::count(2));
              }),
              HasSubstr("the pretrained network has no experts in block 3"));
  other.encoder.moe.layers = {};
  EXPECT_THAT(test::usage_of(
                  [&] { plan_pruning(*small_vmoe(other), nullptr, "random", KeepSpec::count(2)); }),
              HasSubstr("no layer with experts"));
}

/// Six experts shared out among the members; a token selects `choices` of its member's.
std::shared_ptr<VMoE> small_ensemble(int64_t members, int64_t choices) {
  return small_vmoe(small_ensemble_config(members, choices));
}

TEST(PrunePlan, RanksEachMemberOfAnEnsembleApart) {
  const auto two = small_ensemble(2, 1), three = small_ensemble(3, 1), both = small_ensemble(2, 2);
  // Together the experts of member 0 would come first.
  for (const auto& model : {two, three, both}) set_norms(*model, {9, 8, 7, 1, 2, 3});
  const auto kept = [](const Model& model, const KeepSpec& keep) {
    return plan_pruning(model, nullptr, "router-magnitude", keep).layers[0].kept;
  };
  EXPECT_EQ(kept(*two, KeepSpec::count(1)), (Ids{0, 5}));
  EXPECT_EQ(kept(*three, KeepSpec::count(1)), (Ids{0, 2, 5}));
  EXPECT_EQ(kept(*both, KeepSpec::count(2)), (Ids{0, 1, 4, 5}));
  EXPECT_EQ(kept(*two, KeepSpec::parse("0.33")), (Ids{0, 5}));
  EXPECT_EQ(kept(*both, KeepSpec::fraction(0.6)), (Ids{0, 1, 4, 5}));
  EXPECT_EQ(kept(*three, KeepSpec::parse("0.5")), (Ids{0, 2, 5}));
  EXPECT_EQ(kept(*two, spec("{\"1\": 2}")), (Ids{0, 1, 4, 5}));
  EXPECT_EQ(kept(*two, spec("{\"1\": [4, 1, 2]}")), (Ids{1, 2, 4}));
  EXPECT_EQ(kept(*three, spec("{\"1\": [5, 2, 0]}")), (Ids{0, 2, 5}));
  EXPECT_EQ(kept(*both, spec("{\"1\": [1, 2, 3, 4]}")), (Ids{1, 2, 3, 4}));

  apply_plan(*three, plan_pruning(*three, nullptr, "router-magnitude", KeepSpec::count(1)));
  EXPECT_TRUE(run(*three, small_images(2)).logits.isfinite().all().item<bool>());
}

TEST(PrunePlan, LeavesEveryMemberOfAnEnsembleWhatATokenSelects) {
  const auto two = small_ensemble(2, 1), three = small_ensemble(3, 2), both = small_ensemble(2, 2);
  const auto message = [](const Model& model, const KeepSpec& keep) {
    return test::usage_of([&] { plan_pruning(model, nullptr, "random", keep); });
  };
  EXPECT_THAT(message(*both, KeepSpec::count(1)),
              HasSubstr("block 1, member 0 would keep 1 of 3 experts, fewer than the 2"));
  EXPECT_THAT(message(*three, KeepSpec::parse("0.5")),
              HasSubstr("block 1, member 0 would keep 1 of 2 experts, fewer than the 2"));
  EXPECT_THAT(message(*two, KeepSpec::count(4)),
              HasSubstr("block 1, member 0 cannot keep 4 experts, it has 3"));
  EXPECT_THAT(message(*two, spec("{\"3\": [0, 1, 2]}")),
              HasSubstr("keep.json:1:7: block 3, member 1 would keep 0 of 3 experts"));
  EXPECT_THAT(message(*both, spec("{\"3\": [0, 1, 3]}")),
              HasSubstr("block 3, member 1 would keep 1 of 3 experts, fewer than the 2"));
  EXPECT_THAT(message(*three, spec("{\"3\": [0, 1, 2, 3, 4]}")),
              HasSubstr("block 3, member 2 would keep 1 of 2 experts, fewer than the 2"));
  EXPECT_THAT(message(*two, spec("{\"3\": [0, 6]}")), HasSubstr("block 3 has no expert 6"));
}

TEST(FirstExperts, AreAsManyOfEachMemberAsARuleKeeps) {
  const auto model = small_ensemble(2, 1);
  const MoEBlock block = model->moe_blocks()[0];
  const auto first = [&](const std::string& json) {
    const KeepSpec keep = spec(json);
    return first_experts(*keep.rule_of(1), block);
  };
  EXPECT_EQ(first("2"), (Ids{0, 1, 3, 4}));
  EXPECT_EQ(first("{\"1\": [2, 4, 5]}"), (Ids{0, 3, 4}));
  EXPECT_EQ(first("4"), (Ids{0, 1, 2, 3, 4, 5}));
}

TEST(PrunePlan, PrintsAsJson) {
  const PrunePlan plan{"random", {{3, 2, {1}, {0.25, -1.5}}}, kReplaceByNothing};
  EXPECT_EQ(
      to_json(plan).dump(),
      R"({"criterion":"random","replace":"nothing","layers":[{"layer":3,"experts":2,"kept":[1],)"
      R"("scores":[0.25,-1.5]}]})");
}

TEST(ApplyPlan, OfAnotherNetworkRemovesNothing) {
  const auto model = small_vmoe();
  const int64_t before = model->num_parameters();
  const PruneLayerPlan good{1, 6, {0, 1}, {}};
  for (const PruneLayerPlan& bad :
       {PruneLayerPlan{2, 6, {0}, {}}, PruneLayerPlan{3, 8, {0}, {}}, PruneLayerPlan{3, 6, {6}, {}},
        PruneLayerPlan{3, 6, {1, 0}, {}}, PruneLayerPlan{3, 6, {}, {}}}) {
    test::usage_of([&] { apply_plan(*model, {"random", {good, bad}}); });
    EXPECT_EQ(model->num_parameters(), before);
  }
}

TEST(PrunePlan, AnEnsembleIsNotReroutedAndSaysWhatItTakes) {
  const VMoE ensemble(small_ensemble_config(2), 1);
  const std::string problem =
      "networks of the family 'e3' cannot reroute tokens; choose the replacement 'mean' or "
      "'nothing'";
  EXPECT_EQ(replacement_problem(ensemble, kReroute), problem);
  EXPECT_EQ(plan_problem(ensemble, {"", {}, kReroute}), problem) << "removes nothing";
}

TEST(PrunePlan, OfANetworkThatReroutesKeepsThatAndTakesNoOtherReplacement) {
  VMoEConfig config = small_vmoe_config();
  EXPECT_EQ(default_replacement(*small_vmoe(config)), "nothing");
  config.encoder.moe.router.pruned = PrunedSelection::reroute;
  const auto model = small_vmoe(config);
  const PrunePlan plan = plan_pruning(*model, nullptr, "random", KeepSpec::count(3));
  EXPECT_EQ(plan.replace, kReroute);
  for (const char* replace : {kReplaceByNothing, kReplaceByMean}) {
    EXPECT_EQ(plan_problem(*model, {plan.criterion, plan.layers, replace}),
              "block 1 reroutes tokens of removed experts, so '" + std::string(replace) +
                  "' cannot replace their outputs; choose the replacement 'reroute'");
  }
  EXPECT_EQ(plan_problem(*model, {plan.criterion, plan.layers}), "") << "a plan without 'replace'";
}

TEST(PrunePlan, OfAThresholdReroutesNothing) {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.router.kind = RoutingKind::threshold;
  config.encoder.moe.router.gate = Gate::one;
  const auto model = small_vmoe(config);
  EXPECT_EQ(replacement_problem(*model, kReroute),
            "block 1 sends a token to every expert whose logit reaches the threshold, so none is "
            "rerouted; choose the replacement 'nothing'");
  EXPECT_EQ(replacement_problem(*model, kReplaceByNothing), "");
}

TEST(CriterionChoice, IsACriterionWithOrWithoutAReplacement) {
  EXPECT_EQ(CriterionChoice::parse("random").criterion, "random");
  EXPECT_EQ(CriterionChoice::parse("random").replace, std::nullopt);
  EXPECT_EQ(CriterionChoice::parse("random.mean").criterion, "random");
  EXPECT_EQ(CriterionChoice::parse("random.mean").replace, "mean");
}

/// A pruned layer against the full one whose removed experts give zero: routing and gates as
/// before, only terms gone.
class Surgery : public ::testing::TestWithParam<Gate> {};

TEST_P(Surgery, LeavesTheOthersTermsAsTheyWere) {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.router.gate = GetParam();
  const auto full = small_vmoe(config), pruned = small_vmoe(config);
  const PrunePlan plan = plan_pruning(*pruned, nullptr, "random", KeepSpec::count(3), 5);
  apply_plan(*pruned, plan);

  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    nn::MoELayer layer = full->moe_blocks()[i].layer;
    at::Tensor gone = torch::ones({6}, torch::kBool);
    for (const int64_t id : plan.layers[i].kept) gone[id] = false;
    layer->experts->as<nn::MlpExperts>()->w2.masked_fill_(gone.view({6, 1, 1}), 0.0);
    layer->experts->as<nn::MlpExperts>()->b2.masked_fill_(gone.view({6, 1}), 0.0);
  }
  const at::Tensor images = small_images(9);
  const ModelOutput wanted = run(*full, images), found = run(*pruned, images);
  expect_close(found.logits, wanted.logits, 1e-6);
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const Routing &old = wanted.routings[i].routing, &now = found.routings[i].routing;
    EXPECT_TRUE(at::equal(now.choice, old.choice));
    EXPECT_LT(now.offsets[3].item<int>(), old.offsets[6].item<int>());
    const at::Tensor kept = torch::tensor(plan.layers[i].kept, torch::kLong);
    expect_close(combine_weights(now), combine_weights(old).index_select(1, kept), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Gates, Surgery,
                         ::testing::Values(Gate::softmax_all, Gate::softmax_selected));

/// Gives the two blocks' rows these norms.
void set_norms_of_blocks(const Model& model, const std::vector<double>& first,
                         const std::vector<double>& second) {
  set_norms(model.moe_blocks()[0], first);
  set_norms(model.moe_blocks()[1], second);
}

std::vector<Ids> kept_of(const PrunePlan& plan) {
  std::vector<Ids> kept;
  for (const PruneLayerPlan& layer : plan.layers) kept.push_back(layer.kept);
  return kept;
}

TEST(PrunePlan, OfTheNetworkComparesAllExpertsAndKeepsWhatATokenSelects) {
  const auto model = small_vmoe();
  set_norms_of_blocks(*model, {9, 8, 7, 6, 5, 4}, {1, 2, 3, 0.5, 0.4, 8.5});
  const auto kept = [&](const std::string& keep) {
    return kept_of(plan_pruning(*model, nullptr, "router-magnitude", spec(keep)));
  };
  EXPECT_EQ(kept(R"({"count": 5, "scope": "network"})"), (std::vector<Ids>{{0, 1, 2}, {2, 5}}));
  EXPECT_EQ(kept(R"({"fraction": 0.75, "scope": "network"})"),
            (std::vector<Ids>{{0, 1, 2, 3, 4, 5}, {1, 2, 5}}));
  EXPECT_EQ(kept(R"({"count": 3, "scope": "network", "exclude_blocks": [1]})"),
            (std::vector<Ids>{{0, 1, 2, 3, 4, 5}, {1, 2, 5}}));
  EXPECT_THAT(test::usage_of([&] { kept(R"({"count": 3, "scope": "network"})"); }),
              HasSubstr("would keep 3 of 12 experts, fewer than the 4 that tokens select; keep at "
                        "least 4"));
  EXPECT_THAT(test::usage_of([&] { kept(R"({"count": 13, "scope": "network"})"); }),
              HasSubstr("cannot keep 13 experts, it has 12"));
}

TEST(PrunePlan, AnEqualScoreInTwoBlocksKeepsTheEarlierOne) {
  const auto model = small_vmoe();
  set_norms_of_blocks(*model, {5, 5, 1, 1, 1, 1}, {5, 5, 1, 1, 1, 1});
  EXPECT_EQ(kept_of(plan_pruning(*model, nullptr, "router-magnitude",
                                 spec(R"({"count": 5, "scope": "network"})"))),
            (std::vector<Ids>{{0, 1, 2}, {0, 1}}));
}

TEST(PrunePlan, KeepsAsManyAsFitIntoAFractionOfTheParameters) {
  const auto model = small_vmoe();
  set_norms_of_blocks(*model, {9, 8, 7, 6, 5, 4}, {1, 2, 3, 0.5, 0.4, 8.5});
  const auto all = static_cast<double>(model->num_parameters());
  const double expert = 12 * 20 * 2 + 20 + 12;
  const auto plan = [&](double parameters, const std::string& more) {
    return plan_pruning(*model, nullptr, "router-magnitude",
                        spec(fmt::format("{{\"parameters\": {:.17g}{}}}", parameters / all, more)));
  };
  const auto parameters_after = [&](const PrunePlan& plan) {
    const auto copy = small_vmoe();
    apply_plan(*copy, plan);
    return static_cast<double>(copy->num_parameters());
  };
  // Exactly four experts fewer, two of each layer; and half an expert less than that.
  EXPECT_EQ(parameters_after(plan(all - 4 * expert, "")), all - 4 * expert);
  EXPECT_EQ(parameters_after(plan(all - 4.5 * expert, "")), all - 6 * expert);
  const char* const network = ", \"scope\": \"network\"";
  EXPECT_EQ(parameters_after(plan(all - 4.5 * expert, network)), all - 5 * expert);
  EXPECT_EQ(kept_of(plan(all - 5 * expert, network)), (std::vector<Ids>{{0, 1, 2, 3, 4}, {2, 5}}));
  EXPECT_EQ(parameters_after(plan(all - 2 * expert, ", \"exclude_blocks\": [3]")),
            all - 2 * expert);
  for (const char* more : {"", network}) {
    const std::string least = fmt::format("{:.4f}", 1 - 8 * expert / all + 5e-5);
    EXPECT_THAT(test::usage_of([&] { plan(all - 9 * expert, more); }),
                HasSubstr("choose at least " + least));
    EXPECT_EQ(parameters_after(plan(std::stod(least) * all, more)), all - 8 * expert);
  }
}

TEST(PrunePlan, IsAFileThatCanBeEdited) {
  const test::TempDir folder;
  const auto model = small_vmoe();
  const PrunePlan plan = plan_pruning(*model, nullptr, "router-magnitude", KeepSpec::count(3));
  const auto file = folder / "plan.json";
  test::put(file, to_json(plan).dump());
  EXPECT_EQ(to_json(read_plan(file)), to_json(plan));
  EXPECT_THAT(test::usage_of([&] { read_plan(folder / "plam.json"); }),
              HasSubstr("no such file; did you mean"));
  const auto refusal = [&](const std::string& text) {
    test::put(file, text);
    return test::usage_of([&] { read_plan(file); });
  };
  EXPECT_THAT(refusal(R"({"layers": [{"layer": 1, "experts": 6, "kept": [3, 1]}]})"),
              HasSubstr("plan.json:1:48: 'kept' must be ascending experts below 6, such as [1, 3], "
                        "found [3, 1]"));
  EXPECT_THAT(refusal(R"({"layers": [{"layer": 1, "experts": 6, "kept": [0, 0, 7]}]})"),
              HasSubstr("such as [0], found [0, 0, 7]"));
  EXPECT_THAT(refusal(R"({"layers": [{"layer": 1, "experts": 6, "kept": [6]}]})"),
              HasSubstr("ascending experts below 6, such as [0], found [6]"));
  EXPECT_THAT(refusal(R"({"layers": [{"layer": 1, "experts": 6, "kept": []}]})"),
              HasSubstr("kept"));
  EXPECT_THAT(refusal(R"({"layers": []})"), HasSubstr("layers"));
  EXPECT_THAT(refusal(R"({"criterium": "x", "layers": []})"), HasSubstr("'criterion'"));
  test::put(file, R"({"layers": [{"layer": 3, "experts": 6, "kept": [1, 4]}]})");
  apply_plan(*model, read_plan(file));
  EXPECT_EQ(model->moe_blocks()[0].layer->kept().size(), 6U);
  EXPECT_EQ(model->moe_blocks()[1].layer->kept(), (Ids{1, 4}));
}

TEST(PrunePlan, GroupsOfABlockAreRankedApart) {
  const auto model = small_vmoe();
  set_norms(*model, {3, 1, 6, 2, 5, 4});
  MoEBlock block = model->moe_blocks()[0];
  block.num_groups = 2;
  const Ids first = first_experts(*KeepSpec::count(1).rule_of(1), block);
  EXPECT_EQ(first, (Ids{0, 3}));
}

}  // namespace
}  // namespace moesaic
