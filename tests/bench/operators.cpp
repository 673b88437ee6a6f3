// SPDX-License-Identifier: Apache-2.0
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/CPUBlas.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include "bench.h"
#include "eager_moe.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/device.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/route.h"
#include "moesaic/ops/routed_mlp.h"
#include "moesaic/report/throughput.h"

namespace moesaic::bench {
namespace {

using at::Tensor;

ExpertWeights experts_of(const EagerLayer& layer) {
  return {layer.w1, layer.b1, layer.w2, layer.b2};
}

Tensor compute(const EagerLayer& layer, const ExpertWeights& experts, const Tensor& x_Td,
               const std::vector<int64_t>& kept = {}) {
  const Tensor logits = at::mm(x_Td.to(layer.router.scalar_type()), layer.router);
  const Routing routing = route(logits, {.k = layer.k, .kept = kept});
  return routed_mlp(x_Td, routing, experts, Activation::gelu_tanh);
}

Tensor our_layer(const EagerLayer& layer, const Tensor& x_Td) {
  return compute(layer, experts_of(layer), x_Td);
}

using Layer = std::function<Tensor(const EagerLayer&, const Tensor&)>;

std::function<void()> forward(const Layer& f, const EagerLayer& layer, const Tensor& x) {
  return [=] {
    const torch::NoGradGuard no_grad;
    f(layer, x);
  };
}

std::function<void()> infer(const EagerLayer& layer, const ExpertWeights& packed, const Tensor& x,
                            const std::vector<int64_t>& kept = {}) {
  return [=] {
    const torch::NoGradGuard no_grad;
    compute(layer, packed, x, kept);
  };
}

/// Our layer in inference, with weights that are packed once, as nn::MlpExperts keeps them.
std::function<void()> infer(const EagerLayer& layer, const Tensor& x,
                            const std::vector<int64_t>& kept = {}) {
  return infer(layer, pack_experts(experts_of(layer)), x, kept);
}

std::function<void()> train(const Layer& f, const EagerLayer& layer, const Tensor& x) {
  const Tensor gradient = at::ones_like(x) * 0.1;
  return [=] {
    for (const Tensor& parameter : layer.parameters()) parameter.mutable_grad() = Tensor();
    x.mutable_grad() = Tensor();
    f(layer, x).backward(gradient);
  };
}

struct Shape {
  const char* name;
  int64_t width, hidden, experts, tokens;
};

EagerLayer layer_of(const Shape& shape) {
  at::manual_seed(1);
  return make_layer(shape.width, shape.hidden, shape.experts, 2);
}

using Run = std::function<void()> (*)(const Layer&, const EagerLayer&, const Tensor&);

/// Against the fastest of the ways to write the layer in ATen: two loops, two orders of weights.
Row against_loops(Run run, const EagerLayer& layer, const Tensor& x, double at_least) {
  const bool trains = layer.w1.requires_grad();
  const EagerLayer turned = trains ? layer.turned_over().trainable() : layer.turned_over();
  const Race race =
      alternate_with_fastest(trains ? run(our_layer, layer, x) : infer(layer, x),
                             {run(masked_loop, layer, x), run(sorted_loop, layer, x),
                              run(masked_loop, turned, x), run(sorted_loop, turned, x)});
  const char* const loops[] = {"masked loop over the experts", "loop over sorted slices",
                               "masked loop over the experts, weights [E, m, d]",
                               "loop over sorted slices, weights [E, m, d]"};
  return faster(race.times, at_least, loops[race.fastest]);
}

/// Against one MLP over the same number of rows, with weights in the better of two orders.
Row against_dense(Run run, const EagerLayer& layer, const Tensor& x, double at_least) {
  const bool trains = layer.w1.requires_grad();
  const auto first = [](const Tensor& w) { return w.detach().slice(0, 0, 1).clone(); };
  EagerLayer dense{layer.router,    first(layer.w1), first(layer.b1),
                   first(layer.w2), first(layer.b2), 1};
  EagerLayer turned = dense.turned_over();
  if (trains) dense = dense.trainable(), turned = turned.trainable();
  const Tensor rows = at::cat({x.detach(), x.detach()}).requires_grad_(trains);
  const Race race =
      alternate_with_fastest(trains ? run(our_layer, layer, x) : infer(layer, x),
                             {run(dense_mlp, dense, rows), run(dense_mlp, turned, rows)});
  return faster(race.times, at_least, "one dense MLP over the same number of rows");
}

void bench_routing(const Report& report) {
  at::manual_seed(1);
  const Tensor logits = at::randn({8320, 8});
  const RouteOptions options{.k = 2, .capacity = {.factor = 1.05}};
  const int64_t capacity = expert_capacity(8320, 2, {1.05}, 8);
  const torch::NoGradGuard no_grad;
  report("cpu/routing", [&] {
    return faster(
        alternate([&] { route(logits, options); }, [&] { eager_routing(logits, 2, capacity); }), 8,
        "softmax, topk, one-hot cumsum, sort, bincount");
  });
}

void bench_priority(const Report& report) {
  at::manual_seed(1);
  const Tensor logits = at::randn({8320, 8});
  const torch::NoGradGuard no_grad;
  const int64_t capacity = expert_capacity(8320, 2, {1.05}, 8);
  const RouteOptions priority{.k = 2, .capacity = {.factor = 1.05, .batch_priority = true}};
  report("cpu/route_batch_priority", [&] {
    return faster(alternate([&] { route(logits, priority); },
                            [&] {
                              const Tensor best = std::get<0>(logits.max(1));
                              const Tensor order = best.argsort(-1, true);
                              eager_routing(logits.index_select(0, order), 2, capacity);
                            }),
                  {}, "sort by the best gate, then as routing");
  });
}

void bench_moves(const Report& report) {
  at::manual_seed(1);
  const Tensor x = at::randn({8320, 768});
  const torch::NoGradGuard no_grad;
  const Routing routing = route(at::randn({8320, 8}), {.k = 2});
  const Tensor token = routing.token.to(at::kLong), rows = dispatch(x, routing);
  report("cpu/dispatch", [&] {
    return faster(alternate([&] { dispatch(x, routing); }, [&] { x.index_select(0, token); }), {},
                  "index_select into fresh memory; ours into a kept block");
  });
  report("cpu/combine", [&] {
    return faster(
        alternate(
            [&] { combine(rows, routing); },
            [&] { at::zeros_like(x).index_add_(0, token, rows * routing.gate.unsqueeze(1)); }),
        {}, "product with the gates, index_add, fresh memory; ours: kept block");
  });
}

struct LayerGoals {
  Shape shape;
  double forward, train;  // 0: not timed.
};

void bench_layers(const Report& report) {
  for (const auto& [shape, forward_goal, train_goal] :
       {LayerGoals{{"d768", 768, 3072, 8, 520}, 1.35, 2.5},
        LayerGoals{{"d192", 192, 768, 32, 4160}, 1.5, 2.0},
        LayerGoals{{"d192_small", 192, 768, 32, 520}, 2.2, 6.0}}) {
    const EagerLayer layer = layer_of(shape);
    const Tensor x = at::randn({shape.tokens, shape.width});
    report(fmt::format("cpu/layer_forward_{}", shape.name),
           [&] { return against_loops(forward, layer, x, forward_goal); });
    report(fmt::format("cpu/layer_train_{}", shape.name), [&] {
      return against_loops(train, layer.trainable(), x.clone().requires_grad_(), train_goal);
    });
  }
}

/// The raw rate of oneDNN's micro-kernel: as many products of the shapes that the layer has, on all
/// threads, with operands that lie packed in each thread's cache.
template <class Scalar>
std::function<void()> micro_kernel(const Shape& shape) {
  constexpr int64_t kRows = 128, kColumns = 128, kDepth = 768;
  const int64_t rows = 2 * shape.tokens;
  const int64_t count = 2 * rows * shape.width * shape.hidden / (kRows * kColumns * kDepth);
  return [=] {
    const int64_t threads = at::get_num_threads();
    at::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
      const at::ScalarType type = c10::CppTypeToScalarType<Scalar>::value;
      const Tensor a = at::ones({kRows, kDepth}, type), b = at::ones({kDepth, kColumns}, type);
      const Tensor c = at::empty({kRows, kColumns}, at::kFloat);
      for (int64_t i = count * first / threads; i < count * last / threads; ++i) {
        at::native::cpublas::brgemm(kRows, kColumns, kDepth, kDepth, kColumns, kColumns, false,
                                    a.const_data_ptr<Scalar>(), b.const_data_ptr<Scalar>(),
                                    c.mutable_data_ptr<float>(), sizeof(Scalar) == 2);
      }
      at::native::cpublas::brgemm_release();
    });
  };
}

Row against_micro_kernel(const EagerLayer& layer, const Tensor& x, const std::function<void()>& raw,
                         double at_least) {
  return faster(alternate(infer(layer, x), raw), at_least,
                "oneDNN's micro-kernel, operands in cache; ratio: fraction of its rate");
}

Row against_unpacked(const EagerLayer& layer, const Tensor& x, double at_least) {
  return faster(alternate(infer(layer, x), forward(our_layer, layer, x)), at_least,
                "our own call with weights that are not packed");
}

void bench_dense(const Report& report) {
  const Shape shape{"d768", 768, 3072, 8, 520};
  const EagerLayer layer = layer_of(shape);
  const Tensor x = at::randn({shape.tokens, shape.width});
  report("cpu/layer_vs_dense", [&] { return against_dense(forward, layer, x, 1.0); });
  report("cpu/train_vs_dense",
         [&] { return against_dense(train, layer.trainable(), x.clone().requires_grad_(), 1.0); });
  report("cpu/packed_d768", [&] { return against_unpacked(layer, x, 1.0); });
  report("cpu/fraction_of_brgemm",
         [&] { return against_micro_kernel(layer, x, micro_kernel<float>(shape), 0.8); });
}

bool has_bfloat16_products() {
  try {
    micro_kernel<c10::BFloat16>({"", 768, 128, 1, 1})();
    return true;
  } catch (const std::exception&) {  // LibTorch's, or oneDNN's own.
    return false;
  }
}

void bench_bfloat16(const Report& report) {
  for (const auto& [shape, forward_goal, dense_goal] :
       {LayerGoals{{"_d768", 768, 3072, 8, 520}, 1.5, 0.95},
        LayerGoals{{"_d192", 192, 768, 32, 4160}, 2.5, 0},
        LayerGoals{{"_d192_small", 192, 768, 32, 520}, 5, 0},
        LayerGoals{{"_d768_2080", 768, 3072, 8, 2080}, 1.6, 1.1}}) {
    const EagerLayer layer = layer_of(shape).to(at::kBFloat16);
    const Tensor x = at::randn({shape.tokens, shape.width}).to(at::kBFloat16);
    report(fmt::format("cpu/bf16_forward{}", shape.name),
           [&] { return against_loops(forward, layer, x, forward_goal); });
    if (dense_goal == 0) continue;
    const char* const tokens = shape.tokens == 520 ? "" : "_2080";
    report(fmt::format("cpu/bf16_vs_dense{}", tokens),
           [&] { return against_dense(forward, layer, x, dense_goal); });
  }
  const Shape shape{"d768", 768, 3072, 8, 520};
  const EagerLayer layer = layer_of(shape).to(at::kBFloat16);
  const Tensor x = at::randn({520, 768}).to(at::kBFloat16);
  const Tensor learned = x.clone().requires_grad_();
  report("cpu/bf16_train_d768",
         [&] { return against_loops(train, layer.trainable(), learned, 3); });
  report("cpu/bf16_train_vs_dense",
         [&] { return against_dense(train, layer.trainable(), learned, 0.9); });
  report("cpu/bf16_packed_d768", [&] { return against_unpacked(layer, x, 1.15); });
  if (has_bfloat16_products()) {
    report("cpu/fraction_of_brgemm_bf16", [&] {
      return against_micro_kernel(layer, x, micro_kernel<c10::BFloat16>(shape), 0.55);
    });
  }
}

void bench_int8(const Report& report) {
  if (!has_int8_matmul()) return;
  for (const auto& [shape, suffix] : {std::pair{Shape{"d768", 768, 3072, 8, 520}, ""},
                                      std::pair{Shape{"d192", 192, 768, 32, 4160}, "_d192"}}) {
    const EagerLayer layer = layer_of(shape), half = layer.to(at::kBFloat16);
    const Tensor x = at::randn({shape.tokens, shape.width});
    report(fmt::format("cpu/int8_vs_bf16{}", suffix), [&] {
      return faster(alternate(infer(layer, quantise_experts(experts_of(layer)), x),
                              infer(half, x.to(at::kBFloat16))),
                    1.5, "our own layer in bfloat16");
    });
  }
}

void bench_experts(const Report& report) {
  at::manual_seed(1);
  const EagerLayer many = make_layer(192, 768, 64, 1), one = make_layer(192, 768, 1, 1);
  const Tensor x = at::randn({8320, 192});
  report("cpu/experts_1_to_64", [&] {
    return at_most(alternate(infer(many, x), infer(one, x)), 1.15,
                   "ours: 64 experts, baseline: 1 expert");
  });
}

void bench_pruned(const Report& report) {
  const std::vector<int64_t> kept = {0, 2, 5, 7};
  const EagerLayer whole = layer_of({"d768", 768, 3072, 8, 1040}), pruned = whole.pruned(kept);
  const Tensor x = at::randn({1040, 768});
  const Routing routing = route(at::mm(x, whole.router), RouteOptions{.k = 2, .kept = kept});
  const double fraction = routing.offsets[4].item<double>() / (2.0 * 1040);
  report("cpu/pruned_half", [&] {
    const Times times = alternate(infer(pruned, x, kept), infer(whole, x));
    const double ratio = times.ours / times.peer / fraction;
    const auto what = fmt::format(
        "ours: 4 of 8 experts with {:.1f} % of the rows, baseline: all; ratio: ours / baseline "
        "/ fraction of rows",
        100 * fraction);
    return Row{times.ours * 1e3, times.peer * 1e3, "ms", ratio, {}, 1.05, what};
  });
}

void bench_memory(const Report& report) {
  for (const auto& shape : {Shape{"d768", 768, 3072, 8, 520}, Shape{"d192", 192, 768, 32, 4160},
                            Shape{"d768_large", 768, 3072, 8, 4160}}) {
    const EagerLayer layer = layer_of(shape);
    const Tensor x = at::randn({shape.tokens, shape.width});
    const double output = static_cast<double>(x.nbytes()) / 1e6;
    report(fmt::format("cpu/inference_memory_{}", shape.name), [&] {
      const auto beyond = [&](const Layer& f) {
        return static_cast<double>(peak_tensor_bytes(forward(f, layer, x))) / 1e6 - output;
      };
      const double mine = beyond(our_layer), peer = beyond(sorted_loop);
      const char* const what =
          "beyond weights, input and output; baseline: loop over sorted slices; ratio: ours in MB";
      return Row{mine, peer, "MB", mine, {}, 16, what};
    });
  }
}

}  // namespace

void bench_operators(const Report& report) {
  touch_memory();
  bind_threads();
  bench_routing(report);
  bench_priority(report);
  bench_moves(report);
  bench_layers(report);
  bench_dense(report);
  bench_bfloat16(report);
  bench_int8(report);
  bench_experts(report);
  bench_pruned(report);
  bench_memory(report);
}

}  // namespace moesaic::bench
