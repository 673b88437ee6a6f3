// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/probe.h"

#include <ATen/ATen.h>

#include <cmath>

#include "moesaic/config/document.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/source.h"
#include "moesaic/models/registry.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using ::testing::Field;

/// A small mixture on the clusters paper's data, as it is initialised.
class Probes : public ::testing::Test {
 protected:
  explicit Probes(
      const std::string& model = R"({"name": "cluster-moe", "num_experts": 4, "num_filters": 4,
                                                "init_scale": 1.0, "router": {}})")
      : model_(build_model(Document::from_text(model, "model.json").root(), 9)),
        train_(open_dataset("clusters-setting3", "train")),
        data_{{"train", train_}, {"test", open_dataset("clusters-setting3", "test")}} {}

  Measurement measure(const std::string& probe) {
    const c10::InferenceMode inference;
    ProbedModel subject(*model_, 3, data_, {.batch_size = 4000, .num_loader_threads = 0});
    Measurement measurement;
    probes().at(probe).measure(subject, measurement);
    for (const Metric& metric : probes().at(probe).metrics(*model_, data_)) {
      EXPECT_TRUE(metric.is_table ? measurement.tables.contains(metric.name)
                                  : measurement.numbers.contains(metric.name))
          << metric.name;
    }
    return measurement;
  }
  std::shared_ptr<Model> model_;
  std::shared_ptr<const Dataset> train_;
  DataSplits data_;
};

double inner_by_loops(const at::Tensor& a, const at::Tensor& b) {
  double sum = 0.0;
  for (int64_t i = 0; i < a.size(0); ++i) sum += a[i].item<double>() * b[i].item<double>();
  return sum;
}

TEST_F(Probes, MeasureNothingThatTheTargetsDoNotHave) {
  DatasetInfo info{.name = "numbers", .split = "train"};
  info.targets = {"y"};
  const auto numbers = make_input_dataset(
      info, {.values_NCHW = at::ones({3, 1, 4, 50}), .targets_NK = at::ones({3, 1})});
  for (const char* probe : {"test_accuracy", "train_accuracy", "entropy", "dispatch"}) {
    EXPECT_TRUE(
        probes().at(probe).metrics(*model_, {{"train", numbers}, {"test", numbers}}).empty())
        << probe;
  }
  EXPECT_TRUE(probes().at("validation_loss").metrics(*model_, data_).empty()) << "no such split";
  for (const char* probe : {"test_loss", "train_loss", "load"}) {
    EXPECT_EQ(probes().at(probe).metrics(*model_, {{"train", numbers}, {"test", numbers}}).size(),
              1U)
        << probe;
  }
}

TEST_F(Probes, AlignmentIsThatOfLoops) {
  const Measurement found = measure("alignment");
  for (const auto& [weights, w_EJd] : model_->weight_directions()) {
    for (const auto& [direction, v_Kd] : train_->directions()) {
      const MeasuredTable& table = found.tables.at(weights + "_" + direction);
      double largest = 0.0;
      for (int64_t e = 0; e < w_EJd.size(0); ++e) {
        for (int64_t k = 0; k < v_Kd.size(0); ++k) {
          double wanted = inner_by_loops(w_EJd[e][0], v_Kd[k]);
          for (int64_t j = 0; w_EJd.size(1) > 1 && j < w_EJd.size(1); ++j) {
            wanted = std::max(std::abs(wanted), std::abs(inner_by_loops(w_EJd[e][j], v_Kd[k])));
          }
          EXPECT_NEAR(table.values[static_cast<size_t>(e)][static_cast<size_t>(k)], wanted, 1e-6);
          largest = std::max(largest, std::abs(wanted));
        }
      }
      EXPECT_NEAR(found.numbers.at("largest_" + weights + "_" + direction), largest, 1e-6);
    }
  }
  for (const char* name : {"expert_signal", "expert_centre", "router_signal", "router_centre"}) {
    EXPECT_TRUE(found.tables.contains(name)) << name;
  }
}

/// -sum_m n_m / n sum_k p_km ln p_km
double entropy_by_loops(const std::vector<std::vector<double>>& counts) {
  double n = 0.0, sum = 0.0;
  for (const auto& row : counts) {
    for (const double count : row) n += count;
  }
  for (size_t m = 0; m < counts[0].size(); ++m) {
    double n_m = 0.0;
    for (const auto& row : counts) n_m += row[m];
    for (const auto& row : counts) {
      if (row[m] > 0.0) sum -= row[m] / n * std::log(row[m] / n_m);
    }
  }
  return sum;
}

TEST_F(Probes, EntropyAndLoadAreThoseOfTheDispatch) {
  const MeasuredTable dispatch = measure("dispatch").tables.at("dispatch");
  EXPECT_EQ(dispatch.rows.size(), 4U);
  EXPECT_THAT(dispatch.columns, ElementsAre("expert 1", "expert 2", "expert 3", "expert 4"));
  EXPECT_NEAR(measure("entropy").numbers.at("entropy"), entropy_by_loops(dispatch.values), 1e-5);
  const MeasuredTable load = measure("load").tables.at("load");
  for (size_t e = 0; e < 4; ++e) {
    double rows = 0.0;
    for (const auto& row : dispatch.values) rows += row[e];
    EXPECT_NEAR(load.values[0][e], rows / static_cast<double>(train_->size()), 1e-9);
  }
}

TEST_F(Probes, NumbersAreThoseOfTheNetwork) {
  EXPECT_EQ(measure("steps").numbers.at("steps"), 3);
  EXPECT_EQ(measure("parameters").numbers.at("parameters"),
            static_cast<double>(model_->num_parameters()));
  EXPECT_GT(measure("flops").numbers.at("flops"), 0);
  const double accuracy = measure("test_accuracy").numbers.at("test_accuracy");
  EXPECT_TRUE(accuracy > 0 && accuracy < 100) << accuracy;
  EXPECT_NE(measure("train_accuracy").numbers.at("train_accuracy"), accuracy);
  EXPECT_GT(measure("test_loss").numbers.at("test_loss"), 0);
}

class SingleNetworkProbes : public Probes {
 protected:
  SingleNetworkProbes()
      : Probes(R"({"name": "cluster-moe", "num_experts": 1, "num_filters": 4, "router": null})") {}
};

TEST_F(SingleNetworkProbes, HaveNoDispatch) {
  for (const char* probe : {"entropy", "dispatch", "load"}) {
    EXPECT_TRUE(probes().at(probe).metrics(*model_, data_).empty()) << probe;
    EXPECT_TRUE(measure(probe).numbers.empty()) << probe;
  }
  EXPECT_THAT(probes().at("alignment").metrics(*model_, data_),
              Contains(Field(&Metric::name, "expert_signal")));
}

at::Tensor parameter(const std::shared_ptr<Model>& model, const std::string& name) {
  return model->named_parameters()[name];
}

TEST(RecoveryProbe, CountsARunByBothErrorsOnceItsGatesAreLearned) {
  const auto model = build_model(
      Document::from_text(R"({"name": "gated-moe", "width": 5})", "model.json").root(), 9);
  const auto train = open_dataset("gated-small", "train");
  const auto truth = train->directions();
  const auto found = [&](const at::Tensor& a_kd, const at::Tensor& w_kd) {
    const c10::InferenceMode inference;
    parameter(model, "mixture.regressors").copy_(a_kd);
    parameter(model, "mixture.gates").copy_(w_kd);
    ProbedModel subject(*model, 3, {{"train", train}, {"test", train}}, {});
    Measurement measurement;
    probes().at("recovery").measure(subject, measurement);
    return measurement.numbers;
  };
  const at::Tensor a = truth.at("regressor"), w = truth.at("gate");
  // Rows that are turned by an angle towards a direction that is perpendicular to all of them.
  const auto turned = [&](double cosine) {
    const at::Tensor other = at::ones({1, 5}, a.options());
    const at::Tensor basis = std::get<0>(at::linalg_qr(at::cat({a, other}).t())).t();
    return cosine * a + std::sqrt(1 - cosine * cosine) * basis[2];
  };
  EXPECT_EQ(found(a, w).at("recovered"), 1.0);
  EXPECT_NEAR(found(turned(0.96), w).at("error_A"), 0.04, 1e-5);
  EXPECT_EQ(found(turned(0.96), w).at("recovered"), 1.0);
  EXPECT_NEAR(found(turned(0.94), w).at("error_A"), 0.06, 1e-5);
  EXPECT_EQ(found(turned(0.94), w).at("recovered"), 0.0);
  EXPECT_NEAR(found(a, -w).at("error_W"), 2.0, 1e-5);
  EXPECT_EQ(found(a, -w).at("recovered"), 0.0);
  EXPECT_EQ(found(a, at::zeros_like(w)).at("recovered"), 1.0) << "no gates are learned yet";
}

TEST(GatesProbe, AveragesThoseOfEachClass) {
  const auto model = build_model(
      Document::from_text(
          R"({"name": "gru", "num_steps": 4, "input_size": 3, "hidden_size": 5, "num_classes": 2})",
          "model.json")
          .root(),
      9);
  DatasetInfo info{.name = "rows", .split = "test", .channels = 1, .height = 4, .width = 3};
  info.classes = {"zero", "one"};
  const at::Tensor images = torch::randn({7, 1, 4, 3});
  const at::Tensor labels = torch::tensor({0, 1, 1, 0, 1, 1, 1}, torch::kLong);
  const auto data = make_input_dataset(info, {.values_NCHW = images, .labels_N = labels});
  const c10::InferenceMode inference;
  ProbedModel subject(*model, 3, {{"test", data}}, {});
  Measurement measurement;
  probes().at("gates").measure(subject, measurement);
  for (const auto& [gate, values_BT] : model->gates_over_time(images)) {
    const MeasuredTable& table = measurement.tables.at(gate + "_gate");
    EXPECT_EQ(table.rows, info.classes);
    EXPECT_THAT(table.columns, ElementsAre("1", "2", "3", "4"));
    for (int64_t c = 0; c < 2; ++c) {
      for (int64_t t = 0; t < 4; ++t) {
        double sum = 0.0, count = 0.0;
        for (int64_t i = 0; i < 7; ++i) {
          if (labels[i].item<int64_t>() != c) continue;
          sum += values_BT[i][t].item<double>();
          ++count;
        }
        EXPECT_NEAR(table.values[static_cast<size_t>(c)][static_cast<size_t>(t)], sum / count,
                    1e-6);
      }
    }
  }
  EXPECT_EQ(probes().at("gates").metrics(*model, {{"test", data}}).size(), 2U);
}

}  // namespace
}  // namespace moesaic
