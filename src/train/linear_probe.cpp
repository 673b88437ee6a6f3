// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/linear_probe.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"
#include "moesaic/data/views.h"
#include "moesaic/ops/device.h"

namespace moesaic {

RidgeProbe::RidgeProbe(const at::Tensor& x_ND, const at::Tensor& labels_N, int64_t num_classes) {
  constexpr double kTiny = 1e-5;  // For features that never change.
  const at::Tensor whole_ND = x_ND.to(at::kDouble);
  mean_ = whole_ND.mean(0);
  std_ = whole_ND.std(0, /*unbiased=*/false) + kTiny;
  const at::Tensor inputs = inputs_of(x_ND);
  const at::Tensor y_NC = 2.0 * at::one_hot(labels_N, num_classes).to(at::kDouble) - 1.0;
  const bool is_tall = inputs.size(0) >= inputs.size(1);
  const auto [values, q] = at::linalg_eigh(is_tall ? inputs.t().mm(inputs) : inputs.mm(inputs.t()));
  eigenvalues_ = values;
  left_ = is_tall ? q : inputs.t().mm(q);
  right_ = q.t().mm(is_tall ? inputs.t().mm(y_NC) : y_NC);
}

at::Tensor RidgeProbe::inputs_of(const at::Tensor& x_ND) const {
  constexpr double kBias = 100.0;
  return at::constant_pad_nd((x_ND.to(at::kDouble) - mean_) / std_, {0, 1}, kBias);
}

at::Tensor RidgeProbe::predict(const at::Tensor& x_ND, double l2) const {
  constexpr int64_t kRows = 4096;  // Bounds the memory of scores.
  const at::Tensor weight = (left_ / (eigenvalues_ + l2)).mm(right_).to(at::kFloat);
  std::vector<at::Tensor> classes;
  for (const at::Tensor& rows : x_ND.split(kRows)) {
    classes.push_back(inputs_of(rows).to(at::kFloat).mm(weight).argmax(1));
  }
  return at::cat(classes);
}

namespace {

constexpr const char* kTrain = "train";

/// Features and classes of a dataset's examples, on the CPU.
struct Features {
  at::Tensor x_ND, labels_N;
  bool is_complete = false;
};

Features features_of(Model& model, const std::shared_ptr<const Dataset>& data,
                     EvaluateOptions options) {
  std::vector<at::Tensor> x, labels;
  options.on_batch = [&](const EvaluatedBatch& batch) {
    x.push_back(batch.output.pre_logits.reshape({batch.labels_B.size(0), -1})
                    .to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true));
    labels.push_back(batch.labels_B.clone());
  };
  if (!run_over(model, data, options)) return {};
  Features features{at::cat(x), at::cat(labels), true};
  if (features.x_ND.isfinite().all().item<bool>()) return features;
  fail("--shots: features of '{}' are not finite", one_line(data->info().name));
}

void check_shots(const Dataset& train, int64_t shots) {
  const DatasetInfo& info = train.info();
  if (info.classes.empty() || train.endless()) {
    fail_usage("--shots: '{}' has no images of classes to choose from; choose other --data",
               one_line(info.name));
  }
  std::vector<int64_t> counts(info.classes.size());
  for (int64_t i = 0; i < train.size(); ++i) {
    if (const auto label = known_label(train, i)) ++counts[static_cast<size_t>(*label)];
  }
  const auto least = std::ranges::min_element(counts);
  if (*least >= shots) return;
  fail_usage("--shots: the class '{}' of '{}' has {} to train on, not {}; choose at most {}",
             one_line(info.classes[static_cast<size_t>(least - counts.begin())]),
             one_line(info.name), count_text(*least, "image"), shots, *least);
}

/// Accuracies of one number of shots, [l2, seeds].
using Accuracies = std::vector<std::vector<double>>;

FewShotAccuracy best_of(int64_t shots, const std::vector<double>& l2, const Accuracies& found) {
  const auto total = [](const std::vector<double>& values) {
    double sum = 0.0;
    for (const double value : values) sum += value;
    return sum;
  };
  const auto best = std::ranges::max_element(found, {}, total);
  return {shots, l2[static_cast<size_t>(best - found.begin())], *best};
}

}  // namespace

std::vector<FewShotAccuracy> few_shot(Model& model, const std::shared_ptr<const Dataset>& train,
                                      const std::shared_ptr<const Dataset>& test,
                                      const FewShotOptions& few, const EvaluateOptions& options) {
  constexpr int kMinPower = -10, kMaxPower = 19;  // As in vmoe/configs/common_fewshot.py.
  std::vector<double> l2 = few.l2;
  for (int power = kMinPower; few.l2.empty() && power <= kMaxPower; ++power) {
    l2.push_back(std::exp2(power));
  }
  const int64_t most = std::ranges::max(few.shots);
  const int64_t num_classes = std::ssize(train->info().classes);
  check_shots(*train, most);
  const Features measured = features_of(model, test, options);
  if (!measured.is_complete) return {};
  std::vector<Accuracies> found(few.shots.size(), Accuracies(l2.size()));
  for (int64_t seed = 0; seed < few.num_seeds; ++seed) {
    // Each class in turn, so that the first rows have as many of each.
    const auto sample = make_sample(train, most * num_classes, static_cast<uint64_t>(seed));
    const Features learned = features_of(model, sample, options);
    if (!learned.is_complete) return {};
    for (size_t row = 0; row < few.shots.size(); ++row) {
      const int64_t count = few.shots[row] * num_classes;
      const RidgeProbe probe(learned.x_ND.narrow(0, 0, count), learned.labels_N.narrow(0, 0, count),
                             num_classes);
      for (size_t i = 0; i < l2.size(); ++i) {
        const at::Tensor hits = probe.predict(measured.x_ND, l2[i]).eq(measured.labels_N);
        found[row][i].push_back(100.0 * hits.to(at::kDouble).mean().item<double>());
      }
    }
  }
  std::vector<FewShotAccuracy> rows;
  for (size_t row = 0; row < found.size(); ++row) {
    rows.push_back(best_of(few.shots[row], l2, found[row]));
  }
  return rows;
}

CheckpointProbe probe_checkpoint(const EvaluateCheckpointOptions& options,
                                 const FewShotOptions& few) {
  check_device(options.device);
  const Checkpoint checkpoint =
      load_newest_checkpoint(options.checkpoint, {.optimizer = false, .trust = options.trust});
  CheckpointData test =
      open_checkpoint_data(checkpoint, options.open, options.data, options.split, evaluation_split);
  if (test.split == kTrain) {
    fail_usage("--shots learns from the split 'train'; choose another --split to measure on");
  }
  CheckpointData train = open_checkpoint_data(checkpoint, options.open, options.data, kTrain);
  const std::shared_ptr<Model> model = model_of(checkpoint);
  model->to(at::Device(options.device));
  EvaluateOptions evaluate = options.evaluate;
  evaluate.batch_size = options.batch_size ? *options.batch_size : trained_batch_size(checkpoint);
  evaluate.precision = use_precision(*model, evaluate.precision);
  adapt_data(test, checkpoint, *model, ClassesOf::data);  // Other classes than the network's.
  train.dataset = preprocessed(train.dataset, test.input);
  return {checkpoint.folder, test.name, test.split, test.dataset->size(),
          few_shot(*model, train.dataset, test.dataset, few, evaluate)};
}

Json to_json(const CheckpointProbe& probe) {
  Json json = {{"checkpoint", probe.checkpoint.string()},
               {"data", probe.data},
               {"split", probe.split},
               {"images", probe.images},
               {"few_shot", Json::array()}};
  for (const FewShotAccuracy& row : probe.rows) {
    json["few_shot"].push_back({{"shots", row.shots},
                                {"l2", row.l2},
                                {"accuracy", at::tensor(row.accuracy).mean().item<double>()},
                                {"values", row.accuracy}});
  }
  return json;
}

std::string to_text(const CheckpointProbe& probe) {
  std::string text =
      fmt::format("{:<16} {}\n{:<16} {}, {} {} images\n", "checkpoint", probe.checkpoint.string(),
                  "data", probe.data, probe.images, probe.split);
  for (const FewShotAccuracy& row : probe.rows) {
    const at::Tensor values = at::tensor(row.accuracy);
    const bool is_spread = row.accuracy.size() > 1;
    text += fmt::format("{:<16} {:.2f} %{}, l2 {:g}\n", fmt::format("{}-shot", row.shots),
                        values.mean().item<double>(),
                        is_spread ? fmt::format(", std {:.2f} of {} seeds",
                                                values.std().item<double>(), values.numel())
                                  : "",
                        row.l2);
  }
  return text;
}

}  // namespace moesaic
