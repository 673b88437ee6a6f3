// SPDX-License-Identifier: Apache-2.0
// The operators on a GPU: few tokens, the router by itself, and memory.
#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include "gpu_layer.h"
#include "moesaic/ops/route.h"

#ifdef MOESAIC_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace moesaic::bench {
namespace {

using at::Tensor;

#ifdef MOESAIC_WITH_CUDA
/// The work recorded once as a CUDA graph, to be replayed; as it is on chips without grouped
/// products, where it reads from the GPU.
std::function<void()> replayed(const std::function<void()>& work) {
  const int major = at::cuda::getCurrentDeviceProperties()->major;
  if (major != 9 && major != 10) return work;
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  work();  // once outside, for what is set up lazily
  torch::cuda::synchronize();
  auto graph = std::make_shared<at::cuda::CUDAGraph>();
  graph->capture_begin();
  work();
  graph->capture_end();
  return [graph] { graph->replay(); };
}
#else
std::function<void()> replayed(const std::function<void()>& work) {
  return work;
}
#endif

/// Bytes of tensors on the GPU: now, and at most since peak_from_here().
struct GpuBytes {
  double now, peak;
};
GpuBytes gpu_bytes() {
  const auto stats = at::getDeviceAllocator(at::kCUDA)->getDeviceStats(0);
  const auto& bytes = stats.allocated_bytes[0];  // of all kinds of blocks together
  return {static_cast<double>(bytes.current), static_cast<double>(bytes.peak)};
}
double peak_from_here() {
  at::getDeviceAllocator(at::kCUDA)->resetPeakStats(0);
  return gpu_bytes().now;
}

/// MB that a forward pass leaves for its backward pass, the input among them and the output not.
double saved_megabytes(const GpuLayer& f, const EagerLayer& layer, const Tensor& x) {
  const double before = peak_from_here();
  const Tensor y = f(layer, x);
  const double grown = gpu_bytes().now - before - static_cast<double>(y.nbytes());
  return (grown + static_cast<double>(x.nbytes())) / 1e6;
}

/// MB that forward and backward hold at once, beyond weights and input.
double peak_megabytes(const GpuLayer& f, const EagerLayer& layer, const Tensor& x) {
  const auto step = gpu_train(f, layer, x);
  const double before = peak_from_here();
  step();
  return (gpu_bytes().peak - before) / 1e6;
}

}  // namespace

void gpu_small_batch(const Report& report) {
  const torch::NoGradGuard no_grad;
  const EagerLayer layer = gpu_layer(8, 2);
  const Tensor image = gpu_tokens(65), batch = gpu_tokens(kGpuTokens);
  report("gpu/one_image", [&] {
    return faster(short_times(replayed([=] { gpu_ours(layer, image); }),
                              [=] { composed_layer(layer, image); }),
                  1.4, "65 tokens, ours as a CUDA graph; goal for ours: 0.070 ms");
  });
  const Tensor copy = at::empty_like(batch), half = batch.narrow(0, 0, kGpuTokens / 2);
  report("gpu/router", [&] {
    const auto routing = [=] {
      const Tensor logits = at::mm(batch, layer.router).to(at::kFloat);
      route(logits, {.k = 2, .capacity = {.factor = 1.05}});
    };
    return at_most(short_times(routing, [=] { copy.narrow(0, 0, kGpuTokens / 2).copy_(half); }),
                   2.0, "logits and choice; baseline: as many bytes copied as the tokens have");
  });
}

void gpu_memory(const Report& report) {
  const EagerLayer layer = gpu_layer(8, 2, true);
  const Tensor x = gpu_tokens(kGpuTokens, true);
  report("gpu/saved_for_backward", [&] {
    gpu_train(gpu_ours, layer, x)();  // Libraries take what they keep for ever.
    constexpr double kRows = 2.0 * kGpuTokens;
    const double least =
        (static_cast<double>(x.nbytes()) + kRows * kGpuHidden * 2 + 16 * kRows) / 1e6;
    const double saved = saved_megabytes(gpu_ours, layer, x);
    return at_most(
        saved, least, "MB", 1.45,
        "baseline: input, hidden rows in bfloat16 and 16 bytes a row; ratio: ours / baseline");
  });
  report("gpu/peak_memory", [&] {
    gpu_train(gpu_ours, layer, x)();
    const double ours = peak_megabytes(gpu_ours, layer, x);
    const double peer = peak_megabytes(composed_layer, layer, x);
    return at_most(ours, peer, "MB", 1.0,
                   "forward and backward, beyond weights and input; baseline: sort, index_select, "
                   "_grouped_mm, bias, GELU, index_add; ratio: ours / baseline");
  });
}

}  // namespace moesaic::bench
