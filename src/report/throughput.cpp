// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/throughput.h"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>

#include "moesaic/base/error.h"
#include "moesaic/data/loader.h"
#include "moesaic/nn/init.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/ops/memory.h"

namespace moesaic {
namespace {

/// With so many batches none stays in the cache between rounds, and all fit in memory.
constexpr int64_t kBatches = 16;
constexpr int64_t kWarmupRounds = 2;

std::vector<at::Tensor> first_batches(std::shared_ptr<const Dataset> dataset, int64_t batch_size,
                                      at::Device device) {
  Loader loader(std::move(dataset), {.batch_size = batch_size});
  std::vector<at::Tensor> batches;
  while (!loader.is_done() && std::ssize(batches) < kBatches) {
    at::Tensor images = loader.next().inputs.to(device);
    // A smaller last batch would change the time of a round.
    if (batches.empty() || images.size(0) == batches.front().size(0)) batches.push_back(images);
  }
  return batches;
}

constexpr size_t kMinPasses = 5, kMaxPasses = 10000;

/// Follows what LibTorch's allocators give out and take back.
class AllocationPeak final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t now_ = 0, peak_ = 0;
};

/// Returns the seconds of a forward pass, at the end of which a GPU is waited for.
double seconds_of(const ForwardPass& pass, const at::Tensor& images_BCHW) {
  const auto begin = std::chrono::steady_clock::now();
  pass(images_BCHW);
  if (images_BCHW.is_cuda()) torch::cuda::synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) fail_usage("median: no values");
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

std::vector<double> measure_throughput(const std::vector<ForwardPass>& passes,
                                       std::shared_ptr<const Dataset> dataset,
                                       const ThroughputConfig& config,
                                       const std::function<bool()>& on_progress,
                                       at::Device device) {
  const c10::InferenceMode inference;
  const std::vector<at::Tensor> batches =
      first_batches(std::move(dataset), config.batch_size, device);
  std::vector<std::vector<double>> seconds(passes.size());
  for (int64_t round = -kWarmupRounds; round < config.num_rounds; ++round) {
    if (on_progress && !on_progress()) return {};
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

int64_t peak_tensor_bytes(const std::function<void()>& work) {
  const auto peak = std::make_shared<AllocationPeak>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, peak);
  work();
  return peak->peak();
}

Latency measure_latency(Model& model, const LatencyOptions& options) {
  const c10::InferenceMode inference;
  model.eval();
  std::vector<int64_t> shape = model.input_shape();
  shape.insert(shape.begin(), options.batch_size);
  const at::Tensor images = at::randn(shape, nn::make_generator(1), at::kFloat).to(model.device());
  const ForwardPass pass = [&](const at::Tensor& images_BCHW) {
    const Autocast autocast(options.precision, images_BCHW.device());
    model.forward(images_BCHW);
  };
  Latency found{.batch_size = options.batch_size};
  free_cached_memory();  // Blocks that are kept count once more when they are used.
  const int64_t peak = peak_tensor_bytes([&] {
    pass(images);
    pass(images);  // Weights that have not changed are packed now.
  });
  found.bytes =
      bytes_of(state_of(model)) + static_cast<double>(images.nbytes()) + static_cast<double>(peak);
  seconds_of(pass, images);
  std::vector<double> times;
  for (double spent = 0.0; times.size() < kMaxPasses;) {
    if (times.size() >= kMinPasses && spent >= options.seconds) break;
    times.push_back(seconds_of(pass, images));
    spent += times.back();
  }
  std::sort(times.begin(), times.end());
  found.num_passes = std::ssize(times);
  found.median_ms = 1e3 * median(times);
  found.p95_ms =
      1e3 * times[static_cast<size_t>(0.95 * static_cast<double>(times.size() - 1) + 0.5)];
  found.images_per_second = 1e3 * static_cast<double>(options.batch_size) / found.median_ms;
  return found;
}

}  // namespace moesaic
