// SPDX-License-Identifier: Apache-2.0
// Whole networks: a training step and inference of V-MoE.
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include "bench.h"
#include "eager_vmoe.h"
#include "moesaic/base/error.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/train/optimizer.h"

namespace moesaic::bench {
namespace {

using at::Tensor;

struct Case {
  const char* name;
  VMoEConfig config;
  int64_t batch;
};

VMoEConfig small() {
  VMoEConfig c;
  c.image_size = 32;
  c.channels = 3;
  c.patch_size = 4;
  c.hidden_size = 192;
  c.encoder.num_layers = 6;
  c.encoder.num_heads = 3;
  c.encoder.mlp_dim = 768;
  c.encoder.moe.layers = {1, 3, 5};
  c.encoder.moe.num_experts = 8;
  return c;
}

/// The reference's S/32 with experts in the last two odd blocks.
VMoEConfig s32() {
  VMoEConfig c;
  c.image_size = 224;
  c.channels = 3;
  c.patch_size = 32;
  c.hidden_size = 512;
  c.classes = 1000;
  c.encoder.num_layers = 8;
  c.encoder.num_heads = 8;
  c.encoder.mlp_dim = 2048;
  c.encoder.moe.layers = {5, 7};
  c.encoder.moe.num_experts = 8;
  return c;
}

struct Data {
  Tensor images, labels;
};

Data data_of(const VMoEConfig& config, int64_t batch) {
  return {at::randn({batch, config.channels, config.image_size.height, config.image_size.width}),
          at::randint(config.classes, {batch}, at::kLong)};
}

/// Heads of zeros and untrained routers would hide a difference.
std::shared_ptr<VMoE> network(const VMoEConfig& config) {
  auto model = std::make_shared<VMoE>(config, 1);
  const torch::NoGradGuard no_grad;
  model->head->weight.normal_(0, 0.05);
  return model;
}

/// What is timed against each other has to compute the same.
void check_equal(const Tensor& ours, const Tensor& peer) {
  const double off = (ours - peer).abs().max().item<double>();
  if (!(off < 1e-3)) fail("bench vmoe: the peer's logits differ by {:.3g}", off);
}

constexpr double kRate = 1e-3, kMomentum = 0.9;

std::function<void()> our_step(const std::shared_ptr<VMoE>& model, const Data& data) {
  Optimizer::NamedParameters parameters;
  for (const auto& item : model->named_parameters()) {
    parameters.emplace_back(item.key(), item.value());
  }
  const auto optimizer = std::make_shared<Optimizer>(
      parameters, OptimizerConfig{.name = "sgd", .momentum = kMomentum});
  return [=] {
    at::cross_entropy_loss(model->forward(data.images).logits, data.labels).backward();
    optimizer->step(kRate);
    optimizer->zero_grad();
  };
}

std::function<void()> eager_step(const std::shared_ptr<EagerVMoE>& model, const Data& data) {
  const auto optimizer = std::make_shared<torch::optim::SGD>(
      model->parameters(), torch::optim::SGDOptions(kRate).momentum(kMomentum));
  return [=] {
    at::cross_entropy_loss(model->forward(data.images), data.labels).backward();
    optimizer->step();
    optimizer->zero_grad();
  };
}

/// Against the better of two ways to write the experts in ATen, all under a precision.
Row against_both(const std::string& name, const std::string& precision,
                 const std::function<void()>& ours, const std::function<void()>& masked,
                 const std::function<void()>& sorted) {
  const auto in_precision = [&](const std::function<void()>& work) -> std::function<void()> {
    return [=] {
      const Autocast autocast(precision, at::kCPU);
      work();
    };
  };
  const auto [times, fastest] =
      alternate_with_fastest(in_precision(ours), {in_precision(masked), in_precision(sorted)});
  const bool half = precision != "float32";
  return {name + (half ? "_bf16" : ""),
          times.ours * 1e3,
          times.peer * 1e3,
          "ms",
          times.peer / times.ours,
          half ? 1.3 : 1.2,
          {},
          fmt::format("plain ATen{}, {}", half ? " under autocast" : "",
                      fastest == 0 ? "masked loop over the experts" : "loop over sorted slices")};
}

void bench_network(const Case& c, const Report& report) {
  at::manual_seed(1);
  const Data data = data_of(c.config, c.batch);
  const auto model = network(c.config);
  using Loop = EagerVMoE::Loop;
  const auto masked = std::make_shared<EagerVMoE>(*model, Loop::masked);
  const auto sorted = std::make_shared<EagerVMoE>(*model, Loop::sorted);
  const auto inference = [&](const auto& forward) {
    return [=] {
      const torch::NoGradGuard no_grad;
      return forward(data.images);
    };
  };
  const auto ours = inference([=](const Tensor& x) { return model->forward(x).logits; });
  const auto by_mask = inference([=](const Tensor& x) { return masked->forward(x); });
  const auto by_sort = inference([=](const Tensor& x) { return sorted->forward(x); });
  check_equal(ours(), by_mask());
  check_equal(ours(), by_sort());
  for (const char* precision : {"float32", "bfloat16"}) {
    report(against_both(fmt::format("cpu/train_{}", c.name), precision, our_step(model, data),
                        eager_step(masked, data), eager_step(sorted, data)));
  }
  model->eval();
  for (const char* precision : {"float32", "bfloat16"}) {
    report(against_both(
        fmt::format("cpu/inference_{}", c.name), precision, [&] { ours(); }, [&] { by_mask(); },
        [&] { by_sort(); }));
  }
}

}  // namespace

void bench_vmoe(const Report& report) {
  touch_memory();
  bind_threads();
  bench_network({"small", small(), 32}, report);
  bench_network({"s32", s32(), 8}, report);
}

}  // namespace moesaic::bench
