// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/expert_use.h"

#include <gmock/gmock.h>

#include <cmath>

#include "moesaic/nn/mlp_experts.h"
#include "moesaic/prune/criteria.h"
#include "prune/small_vmoe.h"

namespace moesaic {
namespace {

using testing::small_images;
using testing::small_vmoe;
using testing::small_vmoe_config;

/// What one expert does in block 1 of the small V-MoE, by plain loops over tokens.
struct PlainUse {
  double tokens = 0, rows = 0, selections = 0, first_gates = 0, gate_norms = 0, norms = 0,
         squares = 0;
  at::Tensor outputs = at::zeros({12}, at::kDouble);
};

at::Tensor output_of(const nn::MlpExpertsImpl& experts, int64_t slot, const at::Tensor& x_d) {
  const auto in = [](const at::Tensor& tensor) { return tensor.detach().to(at::kDouble); };
  const at::Tensor hidden =
      at::gelu(in(x_d).unsqueeze(0).mm(in(experts.w1[slot])) + in(experts.b1[slot]), "tanh");
  return (hidden.mm(in(experts.w2[slot])) + in(experts.b2[slot])).squeeze(0);
}

std::vector<PlainUse> plain_use(Model& model, const at::Tensor& images) {
  const torch::NoGradGuard no_grad;
  MoEBlock block = model.moe_blocks()[0];
  std::vector<PlainUse> uses(6);
  block.layer->observe([&](const RoutingRecord& record, const at::Tensor& x_Td) {
    const auto* experts = block.layer->experts->as<nn::MlpExperts>();
    const at::Tensor weights_TK = combine_weights(record.routing);
    for (int64_t t = 0; t < x_Td.size(0); ++t) {
      const int64_t first = record.routing.choice[t][0].item<int64_t>();
      for (int64_t slot = 0; slot < weights_TK.size(1); ++slot) {
        const auto gate = weights_TK[t][slot].item<double>();
        if (gate == 0.0) continue;
        const auto id = static_cast<size_t>(record.kept[static_cast<size_t>(slot)]);
        if (static_cast<int64_t>(id) == first) uses[id].first_gates += gate;
        const at::Tensor output = output_of(*experts, slot, x_Td[t]);
        const auto norm = output.norm().item<double>();
        uses[id].rows += 1;
        uses[id].norms += norm;
        uses[id].squares += norm * norm;
        uses[id].gate_norms += gate * norm;
        uses[id].outputs += output;
      }
      for (int64_t k = 0; k < record.routing.choice.size(1); ++k) {
        uses[record.routing.choice[t][k].item<int64_t>()].selections += 1;
      }
      for (PlainUse& use : uses) use.tokens += 1;
    }
  });
  model.eval();
  model.forward(images);
  block.layer->observe({});
  return uses;
}

/// A network whose experts take fewer tokens than select them.
std::shared_ptr<VMoE> crowded_vmoe() {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.router.dispatcher.capacity_factor = 0.5;
  return small_vmoe(config);
}

class ExpertUseOf : public ::testing::TestWithParam<bool> {};

TEST_P(ExpertUseOf, EqualsLoopsOverTokens) {
  const torch::NoGradGuard no_grad;
  const auto model = crowded_vmoe();
  if (GetParam()) model->moe_blocks()[0].layer->keep_experts({0, 2, 3, 5});
  const at::Tensor images = small_images(3);
  const std::vector<PlainUse> wanted = plain_use(*model, images);
  const ExpertUseMeter meter(*model);
  model->forward(images.narrow(0, 0, 3));
  const LayerUse& use = meter.use().at(1);
  EXPECT_EQ(static_cast<double>(use.tokens), wanted[0].tokens);
  const MoEBlock block = model->moe_blocks()[0];
  const ScoreInput input{.finetuned = block, .use = &use};
  const auto score = [&](const char* name) { return expert_scores(name, input); };
  const at::Tensor means = use.mean_outputs_Eo();
  double dropped = 0;
  for (size_t e = 0; e < 6; ++e) {
    const PlainUse& plain = wanted[e];
    const double rows = std::max(1.0, plain.rows);
    dropped += plain.selections - plain.rows;
    EXPECT_EQ(score("load")[e], plain.selections / plain.tokens) << e;
    EXPECT_EQ(score("frequency")[e], plain.rows / plain.tokens) << e;
    EXPECT_NEAR(score("importance")[e], plain.first_gates / plain.tokens, 1e-6) << e;
    EXPECT_NEAR(score("reap")[e], plain.gate_norms / rows, 1e-5 * plain.gate_norms) << e;
    EXPECT_NEAR(score("man")[e], plain.norms / rows, 1e-5 * plain.norms) << e;
    EXPECT_NEAR(score("msan")[e], plain.squares / rows, 1e-5 * plain.squares) << e;
    testing::expect_close(means[static_cast<int64_t>(e)], plain.outputs / rows, 1e-5);
  }
  EXPECT_GT(dropped, 0) << "the test is to have tokens without room";
}

INSTANTIATE_TEST_SUITE_P(Networks, ExpertUseOf, ::testing::Values(false, true),
                         [](const auto& param) { return param.param ? "Pruned" : "Whole"; });

TEST(ExpertUse, ChangesNothingAndEndsWithTheMeter) {
  const torch::NoGradGuard no_grad;
  const auto model = small_vmoe();
  const at::Tensor images = small_images(2), before = model->forward(images).logits;
  int64_t tokens = 0;
  {
    const ExpertUseMeter meter(*model);
    EXPECT_TRUE(at::equal(model->forward(images).logits, before));
    model->forward(images);
    tokens = meter.use().at(3).tokens;
  }
  EXPECT_EQ(tokens, 2 * 2 * 17);
  model->forward(images);  // The meter is gone.
}

}  // namespace
}  // namespace moesaic
