// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/throughput.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>

#include "moesaic/base/error.h"
#include "moesaic/data/loader.h"

namespace moesaic {
namespace {

/// With so many batches none stays in the cache between rounds, and all fit in memory.
constexpr int64_t kBatches = 16;
constexpr int64_t kWarmupRounds = 2;

std::vector<at::Tensor> first_batches(std::shared_ptr<const Dataset> dataset, int64_t batch_size,
                                      at::Device device) {
  LoaderOptions options;
  options.batch_size = batch_size;
  Loader loader(std::move(dataset), options);
  std::vector<at::Tensor> batches;
  while (!loader.done() && static_cast<int64_t>(batches.size()) < kBatches) {
    at::Tensor images = loader.next().images.to(device);
    // A smaller last batch would change the time of a round.
    if (batches.empty() || images.size(0) == batches.front().size(0)) batches.push_back(images);
  }
  return batches;
}

}  // namespace

double seconds_of(const ForwardPass& pass, const at::Tensor& images_BCHW) {
  const auto begin = std::chrono::steady_clock::now();
  pass(images_BCHW);
  if (images_BCHW.is_cuda()) torch::cuda::synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  if (values.empty()) fail_usage("median: no values");
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(middle), values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  const double lower =
      *std::max_element(values.begin(), values.begin() + static_cast<int64_t>(middle));
  return (lower + upper) / 2;
}

std::vector<double> measure_passes(const std::vector<ForwardPass>& passes,
                                   std::shared_ptr<const Dataset> dataset,
                                   const ThroughputConfig& config,
                                   const std::function<bool()>& proceed, at::Device device) {
  const c10::InferenceMode inference;
  const std::vector<at::Tensor> batches =
      first_batches(std::move(dataset), config.batch_size, device);
  std::vector<std::vector<double>> seconds(passes.size());
  for (int64_t round = -kWarmupRounds; round < config.rounds; ++round) {
    if (proceed && !proceed()) return {};
    const auto turn = static_cast<size_t>(round + kWarmupRounds);
    const at::Tensor& images = batches[turn % batches.size()];
    for (size_t i = 0; i < passes.size(); ++i) {
      const size_t which = (i + turn) % passes.size();
      const double time = seconds_of(passes[which], images);
      if (round >= 0) seconds[which].push_back(time);
    }
  }
  std::vector<double> rates;
  for (const std::vector<double>& times : seconds) {
    rates.push_back(static_cast<double>(batches.front().size(0)) / median(times));
  }
  return rates;
}

ForwardPass forward_pass(std::shared_ptr<Model> model) {
  model->eval();
  return [model = std::move(model)](const at::Tensor& images) { model->forward(images); };
}

}  // namespace moesaic
