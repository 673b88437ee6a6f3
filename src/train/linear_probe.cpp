// SPDX-License-Identifier: Apache-2.0
// Accuracy of a linear map of a network's features learned from few images of each class, as in
// google-research/vmoe's few-shot evaluation (vmoe/evaluate/fewshot.py).
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/text.h"
#include "moesaic/data/views.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

at::Tensor ridge_predictions(const at::Tensor& x_ND, const at::Tensor& labels_N,
                             int64_t num_classes, const std::vector<double>& l2,
                             const at::Tensor& x_MD) {
  constexpr double kTiny = 1e-5, kBias = 100.0;
  constexpr int64_t kRows = 4096;  // Bounds the memory of scores.
  const at::Tensor exact_ND = x_ND.to(at::kDouble), mean_D = exact_ND.mean(0),
                   std_D = exact_ND.std(0, /*unbiased=*/false) + kTiny;
  const auto inputs_of = [&](const at::Tensor& x) {
    return at::constant_pad_nd((x.to(at::kDouble) - mean_D) / std_D, {0, 1}, kBias);
  };
  const at::Tensor inputs = inputs_of(x_ND), inputs_t = inputs.t();
  const at::Tensor y_NC = 2.0 * at::one_hot(labels_N, num_classes).to(at::kDouble) - 1.0;
  // W = left diag(1 / (values + l2)) right, by the eigenvectors q of the smaller matrix.
  const bool is_tall = inputs.size(0) >= inputs.size(1);
  const auto [values, q] = at::linalg_eigh(is_tall ? inputs_t.mm(inputs) : inputs.mm(inputs_t));
  const at::Tensor left = is_tall ? q : inputs_t.mm(q);
  const at::Tensor right = q.t().mm(is_tall ? inputs_t.mm(y_NC) : y_NC);
  std::vector<at::Tensor> classes;
  for (const double strength : l2) {
    const at::Tensor weight = (left / (values + strength)).mm(right).to(at::kFloat);
    for (const at::Tensor& rows : x_MD.split(kRows)) {
      classes.push_back(inputs_of(rows).to(at::kFloat).mm(weight).argmax(1));
    }
  }
  return at::cat(classes).view({std::ssize(l2), -1});
}

namespace {

/// Features and classes of a dataset's examples, on the CPU; undefined where that was stopped.
struct Features {
  at::Tensor x_ND, labels_N;
};

Features features_of(Model& model, const std::shared_ptr<const Dataset>& data,
                     EvaluateOptions options) {
  std::vector<at::Tensor> x, labels;
  options.on_batch = [&](const EvaluatedBatch& batch) {
    const int64_t images = batch.labels_B.size(0);
    x.push_back(batch.output.pre_logits.reshape({images, -1}).to(at::kCPU, at::kFloat).clone());
    labels.push_back(batch.labels_B.clone());
  };
  if (!evaluate_batches(model, data, options)) return {};
  Features features{at::cat(x), at::cat(labels)};
  if (features.x_ND.isfinite().all().item<bool>()) return features;
  fail("--shots: features of '{}' are not finite", one_line(data->info().name));
}

void check_shots(const Dataset& train, int64_t shots) {
  const DatasetInfo& info = train.info();
  if (info.classes.empty() || train.is_endless()) {
    fail_usage("--shots: '{}' has no list of images by class; choose other --data",
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

}  // namespace

Metrics few_shot(Model& model, const std::shared_ptr<const Dataset>& train,
                 const std::shared_ptr<const Dataset>& test, const FewShotOptions& few,
                 const EvaluateOptions& options) {
  constexpr int kMinPower = -10, kMaxPower = 19;  // As in vmoe/configs/common_fewshot.py.
  std::vector<double> l2 = few.l2;
  for (int i = kMinPower; few.l2.empty() && i <= kMaxPower; ++i) l2.push_back(std::exp2(i));
  const int64_t most = std::ranges::max(few.shots);
  check_shots(*train, most);
  const int64_t num_classes = std::ssize(train->info().classes), num_images = most * num_classes;
  EvaluateOptions counted = options;
  int64_t before = 0;  // Images of earlier passes.
  counted.on_progress = [&](int64_t done, int64_t) {
    const int64_t total = test->size() + few.num_seeds * num_images;
    return !options.on_progress || options.on_progress(before + done, total);
  };
  const Features measured = features_of(model, test, counted);
  if (!measured.x_ND.defined()) return {};
  std::map<int64_t, std::vector<at::Tensor>> found;  // By shots, of each seed [l2].
  for (int64_t seed = 0; seed < few.num_seeds; ++seed) {
    before = test->size() + seed * num_images;
    // Each class in turn, so that the first rows have as many of each.
    const auto sample = make_sample(train, num_images, static_cast<uint64_t>(seed));
    const auto [x_ND, labels_N] = features_of(model, sample, counted);
    if (!x_ND.defined()) return {};
    for (const int64_t shots : few.shots) {
      const int64_t count = shots * num_classes;
      const at::Tensor predicted = ridge_predictions(
          x_ND.narrow(0, 0, count), labels_N.narrow(0, 0, count), num_classes, l2, measured.x_ND);
      found[shots].push_back(100.0 * predicted.eq(measured.labels_N).to(at::kDouble).mean(1));
    }
  }
  Metrics metrics;
  for (const auto& [shots, by_seed] : found) {
    const at::Tensor values = at::stack(by_seed, 1);
    const auto best = values.mean(1).argmax().item<int64_t>();
    const std::string name = fmt::format("few_shot.{}-shot", shots);
    metrics[name] = values[best].mean().item<double>();
    metrics[name + "_l2"] = l2[static_cast<size_t>(best)];
    if (few.num_seeds > 1) metrics[name + "_std"] = values[best].std().item<double>();
  }
  return metrics;
}

}  // namespace moesaic
