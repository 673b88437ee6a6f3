// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/text.h"
#include "moesaic/train/classification_metrics.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "tasks.h"

namespace moesaic {
namespace {

double sum_of(const at::Tensor& values) {
  return values.to(at::kDouble).sum().item<double>();
}

/// Returns -log of the true class's probability, summed over the rows.
double summed_likelihood(const at::Tensor& log_BC, const at::Tensor& labels) {
  return -sum_of(log_BC.gather(1, labels.unsqueeze(1)));
}

}  // namespace

void ClassificationMeter::add(const at::Tensor& logits, const at::Tensor& labels) {
  const int64_t images = labels.size(0);
  images_ += images;
  members_ = logits.size(0) / images;
  losses_ += sum_of(evaluation_losses(loss_, logits, {labels, {}, 0.0}));
  const at::Tensor log_BC = log_mean_probabilities(loss_, logits, members_);
  // The logarithm's rounding could make different logits equal.
  const at::Tensor& ranks = members_ == 1 ? logits : log_BC;
  const at::Tensor predicted = ranks.argmax(1);
  const at::Tensor hits = predicted.eq(labels);
  confusion_.add(labels, predicted);
  correct_ += sum_of(hits);
  classes_ = ranks.size(1);
  const int64_t count = std::min(kTop, classes_);
  top5_ += sum_of(std::get<1>(ranks.topk(count, 1)).eq(labels.unsqueeze(1)));
  add_calibration(log_BC.amax({1}).exp(), hits);
  if (members_ == 1) return;
  likelihood_ += summed_likelihood(log_BC, labels);
  add_members(logits, labels);
}

void ClassificationMeter::add_calibration(const at::Tensor& confidence, const at::Tensor& hits) {
  const at::Tensor p = confidence.to(at::kDouble).cpu();
  const at::Tensor bin = (p * static_cast<double>(kCalibrationBins))
                             .ceil()
                             .to(at::kLong)
                             .sub(1)
                             .clamp(0, kCalibrationBins - 1);
  const at::Tensor rows = at::stack({at::ones_like(p), hits.to(at::kDouble).cpu(), p});
  if (!bins_.defined()) bins_ = at::zeros({3, kCalibrationBins}, at::kDouble);
  bins_ = bins_.index_add(1, bin, rows);
}

void ClassificationMeter::add_members(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor row_labels = labels.repeat_interleave(members_, 0);
  const at::Tensor log_RC = log_mean_probabilities(loss_, logits, 1);
  const double members = static_cast<double>(members_);
  member_likelihood_ += summed_likelihood(log_RC, row_labels) / members;
  const at::Tensor predicted = log_RC.argmax(1);
  member_correct_ += sum_of(predicted.eq(row_labels)) / members;
  const at::Tensor predicted_BM = predicted.view({-1, members_});
  // Every pair counts twice, and a member never differs from itself.
  const at::Tensor apart = predicted_BM.unsqueeze(2).ne(predicted_BM.unsqueeze(1));
  pairs_apart_ += sum_of(apart) / (members * (members - 1.0));
}

ClassificationMetrics ClassificationMeter::result() const {
  const auto images = static_cast<double>(images_);
  ClassificationMetrics quality;
  quality.images = images_;
  quality.accuracy = 100.0 * correct_ / images;
  if (classes_ > kTop) quality.top5_accuracy = 100.0 * top5_ / images;
  quality.loss = losses_ / images;
  quality.calibration_error = (bins_[1] - bins_[2]).abs().sum().item<double>() / images;
  if (members_ > 1) {
    quality.ensemble = {members_, likelihood_ / images, member_likelihood_ / images,
                        100.0 * member_correct_ / images, pairs_apart_ / images};
  }
  return quality;
}

namespace {

class ClassificationTaskMeter final : public Meter {
 public:
  explicit ClassificationTaskMeter(std::string loss) : meter_(std::move(loss)) {}
  void add(const ModelOutput& output, const Batch& batch) override {
    meter_.add(output.logits, batch.labels);
  }
  Metrics result() const override { return named(meter_.result()); }
  Confusion confusion() const override { return meter_.confusion(); }

 private:
  ClassificationMeter meter_;
};

class Classification final : public Task {
 public:
  std::vector<MetricInfo> metrics(const DatasetInfo& data) const override {
    std::vector<MetricInfo> list = {{"accuracy", Direction::higher_is_better, " %"},
                                    {"loss", Direction::lower_is_better},
                                    {"calibration_error", Direction::lower_is_better}};
    if (outputs(data) > kTop) list.push_back({"top5_accuracy", Direction::higher_is_better, " %"});
    return list;
  }
  /// A loss that is none of classification's, such as one of another task, is not measured by.
  std::unique_ptr<Meter> meter(const Model& model, const std::string& loss) const override {
    const bool known = classification_losses().find(loss) != nullptr;
    const std::string usual = model.members() > 1 ? "ensemble_softmax" : "softmax";
    return std::make_unique<ClassificationTaskMeter>(known ? loss : usual);
  }
  MetricRows rows(const Metrics& metrics) const override {
    const auto at = [&](const std::string& name) { return metrics.at(name); };
    MetricRows rows = {{"accuracy", fmt::format("{:.2f} %", at("accuracy"))}};
    if (metrics.contains("top5_accuracy")) {
      rows.emplace_back("top-5", fmt::format("{:.2f} %", at("top5_accuracy")));
    }
    rows.emplace_back("loss", fmt::format("{:.4f}", at("loss")));
    rows.emplace_back("calibration", fmt::format("error (ECE) {:.4f}", at("calibration_error")));
    if (!metrics.contains("ensemble.members")) return rows;
    rows.emplace_back(
        "ensemble",
        fmt::format("{:.0f} members, NLL {:.4f}, disagreement {:.4f}", at("ensemble.members"),
                    at("ensemble.negative_log_likelihood"), at("ensemble.disagreement")));
    rows.emplace_back("a member",
                      fmt::format("accuracy {:.2f} %, NLL {:.4f}", at("ensemble.member_accuracy"),
                                  at("ensemble.member_negative_log_likelihood")));
    return rows;
  }
  void check_outputs(const Model& model, const DatasetInfo& data) const override {
    if (model.classes() == outputs(data)) return;
    fail_usage("'{}' has {}, the model has {}", data.name, count_text(outputs(data), "class"),
               model.classes());
  }
  int64_t outputs(const DatasetInfo& data) const override {
    return static_cast<int64_t>(data.classes.size());
  }
};

}  // namespace

Metrics named(const ClassificationMetrics& metrics) {
  Metrics list = {{"accuracy", metrics.accuracy},
                  {"loss", metrics.loss},
                  {"calibration_error", metrics.calibration_error}};
  if (metrics.top5_accuracy) list["top5_accuracy"] = *metrics.top5_accuracy;
  if (!metrics.ensemble) return list;
  const EnsembleMetrics& ensemble = *metrics.ensemble;
  list["ensemble.members"] = static_cast<double>(ensemble.members);
  list["ensemble.negative_log_likelihood"] = ensemble.negative_log_likelihood;
  list["ensemble.member_negative_log_likelihood"] = ensemble.member_negative_log_likelihood;
  list["ensemble.member_accuracy"] = ensemble.member_accuracy;
  list["ensemble.disagreement"] = ensemble.disagreement;
  return list;
}

const Task& classification_task() {
  static const Classification task;
  return task;
}

}  // namespace moesaic
