// SPDX-License-Identifier: Apache-2.0
// The operators on a GPU: how long they take.
#include <fmt/format.h>
#include <torch/torch.h>

#include <array>

#include "gpu_layer.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/device.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/route.h"

namespace moesaic::bench {
namespace {

using at::Tensor;

constexpr int64_t kTokens = kGpuTokens, kWidth = kGpuWidth;

void gpu_routing(const Report& report) {
  const Tensor logits = at::randn({kTokens, 8}, at::kCUDA);
  const RouteOptions options{.k = 2, .capacity = {.factor = 1.05}};
  const int64_t capacity = expert_capacity(kTokens, 2, {1.05}, 8);
  report("gpu/routing", [&] {
    return faster(
        short_times([=] { route(logits, options); }, [=] { eager_routing(logits, 2, capacity); }),
        10, "softmax, topk, one-hot cumsum, sort, bincount; goal for ours: 0.03 ms");
  });
  const RouteOptions choice{
      .kind = RoutingKind::expert_choice, .gate = Gate::softmax_all, .capacity = {.factor = 2}};
  const int64_t rows = expert_capacity(kTokens, 1, {2.0}, 8);
  report("gpu/expert_choice", [&] {
    return faster(short_times([=] { route(logits, choice); },
                              [=] { at::topk(at::softmax(logits, -1).t(), rows, 1); }),
                  10, "softmax, topk of each expert; goal for ours: 0.07 ms");
  });
}

/// Bytes per second against a copy of as many.
Row speed(double bytes, double goal, const std::function<void()>& work) {
  const Tensor from =
      at::empty({static_cast<int64_t>(bytes) / 2}, at::device(at::kCUDA).dtype(at::kByte));
  const Tensor to = at::empty_like(from);
  const Times t = short_times(work, [=] { to.copy_(from); });
  return at_least(bytes / t.ours / 1e9, bytes / t.peer / 1e9, "GB/s", goal,
                  "bytes read and written; baseline: a copy of as many");
}

void gpu_moves(const Report& report) {
  const Tensor x = gpu_tokens(kTokens);
  const Routing routing = route(at::randn({kTokens, 8}, at::kCUDA), {.k = 2});
  const Tensor rows = gpu_tokens(routing.max_rows());
  const double bytes = static_cast<double>(rows.nbytes() + x.nbytes());
  report("gpu/dispatch", [&] { return speed(bytes, 0.75, [=] { dispatch(x, routing); }); });
  report("gpu/combine", [&] { return speed(bytes, 0.85, [=] { combine(rows, routing); }); });
}

/// Our layer against another way to compute it.
using Against = Times (*)(const GpuLayer& peer, const EagerLayer& layer, const Tensor& x);

Times forward_against(const GpuLayer& peer, const EagerLayer& layer, const Tensor& x) {
  return alternate(gpu_forward(gpu_ours, layer, x), gpu_forward(peer, layer, x));
}
Times train_against(const GpuLayer& peer, const EagerLayer& layer, const Tensor& x) {
  return alternate(gpu_train(gpu_ours, layer, x), gpu_train(peer, layer, x));
}

void gpu_against_eager(const Report& report, const std::string& name, Against against,
                       const EagerLayer& layer, const Tensor& x) {
  report(fmt::format("gpu/layer_{}", name), [&] {
    return faster(against(composed_layer, layer, x), 1.4,
                  "sort, index_select, _grouped_mm, bias, GELU, index_add");
  });
  report(fmt::format("gpu/{}_vs_sorted_loop", name == "forward" ? "layer" : name), [&] {
    return faster(against(sorted_loop, layer, x), 1.4,
                  "gather, a GEMM per expert after reading its count, index_add");
  });
}

void gpu_layers(const Report& report) {
  const EagerLayer layer = gpu_layer(8, 2), dense = gpu_layer(1, 1), one = gpu_layer(8, 1);
  const Tensor x = gpu_tokens(kTokens), rows = gpu_tokens(2 * kTokens);
  report("gpu/layer_vs_dense", [&] {
    return at_most(
        alternate(gpu_forward(gpu_ours, layer, x), gpu_forward(fused_dense, dense, rows)), 1.60,
        "baseline: one dense MLP over the same number of rows, bias and GELU fused");
  });
  gpu_against_eager(report, "forward", forward_against, layer, x);
  report("gpu/top1_vs_top2", [&] {
    return at_most(alternate(gpu_forward(gpu_ours, one, x), gpu_forward(gpu_ours, layer, x)), 0.53,
                   "ours: top-1, baseline: our top-2");
  });
}

void gpu_training(const Report& report) {
  const EagerLayer layer = gpu_layer(8, 2, true), dense = gpu_layer(1, 1, true);
  const Tensor x = gpu_tokens(kTokens, true), rows = gpu_tokens(2 * kTokens, true);
  report("gpu/train_vs_dense", [&] {
    return at_most(alternate(gpu_train(gpu_ours, layer, x), gpu_train(dense_mlp, dense, rows)),
                   1.20, "baseline: one dense MLP over the same number of rows");
  });
  gpu_against_eager(report, "train", train_against, layer, x);
}

void gpu_experts(const Report& report) {
  const Tensor x = gpu_tokens(kTokens);
  const auto compare = [&](int64_t many, int64_t few, double goal) {
    report(fmt::format("gpu/experts_{}_to_{}", few, many), [&] {
      const EagerLayer a = gpu_layer(many, 1), b = gpu_layer(few, 1);
      return at_most(alternate(gpu_forward(gpu_ours, a, x), gpu_forward(gpu_ours, b, x)), goal,
                     fmt::format("ours: {} experts, baseline: {}", many, few));
    });
  };
  compare(64, 1, 1.20);
  compare(256, 64, 1.45);
}

/// The experts alone, one of them with half of all rows against all with as many.
void gpu_skew(const Report& report) {
  const EagerLayer layer = gpu_layer(8, 2);
  const Tensor rows = gpu_tokens(2 * kTokens);
  const auto experts = [&](const std::array<int64_t, 8>& parts) {
    std::vector<int32_t> starts = {0};
    for (const int64_t part : parts) {
      starts.push_back(starts.back() + static_cast<int32_t>(part * (2 * kTokens / 112)));
    }
    starts.back() = static_cast<int32_t>(2 * kTokens);
    const Tensor offsets = torch::tensor(starts, at::kInt).to(at::kCUDA);
    return until_done([=] {
      grouped_mlp(rows, offsets, {layer.w1, layer.b1, layer.w2, layer.b2}, Activation::gelu_tanh);
    });
  };
  report("gpu/skew", [&] {
    return at_most(
        alternate(experts({56, 8, 8, 8, 8, 8, 8, 8}), experts({14, 14, 14, 14, 14, 14, 14, 14})),
        1.05, "experts only; ours: one has half of the rows, baseline: all have as many");
  });
}

void gpu_tokens_scale(const Report& report) {
  report("gpu/tokens_33k_to_591k", [&] {
    const EagerLayer layer = gpu_layer(8, 2);
    const Tensor few = gpu_tokens(33'280), many = gpu_tokens(590'848);
    Times t = alternate(gpu_forward(gpu_ours, layer, many), gpu_forward(gpu_ours, layer, few));
    t.ours *= static_cast<double>(few.size(0)) / static_cast<double>(many.size(0));
    return at_most(t, 1.08, "ours: time of 590848 tokens as for 33280, baseline: time of these");
  });
}

Row pruned_half() {
  const std::vector<int64_t> kept = {0, 2, 5, 7};
  const EagerLayer whole = gpu_layer(8, 2), pruned = whole.pruned(kept);
  const Tensor x = gpu_tokens(kTokens);
  const Tensor logits = at::mm(x, whole.router).to(at::kFloat);
  const double fraction =
      route(logits, {.k = 2, .kept = kept}).offsets[4].item<double>() / (2.0 * kTokens);
  const GpuLayer kept_only = [kept](const EagerLayer& layer, const Tensor& tokens) {
    return route_and_compute(layer, tokens, kept);
  };
  Times t = alternate(gpu_forward(kept_only, pruned, x), gpu_forward(gpu_ours, whole, x));
  t.peer *= fraction;
  return at_most(
      t, 1.08,
      fmt::format("ours: 4 of 8 experts, baseline: the unpruned layer's time x {:.3f}, the "
                  "fraction of rows that is left",
                  fraction));
}

/// Runs whose output or gradients differ from the first in any bit.
Row differing_runs() {
  constexpr int kRuns = 100;
  const EagerLayer layer = gpu_layer(8, 2, true);
  const Tensor x = gpu_tokens(8'320, true), gradient = gpu_tokens(8'320);
  std::vector<Tensor> first;
  int differing = 0;
  for (int run = 0; run < kRuns; ++run) {
    for (const Tensor& parameter : layer.parameters()) parameter.mutable_grad() = Tensor();
    x.mutable_grad() = Tensor();
    const Tensor y = gpu_ours(layer, x);
    y.backward(gradient);
    std::vector<Tensor> found = {y.detach(), x.grad()};
    for (const Tensor& parameter : layer.parameters()) found.push_back(parameter.grad());
    if (first.empty()) first = found;
    bool same = true;
    for (size_t i = 0; i < found.size(); ++i) same = same && torch::equal(found[i], first[i]);
    differing += same ? 0 : 1;
  }
  const auto count = static_cast<double>(differing);
  const auto what = fmt::format("runs of {} whose output or gradients differ in a bit", kRuns);
  return {count, 0, "", count, {}, 0, what};
}

}  // namespace

std::string operators_left_out() {
  if (!torch::cuda::is_available()) return "gpu rows left out: no GPU";
  return has_cuda_operators() ? "" : "gpu rows left out: this build has no operators for a GPU";
}

void bench_operators_gpu(const Report& report) {
  if (!operators_left_out().empty()) return;
  at::manual_seed(1);
  for (const auto rows : {gpu_routing, gpu_moves, gpu_layers, gpu_training, gpu_experts, gpu_skew,
                          gpu_tokens_scale, gpu_small_batch, gpu_memory}) {
    report.section("gpu/", [&] { rows(report); });
  }
  report("gpu/pruned_half", pruned_half);
  report("gpu/differing_runs", differing_runs);
}

}  // namespace moesaic::bench
