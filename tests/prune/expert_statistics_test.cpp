// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/criteria.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "moesaic/nn/mlp_experts.h"
#include "prune/plan_networks.h"

namespace moesaic {
namespace {

/// What one expert does in block 1 of the small V-MoE, by plain loops over tokens.
struct PlainUse {
  double tokens = 0, rows = 0, selections = 0, first_gates = 0, gates = 0, gate_norms = 0,
         norms = 0, squares = 0;
  at::Tensor outputs = at::zeros({12}, at::kDouble);
};
using PlainUses = std::vector<PlainUse>;

at::Tensor output_of(const nn::MlpExpertsImpl& experts, int64_t slot, const at::Tensor& x_d) {
  const auto in = [](const at::Tensor& tensor) { return tensor.detach().to(at::kDouble); };
  const at::Tensor hidden =
      at::gelu(in(x_d).unsqueeze(0).mm(in(experts.w1[slot])) + in(experts.b1[slot]), "tanh");
  return (hidden.mm(in(experts.w2[slot])) + in(experts.b2[slot])).squeeze(0);
}

void add_row(PlainUse& use, double gate, const at::Tensor& output) {
  const auto norm = output.norm().item<double>();
  use.rows += 1;
  use.gates += gate;
  use.norms += norm;
  use.squares += norm * norm;
  use.gate_norms += gate * norm;
  use.outputs += output;
}

/// Adds what token t selects, if tokens do, and its gate at the expert that it likes best.
void add_token(PlainUses& uses, const at::Tensor& choice_Tk, int64_t t,
               const std::vector<double>& gates) {
  auto first = static_cast<size_t>(std::max_element(gates.begin(), gates.end()) - gates.begin());
  for (int64_t k = choice_Tk.size(1) - 1; k >= 0; --k) {
    first = static_cast<size_t>(choice_Tk[t][k].item<int64_t>());
    uses[first].selections += 1;
  }
  uses[first].first_gates += gates[first];
  for (PlainUse& use : uses) use.tokens += 1;
}

PlainUses plain_use(Model& model, const at::Tensor& images) {
  const torch::NoGradGuard no_grad;
  MoEBlock block = model.moe_blocks()[0];
  PlainUses uses(6);
  block.layer->set_observer([&](const RoutingRecord& record, const at::Tensor& x_Td) {
    const auto* experts = block.layer->experts->as<nn::MlpExperts>();
    const Routing& routing = record.routing;
    std::vector<std::vector<double>> gates_TE(static_cast<size_t>(x_Td.size(0)),
                                              std::vector<double>(6, 0.0));
    for (size_t slot = 0; slot < record.kept.size(); ++slot) {
      const auto at = static_cast<int64_t>(slot);
      const auto id = static_cast<size_t>(record.kept[slot]);
      const auto end = routing.offsets[at + 1].item<int64_t>();
      for (auto row = routing.offsets[at].item<int64_t>(); row < end; ++row) {
        const auto t = routing.token[row].item<int64_t>();
        const auto gate = routing.gate[row].item<double>();
        gates_TE[static_cast<size_t>(t)][id] = gate;
        add_row(uses[id], gate, output_of(*experts, at, x_Td[t]));
      }
    }
    for (int64_t t = 0; t < x_Td.size(0); ++t) {
      add_token(uses, routing.choice, t, gates_TE[static_cast<size_t>(t)]);
    }
    const bool is_expert_choice = routing.choice.size(1) == 0;
    for (PlainUse& use : uses) use.selections += is_expert_choice ? use.rows : 0;
  });
  model.eval();
  model.forward(images);
  block.layer->set_observer({});
  return uses;
}

/// Experts take fewer tokens than select them.
VMoEConfig crowded() {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.router.capacity.factor = 0.5;
  return config;
}

/// Two members of three experts, of which a token selects two.
VMoEConfig crowded_ensemble() {
  VMoEConfig config = small_ensemble_config(2);
  config.encoder.moe.router.capacity.factor = 0.5;
  return config;
}

struct UseCase {
  const char* name;
  VMoEConfig config;
  std::vector<int64_t> kept;  ///< Empty: all.
};

class ExpertStatisticsOf : public ::testing::TestWithParam<UseCase> {};

TEST_P(ExpertStatisticsOf, EqualsLoopsOverTokens) {
  const torch::NoGradGuard no_grad;
  const auto model = small_vmoe(GetParam().config);
  if (!GetParam().kept.empty()) model->moe_blocks()[0].layer->keep_experts(GetParam().kept);
  const at::Tensor images = small_images(3);
  const PlainUses wanted = plain_use(*model, images);
  const ExpertStatisticsMeter meter(*model);
  model->forward(images);
  const LayerStatistics& use = meter.statistics().at(1);
  EXPECT_EQ(static_cast<double>(use.tokens), wanted[0].tokens);
  const MoEBlock block = model->moe_blocks()[0];
  const ScoreInput input{.finetuned = block, .statistics = &use};
  const at::Tensor means = use.mean_outputs_Eo();
  double dropped = 0, all_rows = 0;
  for (size_t e = 0; e < 6; ++e) {
    const PlainUse& plain = wanted[e];
    const double rows = std::max(1.0, plain.rows);
    const auto expect = [&](const char* name, double score) {
      EXPECT_NEAR(expert_scores(name, input)[e], score, 1e-5 * std::abs(score)) << name << e;
    };
    dropped += plain.selections - plain.rows;
    all_rows += plain.rows;
    expect("load", plain.selections / plain.tokens);
    expect("frequency", plain.rows / plain.tokens);
    expect("importance", plain.first_gates / plain.tokens);
    expect("gate", plain.gates / rows);
    expect("gate-sum", plain.gates / plain.tokens);
    expect("reap", plain.gate_norms / rows);
    expect("reap-sum", plain.gate_norms / plain.tokens);
    expect("man", plain.norms / rows);
    expect("man-sum", plain.norms / plain.tokens);
    expect("msan", plain.squares / rows);
    expect("msan-sum", plain.squares / plain.tokens);
    testing::expect_close(means[static_cast<int64_t>(e)], plain.outputs / rows, 1e-5);
  }
  EXPECT_GT(all_rows, 0);
  const bool is_token_choice = GetParam().config.encoder.moe.router.is_token_choice();
  EXPECT_EQ(dropped > 0, is_token_choice) << "tokens that choose are to be without room";
}

INSTANTIATE_TEST_SUITE_P(
    Networks, ExpertStatisticsOf,
    ::testing::Values(UseCase{"Whole", crowded(), {}}, UseCase{"Pruned", crowded(), {0, 2, 3, 5}},
                      UseCase{"ExpertsChoose", expert_choice_config(), {}},
                      UseCase{"PrunedExpertsChoose", expert_choice_config(), {0, 2, 3, 5}},
                      UseCase{"Ensemble", crowded_ensemble(), {}},
                      UseCase{"PrunedEnsemble", crowded_ensemble(), {0, 2, 3, 5}}),
    [](const auto& param) { return param.param.name; });

TEST(ExpertStatistics, OfAnEnsembleCountsTheTokensOfEveryMember) {
  const torch::NoGradGuard no_grad;
  const auto model = small_vmoe(crowded_ensemble());
  const ExpertStatisticsMeter meter(*model);
  model->forward(small_images(2));
  const LayerStatistics& use = meter.statistics().at(1);
  EXPECT_EQ(use.tokens, 2 * 2 * 17);
  // A member's tokens select two of its own three experts.
  EXPECT_EQ(use.selections.narrow(0, 0, 3).sum().item<double>(), 2 * 2 * 17);
  EXPECT_EQ(use.selections.narrow(0, 3, 3).sum().item<double>(), 2 * 2 * 17);
}

TEST(ExpertStatistics, ChangesNothingAndEndsWithTheMeter) {
  const torch::NoGradGuard no_grad;
  const auto model = small_vmoe();
  const at::Tensor images = small_images(2), before = model->forward(images).logits;
  int64_t tokens = 0;
  {
    const ExpertStatisticsMeter meter(*model);
    EXPECT_TRUE(at::equal(model->forward(images).logits, before));
    model->forward(images);
    tokens = meter.statistics().at(3).tokens;
  }
  EXPECT_EQ(tokens, 2 * 2 * 17);
  model->forward(images);  // The meter is gone.
}

}  // namespace
}  // namespace moesaic
