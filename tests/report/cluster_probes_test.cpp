// SPDX-License-Identifier: Apache-2.0
// Probes of what experts and routers find of latent clusters, against plain loops.
#include <ATen/ATen.h>
#include <torch/torch.h>

#include <cmath>

#include "moesaic/config/document.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/source.h"
#include "moesaic/models/registry.h"
#include "moesaic/report/probe.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using at::Tensor;

/// Three experts of four neurons on the data "latent-small", whose means have norm 3.
class ClusterProbes : public ::testing::Test {
 protected:
  ClusterProbes()
      : model_(
            build_model(Document::from_text(R"({"name": "latent-moe", "width": 24, "num_experts": 3,
                                                   "num_neurons": 4})",
                                            "model.json")
                            .root(),
                        9)),
        data_{{"train", open_dataset("latent-small", "train")},
              {"test", open_dataset("latent-small", "test")}} {}

  Measurement measure(const std::string& probe) {
    const c10::InferenceMode inference;
    ProbedModel subject(*model_, 3, data_, {.batch_size = 500, .num_loader_threads = 0});
    Measurement measurement;
    probes().at(probe).measure(subject, measurement);
    for (const Metric& metric : probes().at(probe).metrics(*model_, data_)) {
      EXPECT_TRUE(metric.is_optional ||
                  (metric.is_table ? measurement.tables.contains(metric.name)
                                   : measurement.numbers.contains(metric.name)))
          << metric.name;
    }
    return measurement;
  }

  Tensor direction(const std::string& name) const {
    return data_.at("train")->directions().at(name);
  }
  void set(const std::string& parameter, const Tensor& values) {
    const torch::NoGradGuard no_grad;
    model_->named_parameters()[parameter].copy_(values);
  }
  /// Gives expert 1 the first cluster, expert 3 the second one, and expert 2 none.
  void set_router() {
    const Tensor mean = direction("mean");
    set("moe.router.weight",
        torch::stack({mean[0] - mean[1], -mean[0] - mean[1], mean[1] * 2 - mean[0]}));
  }

  std::shared_ptr<Model> model_;
  DataSplits data_;
};

TEST_F(ClusterProbes, SpecialisationIsThatOfTheNeurons) {
  const Tensor local = direction("local"), global = direction("global")[0];
  Tensor w = torch::zeros({3, 4, 24});
  w[0][0] = 0.92 * local[0];
  w[0][1] = -0.3 * local[1];
  w[1][2] = 0.7 * local[1] - 0.2 * local[0];
  w[1][3] = 0.95 * global;
  w[2][0] = -0.6 * local[0] + 0.55 * global;
  set("moe.experts.w", w);
  set_router();
  const Measurement found = measure("specialisation");
  const auto number = [&](const char* name) { return found.numbers.at(name); };
  EXPECT_NEAR(number("max_w1"), (0.92 + 0.2 + 0.6) / 3, 1e-5);
  EXPECT_NEAR(number("max_w2"), (0.3 + 0.7 + 0.0) / 3, 1e-5);
  EXPECT_NEAR(number("max_wg"), (0.0 + 0.95 + 0.55) / 3, 1e-5);
  EXPECT_NEAR(number("share_w1"), 2.0 / 12, 1e-9);
  EXPECT_NEAR(number("share_w2"), 1.0 / 12, 1e-9);
  EXPECT_EQ(number("experts_1"), 2.0);
  EXPECT_EQ(number("experts_2"), 1.0);
  EXPECT_NEAR(number("max_own"), (0.92 + 0.0) / 2, 1e-5);
  EXPECT_NEAR(number("max_other"), (0.3 + 0.6) / 2, 1e-5);
  EXPECT_THAT(found.tables.at("leading").columns, ElementsAre("w1", "w2", "wg"));
  EXPECT_EQ(found.tables.at("leading").values,
            (std::vector<std::vector<double>>{{1, 0, 0}, {0, 0, 1}, {1, 0, 0}}));
  // sqrt(2 log 8 / 24) is 0.416: 4 neurons with 2 tasks of clusters.
  EXPECT_THAT(found.tables.at("above_random").rows, ElementsAre("w1", "w2", "wg"));
  EXPECT_EQ(found.tables.at("above_random").values,
            (std::vector<std::vector<double>>{{1, 0, 0}, {0, 1, 0}, {0, 1, 1}}));
  EXPECT_EQ(found.tables.at("distribution_w1").values[0],
            (std::vector<double>{3, 0, 0, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_NEAR(found.tables.at("neurons_2").values[2][0], 0.55, 1e-5);
  EXPECT_NEAR(found.tables.at("neurons_1").values[0][0], 0.92, 1e-5);
}

TEST_F(ClusterProbes, AnExpertHasAClusterWhereItsRouterIsPositiveOnOneMeanAlone) {
  EXPECT_EQ(measure("cluster_routing").numbers.at("routed"), 0.0);
  EXPECT_FALSE(measure("cluster_routing").numbers.contains("misrouted"));
  set_router();
  const Measurement found = measure("cluster_routing");
  EXPECT_NEAR(found.numbers.at("routed"), 2.0 / 3, 1e-9);
  EXPECT_EQ(found.numbers.at("covered"), 1.0);
  EXPECT_NEAR(found.numbers.at("misrouted_limit"), 50 * std::erfc(1.5), 1e-3);
  EXPECT_NEAR(found.tables.at("router_cosine").values[0][1], -1 / std::sqrt(2.0), 1e-5);
  const DatasetInputs inputs = data_.at("test")->generate(0, 2048);
  const Tensor router = model_->named_parameters()["moe.router.weight"].detach();
  double sum = 0.0;
  for (const auto& [expert, own] : {std::pair<int64_t, int64_t>{0, 0}, {2, 1}}) {
    double wrong[2] = {}, count[2] = {};
    for (int64_t i = 0; i < 2048; ++i) {
      const bool takes = inputs.values_NCHW[i][0][0].dot(router[expert]).item<double>() >= 0;
      const bool is_own = inputs.groups_N[i].item<int64_t>() == own;
      wrong[is_own ? 1 : 0] += takes == is_own ? 0.0 : 1.0;
      count[is_own ? 1 : 0] += 1.0;
    }
    sum += (wrong[0] / count[0] + wrong[1] / count[1]) / 4;
  }
  EXPECT_NEAR(found.numbers.at("misrouted"), 100 * sum, 1e-6);
  // Of expert 2 both cosines are -1 / sqrt(2) but for rounding.
  const auto& leading = found.tables.at("router_leading").values;
  const int64_t own[] = {0, leading[1][0] == 1.0 ? 0 : 1, 1};
  EXPECT_EQ(leading[0], (std::vector<double>{1, 0}));
  EXPECT_EQ(leading[2], (std::vector<double>{0, 1}));
  int64_t wrong = 0;
  for (int64_t i = 0; i < 2048; ++i) {
    for (int64_t k = 0; k < 3; ++k) {
      const bool takes = inputs.values_NCHW[i][0][0].dot(router[k]).item<double>() >= 0;
      if (takes != (inputs.groups_N[i].item<int64_t>() == own[k])) ++wrong;
    }
  }
  EXPECT_NEAR(found.numbers.at("wrong_pairs"), 100.0 * static_cast<double>(wrong) / (3 * 2048),
              0.1);
}

TEST_F(ClusterProbes, SpecialisationHasNothingOfAClusterWithoutAnExpert) {
  const Tensor mean = direction("mean");
  set("moe.router.weight", torch::stack({mean[0] - mean[1], mean.sum(0), -mean.sum(0)}));
  const Measurement one = measure("specialisation");
  EXPECT_TRUE(one.numbers.contains("max_own"));
  EXPECT_TRUE(one.tables.contains("neurons_1"));
  EXPECT_FALSE(one.tables.contains("neurons_2"));
  set("moe.router.weight", torch::zeros({3, 24}));
  const Measurement none = measure("specialisation");
  for (const char* name : {"max_own", "max_other"}) EXPECT_FALSE(none.numbers.contains(name));
  EXPECT_FALSE(none.tables.contains("neurons_1"));
  EXPECT_TRUE(none.numbers.contains("max_w1"));
}

TEST_F(ClusterProbes, ErrorIsRelativeToTheTargets) {
  // A network of zeros leaves the second moment of the targets.
  set("moe.experts.a", torch::zeros({3, 4}));
  const Tensor y = data_.at("test")->generate(0, 2048).targets_NK.to(torch::kDouble);
  const double wanted = (y.square().mean() / y.var(0, false)).item<double>();
  EXPECT_NEAR(measure("relative_error").numbers.at("error"), wanted, 1e-9);
}

TEST_F(ClusterProbes, MeasureNothingWhereTheDataHaveNoClusters) {
  const auto plain = open_dataset("gated-small", "train");
  for (const char* probe : {"specialisation", "cluster_routing"}) {
    EXPECT_TRUE(probes().at(probe).metrics(*model_, {{"train", plain}, {"test", plain}}).empty());
  }
  const auto images = open_dataset("clusters-setting3", "test");
  EXPECT_TRUE(probes()
                  .at("relative_error")
                  .metrics(*model_, {{"train", images}, {"test", images}})
                  .empty());
}

}  // namespace
}  // namespace moesaic
