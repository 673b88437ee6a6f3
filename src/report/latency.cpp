// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/latency.h"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "moesaic/nn/init.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/ops/memory.h"
#include "moesaic/report/throughput.h"

namespace moesaic {
namespace {

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

double bytes_of(const Model& model) {
  double bytes = 0.0;
  for (const auto& [unused, tensor] : state_of(model)) {
    bytes += static_cast<double>(tensor.nbytes());
  }
  return bytes;
}

at::Tensor random_images(const Model& model, int64_t count) {
  std::vector<int64_t> shape = model.input_shape();
  shape.insert(shape.begin(), count);
  return at::randn(shape, nn::make_generator(1), at::kFloat).to(model.device());
}

/// Returns the value below which this fraction of sorted values lies.
double quantile(const std::vector<double>& sorted, double fraction) {
  return sorted[static_cast<size_t>(fraction * static_cast<double>(sorted.size() - 1) + 0.5)];
}

}  // namespace

int64_t peak_tensor_bytes(const std::function<void()>& work) {
  const auto peak = std::make_shared<AllocationPeak>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, peak);
  work();
  return peak->peak();
}

Latency measure_latency(Model& model, const LatencyOptions& options) {
  const c10::InferenceMode inference;
  model.eval();
  const at::Tensor images = random_images(model, options.batch_size);
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
  found.bytes = bytes_of(model) + static_cast<double>(images.nbytes()) + static_cast<double>(peak);
  seconds_of(pass, images);
  std::vector<double> times;
  for (double spent = 0.0; times.size() < kMaxPasses;) {
    if (times.size() >= kMinPasses && spent >= options.seconds) break;
    times.push_back(seconds_of(pass, images));
    spent += times.back();
  }
  std::sort(times.begin(), times.end());
  found.passes = static_cast<int64_t>(times.size());
  found.median_ms = 1e3 * median(times);
  found.p95_ms = 1e3 * quantile(times, 0.95);
  found.images_per_second = 1e3 * static_cast<double>(options.batch_size) / found.median_ms;
  return found;
}

}  // namespace moesaic
