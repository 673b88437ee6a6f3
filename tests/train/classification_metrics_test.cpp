// SPDX-License-Identifier: Apache-2.0
// Against plain loops over doubles.
#include "moesaic/train/evaluate.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "support/tensors.h"

namespace moesaic {
namespace {

using Row = std::vector<double>;

Row probabilities(const at::Tensor& logits, bool sigmoid) {
  const at::Tensor wide = logits.to(torch::kDouble);
  const at::Tensor p = sigmoid ? wide.sigmoid() : wide.softmax(0);
  return {p.const_data_ptr<double>(), p.const_data_ptr<double>() + p.numel()};
}

int64_t best(const Row& row) {
  return std::max_element(row.begin(), row.end()) - row.begin();
}

/// What the loop over images and members finds.
struct Plain {
  double hits = 0, top5 = 0, ece = 0, nll = 0, member_nll = 0, member_hits = 0, apart = 0;

  Plain(const at::Tensor& logits, const at::Tensor& labels, int64_t members, bool sigmoid) {
    const int64_t images = labels.size(0), classes = logits.size(1);
    Row bin_gap(kCalibrationBins);
    for (int64_t b = 0; b < images; ++b) {
      const auto label = labels[b].item<int64_t>();
      Row mean(classes);
      std::vector<int64_t> votes;
      for (int64_t m = 0; m < members; ++m) {
        const Row p = probabilities(logits[b * members + m], sigmoid);
        for (int64_t c = 0; c < classes; ++c) mean[c] += p[c] / static_cast<double>(members);
        member_nll -= std::log(p[label]) / static_cast<double>(images * members);
        votes.push_back(best(p));
        member_hits += votes.back() == label ? 100.0 / static_cast<double>(images * members) : 0;
      }
      double pairs = 0, differ = 0;
      for (size_t i = 0; i < votes.size(); ++i) {
        for (size_t j = i + 1; j < votes.size(); ++j, ++pairs) differ += votes[i] != votes[j];
      }
      if (pairs > 0) apart += differ / pairs / static_cast<double>(images);
      const bool hit = best(mean) == label;
      hits += hit ? 100.0 / static_cast<double>(images) : 0;
      const auto better =
          std::count_if(mean.begin(), mean.end(), [&](double p) { return p > mean[label]; });
      top5 += better < 5 ? 100.0 / static_cast<double>(images) : 0;
      nll -= std::log(mean[label]) / static_cast<double>(images);
      const double confidence = mean[best(mean)];
      int64_t bin = 0;
      while (confidence > static_cast<double>(bin + 1) / kCalibrationBins) ++bin;
      bin_gap[bin] += ((hit ? 1 : 0) - confidence) / static_cast<double>(images);
    }
    for (const double gap : bin_gap) ece += std::abs(gap);
  }
};

Metrics measure(const std::string& loss, const at::Tensor& logits, const at::Tensor& labels,
                int64_t members) {
  const std::unique_ptr<Meter> meter = classification_meter(loss);
  const auto add = [&](int64_t first, int64_t end) {
    ModelOutput output;
    output.logits = logits.slice(0, first * members, end * members);
    Batch batch;
    batch.labels = labels.slice(0, first, end);
    meter->add(output, batch);
  };
  const int64_t cut = labels.size(0) / 3;
  add(0, cut);
  add(cut, labels.size(0));
  return meter->result();
}

TEST(ClassificationMetrics, OfOneNetwork) {
  const at::Tensor logits = randn({50, 8}, 1, torch::kFloat) * 2;
  const at::Tensor labels = (randn({50}, 2).abs() * 3).to(torch::kLong).clamp(0, 7);
  for (const bool sigmoid : {false, true}) {
    const Plain plain(logits, labels, 1, sigmoid);
    const Metrics found = measure(sigmoid ? "sigmoid" : "softmax", logits, labels, 1);
    EXPECT_NEAR(found.at("accuracy"), plain.hits, 1e-9);
    EXPECT_NEAR(found.at("top5_accuracy"), plain.top5, 1e-9);
    EXPECT_NEAR(found.at("calibration_error"), plain.ece, 1e-6);
    EXPECT_LT(found.at("accuracy"), found.at("top5_accuracy"));
    EXPECT_GT(found.at("calibration_error"), 0.01);
    if (!sigmoid) {
      EXPECT_NEAR(found.at("loss"), plain.nll, 1e-5);
    }
    EXPECT_FALSE(to_json(found).contains("ensemble"));
  }
}

TEST(ClassificationMetrics, OfAnEnsembleAndItsMembers) {
  const at::Tensor logits = randn({60, 6}, 3, torch::kFloat) * 2;
  const at::Tensor labels = (randn({20}, 4).abs() * 3).to(torch::kLong).clamp(0, 5);
  for (const bool sigmoid : {false, true}) {
    const Plain plain(logits, labels, 3, sigmoid);
    const std::string loss = sigmoid ? "ensemble_sigmoid" : "ensemble_softmax";
    const Metrics found = measure(loss, logits, labels, 3);
    EXPECT_NEAR(found.at("accuracy"), plain.hits, 1e-9);
    EXPECT_NEAR(found.at("top5_accuracy"), plain.top5, 1e-9);
    EXPECT_NEAR(found.at("calibration_error"), plain.ece, 1e-6);
    EXPECT_EQ(found.at("ensemble.members"), 3);
    EXPECT_NEAR(found.at("ensemble.negative_log_likelihood"), plain.nll, 1e-5);
    EXPECT_NEAR(found.at("ensemble.member_negative_log_likelihood"), plain.member_nll, 1e-5);
    EXPECT_NEAR(found.at("ensemble.member_accuracy"), plain.member_hits, 1e-9);
    EXPECT_NEAR(found.at("ensemble.disagreement"), plain.apart, 1e-9);
    EXPECT_LT(found.at("ensemble.negative_log_likelihood"),
              found.at("ensemble.member_negative_log_likelihood"));
    const nlohmann::ordered_json json = to_json(found);
    EXPECT_EQ(json["ensemble"]["disagreement"], found.at("ensemble.disagreement"));
  }
}

TEST(ClassificationMetrics, HaveNoTopFiveOfAtMostFiveClasses) {
  for (const int64_t classes : {3, 5, 6}) {
    const at::Tensor logits = randn({4, classes}, 5, torch::kFloat);
    const Metrics found = measure("softmax", logits, torch::tensor({0, 1, 2, 0}), 1);
    EXPECT_EQ(found.contains("top5_accuracy"), classes == 6);
    DatasetInfo data;
    data.classes.resize(static_cast<size_t>(classes), "name");
    EXPECT_EQ(metrics_of(data).size(), classes == 6 ? 4u : 3u);
  }
}

TEST(ClassificationMetrics, CertainAndRightIsCalibrated) {
  const at::Tensor logits = torch::tensor({{90.0F, 0.0F}, {0.0F, 90.0F}, {90.0F, 0.0F}});
  const Metrics right = measure("softmax", logits, torch::tensor({0, 1, 0}), 1);
  EXPECT_NEAR(right.at("calibration_error"), 0.0, 1e-6);
  const Metrics wrong = measure("softmax", logits, torch::tensor({1, 0, 1}), 1);
  EXPECT_NEAR(wrong.at("calibration_error"), 1.0, 1e-6);
}

}  // namespace
}  // namespace moesaic
