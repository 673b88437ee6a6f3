// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/evaluate.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/train/objective.h"

namespace moesaic {

void ConfusionMatrix::add(const at::Tensor& labels_B, const at::Tensor& predicted_B) {
  const at::Tensor labels = labels_B.contiguous(), predicted = predicted_B.contiguous();
  const auto* label = labels.const_data_ptr<int64_t>();
  const auto* found = predicted.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < labels.numel(); ++i) ++counts_[{label[i], found[i]}];
}

int64_t ConfusionMatrix::count(int64_t label, int64_t predicted) const {
  const auto found = counts_.find({label, predicted});
  return found == counts_.end() ? 0 : found->second;
}

int64_t ConfusionMatrix::num_images(int64_t label) const {
  int64_t sum = 0;
  auto at = counts_.lower_bound({label, 0});
  for (; at != counts_.end() && at->first.first == label; ++at) sum += at->second;
  return sum;
}

namespace {

constexpr int64_t kTop = 5;  // Classes that count as a hit of the top-5 accuracy.

double sum_of(const at::Tensor& values) {
  return values.to(at::kDouble).sum().item<double>();
}

/// Returns -log of the true class's probability, summed over the rows.
double summed_likelihood(const at::Tensor& log_BC, const at::Tensor& labels) {
  return -sum_of(log_BC.gather(1, labels.unsqueeze(1)));
}

class ClassificationMeter final : public Meter {
 public:
  explicit ClassificationMeter(std::string loss) : loss_(std::move(loss)) {}

  void add(const ModelOutput& output, const Batch& batch) override {
    const at::Tensor &logits = output.logits, &labels = batch.labels;
    const int64_t images = labels.size(0);
    images_ += static_cast<double>(images);
    members_ = logits.size(0) / images;
    losses_ += sum_of(evaluation_losses(loss_, logits, {labels, {}, 0.0}));
    const at::Tensor log_BC = log_mean_probabilities(loss_, logits, members_);
    // The logarithm's rounding could make different logits equal.
    const at::Tensor& ranks = members_ == 1 ? logits : log_BC;
    const at::Tensor predicted = ranks.argmax(1), hits = predicted.eq(labels);
    const at::Tensor confidence = log_BC.amax({1}).exp();
    labels_.push_back(labels.clone());
    predicted_.push_back(predicted);
    confidence_.push_back(confidence);
    correct_ += sum_of(hits);
    classes_ = ranks.size(1);
    const int64_t count = std::min(kTop, classes_);
    top5_ += sum_of(std::get<1>(ranks.topk(count, 1)).eq(labels.unsqueeze(1)));
    add_calibration(confidence, hits);
    if (members_ == 1) return;
    likelihood_ += summed_likelihood(log_BC, labels);
    add_members(logits, labels);
  }

  Metrics result() const override {
    const double gaps = (bins_[1] - bins_[2]).abs().sum().item<double>();
    Metrics metrics = {{"accuracy", 100.0 * correct_ / images_},
                       {"loss", losses_ / images_},
                       {"calibration_error", gaps / images_}};
    if (classes_ > kTop) metrics["top5_accuracy"] = 100.0 * top5_ / images_;
    if (members_ == 1) return metrics;
    metrics["ensemble.members"] = static_cast<double>(members_);
    metrics["ensemble.negative_log_likelihood"] = likelihood_ / images_;
    metrics["ensemble.member_negative_log_likelihood"] = member_likelihood_ / images_;
    metrics["ensemble.member_accuracy"] = 100.0 * member_correct_ / images_;
    metrics["ensemble.disagreement"] = pairs_apart_ / images_;
    return metrics;
  }

  Predictions predictions() const override {
    return {at::cat(labels_), at::cat(predicted_), at::cat(confidence_)};
  }

 private:
  void add_calibration(const at::Tensor& confidence, const at::Tensor& hits) {
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

  void add_members(const at::Tensor& logits, const at::Tensor& labels) {
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

  std::string loss_;
  std::vector<at::Tensor> labels_, predicted_, confidence_;
  int64_t members_ = 1, classes_ = 0;
  double images_ = 0.0, correct_ = 0.0, top5_ = 0.0, losses_ = 0.0;
  at::Tensor bins_;  ///< [3, bins] float64: images, hits, sum of probabilities.
  double likelihood_ = 0.0, member_likelihood_ = 0.0, member_correct_ = 0.0, pairs_apart_ = 0.0;
};

MetricRows classification_rows(const Metrics& metrics) {
  const auto at = [&](const std::string& name) { return metrics.at(name); };
  MetricRows rows = {{"accuracy", fmt::format("{:.2f} %", at("accuracy"))}};
  if (metrics.contains("real.accuracy")) {
    rows.emplace_back(
        "ReaL", fmt::format("{:.2f} % of {:.0f} images", at("real.accuracy"), at("real.images")));
  }
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

/// "mse" and "mae": means over images and targets of (output - target)^2 and |output - target|;
/// "loss" is mse.
class RegressionMeter final : public Meter {
 public:
  void add(const ModelOutput& output, const Batch& batch) override {
    const at::Tensor error =
        output.logits.to(at::kDouble) - batch.targets.to(at::kCPU, at::kDouble);
    squares_ += error.square().sum().item<double>();
    absolute_ += error.abs().sum().item<double>();
    count_ += static_cast<double>(error.numel());
  }
  Metrics result() const override {
    return {{"loss", squares_ / count_}, {"mse", squares_ / count_}, {"mae", absolute_ / count_}};
  }

 private:
  double squares_ = 0.0, absolute_ = 0.0, count_ = 0.0;
};

}  // namespace

std::unique_ptr<Meter> meter_of(const DatasetInfo& data, const Model& model,
                                const std::string& loss) {
  const bool is_ensemble = model.num_members() > 1;
  if (data.targets.empty()) {
    // A loss that is none of classification's, such as one of another task, is not measured by.
    const bool known = classification_losses().find(loss) != nullptr;
    return classification_meter(known ? loss : is_ensemble ? "ensemble_softmax" : "softmax");
  }
  if (is_ensemble) {
    fail_usage("real-valued targets are for one network, the model is an ensemble of {}",
               model.num_members());
  }
  return std::make_unique<RegressionMeter>();
}

std::vector<MetricInfo> metrics_of(const DatasetInfo& data) {
  if (!data.targets.empty()) {
    return {{"mse", Direction::lower_is_better},
            {"mae", Direction::lower_is_better},
            {"loss", Direction::lower_is_better}};
  }
  std::vector<MetricInfo> list = {{"accuracy", Direction::higher_is_better, " %"},
                                  {"loss", Direction::lower_is_better},
                                  {"calibration_error", Direction::lower_is_better}};
  if (outputs_for(data) > kTop) {
    list.push_back({"top5_accuracy", Direction::higher_is_better, " %"});
  }
  return list;
}

MetricRows rows_for_people(const DatasetInfo& data, const Metrics& metrics) {
  if (data.targets.empty()) return classification_rows(metrics);
  MetricRows rows;
  for (const auto& [name, value] : metrics) rows.emplace_back(name, fmt::format("{:.6g}", value));
  return rows;
}

void check_num_outputs(const Model& model, const DatasetInfo& data) {
  const int64_t found = model.num_classes(), wanted = outputs_for(data);
  if (found == wanted) return;
  const bool has_classes = data.targets.empty();
  fail_usage("'{}' has {}, the model has {}", data.name,
             count_text(wanted, has_classes ? "class" : "target"),
             has_classes ? fmt::to_string(found) : count_text(found, "output"));
}

std::unique_ptr<Meter> classification_meter(const std::string& loss) {
  return std::make_unique<ClassificationMeter>(loss);
}

MetricInfo metric_of(const DatasetInfo& data, const std::string& name) {
  const std::vector<MetricInfo> known = metrics_of(data);
  if (name.empty()) return known.front();
  std::vector<std::string> names;
  for (const MetricInfo& metric : known) {
    if (metric.name == name) return metric;
    names.push_back(metric.name);
  }
  fail_usage("unknown metric '{}'; {}", name, did_you_mean(name, names));
}

Json to_json(const Metrics& metrics) {
  auto json = Json::object();
  for (const auto& [name, value] : metrics) {
    const size_t dot = name.find('.');
    Json& place =
        dot == std::string::npos ? json[name] : json[name.substr(0, dot)][name.substr(dot + 1)];
    place = value;
  }
  return json;
}

}  // namespace moesaic
