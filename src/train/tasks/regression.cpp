// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "tasks.h"

namespace moesaic {
namespace {

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

class Regression final : public Task {
 public:
  std::vector<MetricInfo> metrics(const DatasetInfo&) const override {
    return {{"mse", Direction::lower_is_better},
            {"mae", Direction::lower_is_better},
            {"loss", Direction::lower_is_better}};
  }
  std::unique_ptr<Meter> meter(const Model& model, const std::string&) const override {
    if (model.members() > 1) {
      fail_usage("real-valued targets are for one network, the model is an ensemble of {}",
                 model.members());
    }
    return std::make_unique<RegressionMeter>();
  }
  MetricRows rows(const Metrics& metrics) const override {
    MetricRows rows;
    for (const auto& [name, value] : metrics) rows.emplace_back(name, fmt::format("{:.6g}", value));
    return rows;
  }
  void check_outputs(const Model& model, const DatasetInfo& data) const override {
    if (model.classes() == outputs(data)) return;
    fail_usage("'{}' has {} targets, the model has {} outputs", data.name, outputs(data),
               model.classes());
  }
  int64_t outputs(const DatasetInfo& data) const override {
    return static_cast<int64_t>(data.targets.size());
  }
};

}  // namespace

const Task& regression_task() {
  static const Regression task;
  return task;
}

}  // namespace moesaic
