// SPDX-License-Identifier: Apache-2.0
// Whole networks: a training step and inference of V-MoE.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "bench.h"
#include "eager_vmoe.h"
#include "moesaic/base/error.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/ops/device.h"
#include "moesaic/train/gradient_phase.h"

namespace moesaic::bench {
namespace {

using at::Tensor;

struct Case {
  const char* name;
  VMoEConfig config;
  int64_t batch;
};

/// A V-MoE with 8 experts in these blocks, of which the last ends it. Heads are 64 wide and MLPs
/// four times as wide as tokens.
VMoEConfig config_of(int64_t image_size, int64_t patch_size, int64_t width,
                     const std::vector<int64_t>& moe_layers) {
  return {.image_size = image_size,
          .channels = 3,
          .patch_size = patch_size,
          .hidden_size = width,
          .encoder = {.num_layers = moe_layers.back() + 1,
                      .num_heads = width / 64,
                      .mlp_dim = 4 * width,
                      .moe = {.layers = moe_layers, .num_experts = 8}}};
}

struct Data {
  Tensor images, labels;
};

Data data_of(const VMoEConfig& config, int64_t batch, at::Device device) {
  return {at::randn({batch, config.channels, config.image_size.height, config.image_size.width})
              .to(device),
          at::randint(config.num_classes, {batch}, at::kLong).to(device)};
}

/// Heads of zeros and untrained routers would hide a difference.
std::shared_ptr<VMoE> network(const VMoEConfig& config) {
  auto model = std::make_shared<VMoE>(config, 1);
  const torch::NoGradGuard no_grad;
  model->head->weight.normal_(0, 0.05);
  return model;
}

/// Throws unless both compute the same. A few images may differ: where two experts of a token tie
/// within rounding, the two networks may choose differently.
void check_equal(const Tensor& ours, const Tensor& peer) {
  constexpr double kTolerance = 1e-3, kLeastShare = 0.95;
  const Tensor off_N = (ours - peer).abs().amax(1);
  const double share = off_N.lt(kTolerance).to(at::kDouble).mean().item<double>();
  if (share >= kLeastShare) return;
  fail("bench vmoe: the baseline's logits agree within {} on {:.1f} % of the images only",
       kTolerance, 100 * share);
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

/// Our network and four ways to write its experts in ATen.
struct Networks {
  std::shared_ptr<VMoE> ours;
  std::vector<std::shared_ptr<EagerVMoE>> peers;
};

Networks networks(const VMoEConfig& config, at::Device device) {
  using Loop = EagerVMoE::Loop;
  Networks all{network(config), {}};
  all.ours->to(device);
  for (const bool turned : {false, true}) {
    for (const Loop loop : {Loop::masked, Loop::sorted}) {
      all.peers.push_back(std::make_shared<EagerVMoE>(*all.ours, loop, turned));
    }
  }
  return all;
}

/// Against the fastest of the baselines, all under a precision.
Row against_all(const std::string& precision, at::Device device, const std::function<void()>& ours,
                const std::vector<std::function<void()>>& peers) {
  const auto in_precision = [&](const std::function<void()>& work) -> std::function<void()> {
    return [=] {
      const Autocast autocast(precision, device);
      work();
      if (device.is_cuda()) torch::cuda::synchronize();
    };
  };
  std::vector<std::function<void()>> others;
  for (const auto& peer : peers) others.push_back(in_precision(peer));
  const auto [times, fastest] = alternate_with_fastest(in_precision(ours), others);
  const bool half = precision != "float32";
  const char* const loop =
      fastest % 2 == 0 ? "masked loop over the experts" : "loop over sorted slices";
  return faster(times, half ? 1.3 : 1.2,
                fmt::format("plain ATen{}, {}{}", half ? " under autocast" : "", loop,
                            fastest > 1 ? ", weights turned over" : ""));
}

void bench_network(const Case& c, at::Device device, const Report& report) {
  at::manual_seed(1);
  const BackendScope exact(device, {});  // On a GPU convolutions round to TF32 by default.
  const Data data = data_of(c.config, c.batch, device);
  const Networks all = networks(c.config, device);
  const auto inference = [&](const auto& forward) {
    return [=] {
      const torch::NoGradGuard no_grad;
      return forward(data.images);
    };
  };
  const auto logits = inference([&all](const Tensor& x) { return all.ours->forward(x).logits; });
  std::vector<std::function<void()>> steps, passes;
  for (const auto& peer : all.peers) {
    const auto peers_logits = inference([peer](const Tensor& x) { return peer->forward(x); });
    check_equal(logits(), peers_logits());
    steps.push_back(eager_step(peer, data));
    passes.push_back([=] { peers_logits(); });
  }
  const auto name_of = [&](const char* kind, const std::string& precision) {
    return fmt::format("{}/{}{}{}", device.is_cuda() ? "gpu" : "cpu", kind, c.name,
                       precision == "float32" ? "" : "_bf16");
  };
  for (const char* precision : {"float32", "bfloat16"}) {
    report(name_of("train_", precision),
           [&] { return against_all(precision, device, our_step(all.ours, data), steps); });
  }
  all.ours->eval();
  for (const char* precision : {"float32", "bfloat16"}) {
    report(name_of("inference_", precision), [&] {
      return against_all(
          precision, device, [&] { logits(); }, passes);
    });
  }
}

}  // namespace

void bench_vmoe(const Report& report) {
  touch_memory();
  bind_threads();
  const auto bench = [&](const Case& c, at::Device device) {
    report.section(device.is_cuda() ? "gpu/" : "cpu/", [&] { bench_network(c, device, report); });
  };
  const VMoEConfig small = config_of(32, 4, 192, {1, 3, 5});
  // The reference's S/32 with experts in the last two odd blocks.
  VMoEConfig s32 = config_of(224, 32, 512, {5, 7});
  s32.num_classes = 1000;
  bench({"small", small, 32}, at::kCPU);
  bench({"s32", s32, 8}, at::kCPU);
  if (!operators_left_out().empty()) return;  // No GPU, or no operators for one.
  bench({"small", small, 1024}, at::kCUDA);
  bench({"s32", s32, 256}, at::kCUDA);
}

}  // namespace moesaic::bench
