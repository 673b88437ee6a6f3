// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/criteria.h"

#include <cmath>
#include <limits>

#include "base/support.h"
#include "moesaic/nn/mlp_experts.h"
#include "moesaic/papers/clusters.h"
#include "support/matchers.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

/// Euclidean norm of every row, by a plain loop.
std::vector<double> row_norms(const at::Tensor& weight) {
  const auto values = weight.accessor<float, 2>();
  std::vector<double> norms;
  for (int64_t row = 0; row < weight.size(0); ++row) {
    double sum = 0.0;
    for (int64_t j = 0; j < weight.size(1); ++j) {
      sum += static_cast<double>(values[row][j]) * values[row][j];
    }
    norms.push_back(std::sqrt(sum));
  }
  return norms;
}

void expect_scores(const std::vector<double>& found, const std::vector<double>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1e-9) << i;
}

TEST(Criteria, RouterMagnitudeIsTheNormOfARow) {
  MoEBlock block = small_vmoe()->moe_blocks()[0];
  expect_scores(expert_scores("router-magnitude", {.finetuned = block}),
                row_norms(block.layer->router->weight));
}

TEST(Criteria, RouterNormChangeIsSigned) {
  const MoEBlock before = small_vmoe(small_vmoe_config(), 1)->moe_blocks()[1];
  const MoEBlock after = small_vmoe(small_vmoe_config(), 50)->moe_blocks()[1];
  std::vector<double> wanted = row_norms(after.layer->router->weight);
  const std::vector<double> old = row_norms(before.layer->router->weight);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] -= old[i];
  const auto scores =
      expert_scores("router-norm-change", {.finetuned = after, .pretrained = &before});
  expect_scores(scores, wanted);
  EXPECT_LT(*std::min_element(scores.begin(), scores.end()), 0.0);
  EXPECT_GT(*std::max_element(scores.begin(), scores.end()), 0.0);
}

TEST(Criteria, NeuronMagnitudeIsTheMeanNormOfTheHiddenNeurons) {
  MoEBlock block = small_vmoe()->moe_blocks()[0];
  const at::Tensor& w1 = block.layer->experts->as<nn::MlpExperts>()->w1;
  std::vector<double> wanted;
  for (int64_t expert = 0; expert < w1.size(0); ++expert) {
    const std::vector<double> norms = row_norms(w1[expert].t().contiguous());
    double sum = 0.0;
    for (const double norm : norms) sum += norm;
    wanted.push_back(sum / static_cast<double>(norms.size()));
  }
  expect_scores(expert_scores("neuron-magnitude", {.finetuned = block}), wanted);
  expect_scores(expert_scores("magnitude", {.finetuned = block}), wanted);

  block.layer->keep_experts({1, 4});
  expect_scores(expert_scores("neuron-magnitude", {.finetuned = block}),
                {0.0, wanted[1], 0.0, 0.0, wanted[4], 0.0});
}

TEST(Criteria, APrunedLayerStillScoresAllRouterRows) {
  MoEBlock block = small_vmoe()->moe_blocks()[0];
  const auto before = expert_scores("router-magnitude", {.finetuned = block});
  block.layer->keep_experts({0, 5});
  EXPECT_EQ(expert_scores("router-magnitude", {.finetuned = block}), before);
}

TEST(Criteria, RandomDependsOnSeedBlockAndExpertOnly) {
  const auto blocks = small_vmoe(small_vmoe_config(), 1)->moe_blocks();
  const auto others = small_vmoe(small_vmoe_config(), 99)->moe_blocks();
  const auto scores = expert_scores("random", {.finetuned = blocks[0], .seed = 3});
  EXPECT_EQ(expert_scores("random", {.finetuned = others[0], .seed = 3}), scores);
  EXPECT_NE(expert_scores("random", {.finetuned = blocks[0], .seed = 4}), scores);
  EXPECT_NE(expert_scores("random", {.finetuned = blocks[1], .seed = 3}), scores);
  for (const double score : scores) {
    EXPECT_GE(score, 0.0);
    EXPECT_LT(score, 1.0);
  }
}

TEST(Criteria, ScoreMixturesOfEveryFamily) {
  const ClusterMoEConfig filters{.num_experts = 3};
  const ImageMoEConfig images{.num_experts = 3, .image_size = 8, .width = 0.1};
  const std::vector<std::shared_ptr<Model>> models = {std::make_shared<ClusterMoE>(filters, 1),
                                                      std::make_shared<ImageMoE>(images, 1)};
  for (const auto& model : models) {
    const torch::NoGradGuard no_grad;
    const MoEBlock block = model->moe_blocks().at(0);
    block.layer->router->weight[1].fill_(2.0);
    const double norm = 2.0 * std::sqrt(static_cast<double>(block.layer->options().width));
    expect_scores(expert_scores("router-magnitude", {.finetuned = block}), {0.0, norm, 0.0});
    const std::vector<double> before = expert_scores("magnitude", {.finetuned = block});
    EXPECT_GT(*std::min_element(before.begin(), before.end()), 0.0);
    MoEBlock pruned = block;
    pruned.layer->keep_experts({2});
    expect_scores(expert_scores("magnitude", {.finetuned = block}), {0.0, 0.0, before[2]});
  }
}

TEST(Criteria, NeuronMagnitudeChangeIsSignedAndFollowsTheIds) {
  MoEBlock before = small_vmoe(small_vmoe_config(), 1)->moe_blocks()[0];
  MoEBlock after = small_vmoe(small_vmoe_config(), 50)->moe_blocks()[0];
  std::vector<double> wanted = expert_scores("magnitude", {.finetuned = after});
  const std::vector<double> old = expert_scores("magnitude", {.finetuned = before});
  for (size_t e = 0; e < wanted.size(); ++e) wanted[e] -= old[e];
  const auto score = [&] {
    return expert_scores("neuron-magnitude-change", {.finetuned = after, .pretrained = &before});
  };
  expect_scores(score(), wanted);
  EXPECT_LT(*std::min_element(wanted.begin(), wanted.end()), 0.0);
  EXPECT_GT(*std::max_element(wanted.begin(), wanted.end()), 0.0);
  after.layer->keep_experts({1, 4});
  expect_scores(score(), {0.0, wanted[1], 0.0, 0.0, wanted[4], 0.0});
  before.layer->keep_experts({0, 1});
  EXPECT_THAT(test::usage_of([&] { score(); }),
              HasSubstr("block 1: expert 4 was removed from the pretrained network"));
}

TEST(Criteria, AimerIsTheMeanSizeOverTheRootMeanSquareOfTheWeights) {
  const MoEBlock block = small_vmoe()->moe_blocks()[0];
  const auto* experts = block.layer->experts->as<nn::MlpExperts>();
  std::vector<double> wanted;
  for (int64_t e = 0; e < 6; ++e) {
    double sizes = 0.0, squares = 0.0, count = 0.0;
    for (const at::Tensor& weights : {experts->w1[e], experts->w2[e]}) {
      const at::Tensor flat = weights.detach().flatten().contiguous();
      for (int64_t i = 0; i < flat.numel(); ++i) {
        const double w = flat.const_data_ptr<float>()[i];
        sizes += std::abs(w);
        squares += w * w;
        count += 1.0;
      }
    }
    wanted.push_back(-(sizes / count) / std::sqrt(squares / count));
  }
  const auto found = expert_scores("aimer", {.finetuned = block});
  for (size_t e = 0; e < 6; ++e) EXPECT_NEAR(found[e], wanted[e], 1e-6);
}

TEST(Criteria, EveryNameIsKnown) {
  const auto model = small_vmoe();
  MoEBlock block = model->moe_blocks()[0];
  const ExpertStatisticsMeter meter(*model);
  {
    const torch::NoGradGuard no_grad;
    model->forward(testing::small_images(2));
  }
  for (const std::string& name : criterion_names()) {
    EXPECT_EQ(criterion_of(name).needs_pretrained, name.ends_with("-change")) << name;
    const ScoreInput input{.finetuned = block,
                           .pretrained = &block,
                           .statistics = &meter.statistics().at(block.block)};
    EXPECT_EQ(expert_scores(name, input).size(), 6U) << name;
  }
}

TEST(Criteria, RefusesWhatItCannotScore) {
  const MoEBlock any = small_vmoe()->moe_blocks()[0];
  EXPECT_THAT(test::usage_of([&] { expert_scores("reap", {.finetuned = any}); }),
              HasSubstr("block 1: criterion 'reap' needs calibration images"));
  const MoEBlock block = small_vmoe()->moe_blocks()[1];
  EXPECT_EQ(test::usage_of([] { criterion_of("random.reroute"); }),
            "unknown pruning criterion 'random.reroute'; did you mean 'random'?");
  EXPECT_THAT(test::usage_of([&] { expert_scores("router-norm-chang", {.finetuned = block}); }),
              HasSubstr("did you mean 'router-norm-change'"));
  EXPECT_THAT(test::usage_of([&] { expert_scores("router-norm-change", {.finetuned = block}); }),
              AllOf(HasSubstr("block 3"), HasSubstr("pretrained")));

  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.num_experts = 4;
  const MoEBlock other = small_vmoe(config)->moe_blocks()[1];
  EXPECT_THAT(test::usage_of([&] {
                expert_scores("router-norm-change", {.finetuned = block, .pretrained = &other});
              }),
              AllOf(HasSubstr("block 3"), HasSubstr("[6, 12]"), HasSubstr("[4, 12]")));

  const torch::NoGradGuard no_grad;
  block.layer->router->weight[2][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(test::failure_of([&] { expert_scores("router-magnitude", {.finetuned = block}); }),
              AllOf(HasSubstr("block 3"), HasSubstr("expert 2")));
  LayerStatistics use = empty_statistics(6);
  use.products_EE[0][1] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(test::failure_of(
                [&] { expert_scores("output-error", {.finetuned = block, .statistics = &use}); }),
            "block 3: criterion 'output-error': products of the experts' outputs are not finite");
}

}  // namespace
}  // namespace moesaic
