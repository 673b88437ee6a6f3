// SPDX-License-Identifier: Apache-2.0
// A step of each mode of the patch-level mixture at the sizes of the pMoE paper's section 5.1, on
// one thread, as `moesaic reproduce` makes it beside other runs. The patches are images of which as
// many pixels are 0 as of MNIST's digits.
#include <torch/torch.h>

#include <vector>

#include "bench.h"
#include "moesaic/base/error.h"
#include "moesaic/ops/patch_sgd.h"
#include "one_thread.h"

namespace moesaic::bench {
namespace {

using at::Tensor;

constexpr int64_t kSamples = 300, kPatches = 16, kSide = 28, kPixels = kSide * kSide;
constexpr int64_t kPatchBatch = 20, kEpochs = 4, kSteps = kEpochs * kSamples / kPatchBatch;
constexpr double kPatchRate = 0.2;

/// Images with a box of 20 x 20 pixels, of which 0.37 are not 0: 0.19 of all.
Tensor digit_like() {
  constexpr int64_t kBox = 20;
  constexpr double kInk = 0.37;
  Tensor images = at::zeros({kSamples * kPatches, kSide, kSide});
  const Tensor box = images.narrow(1, 4, kBox).narrow(2, 4, kBox);
  const Tensor drawn = at::rand(box.sizes());
  box.copy_(at::rand(box.sizes()).lt(kInk) * drawn);
  return images.view({kSamples, kPatches, kPixels});
}

/// What a step takes. Routers that were trained before are in router_Kd, not among the weights.
struct Mode {
  PatchWeights weights;
  PatchSgdOptions options;
  Tensor x_Nnd, label_N, routed_NKl, router_Kd;
};

Mode mode_of(int64_t experts, int64_t hidden) {
  return {{{}, at::randn({experts, kPixels, hidden}) * 0.1, at::randn({experts, hidden, 1})},
          {.divisor = kPatches, .expert_lr = kPatchRate, .router_lr = kPatchRate},
          digit_like(),
          at::arange(kSamples).remainder(2),
          {},
          {}};
}

/// Returns f [B] of a batch from its patches [B, n, d].
using EagerOutput = Tensor (*)(const Mode& mode, const Tensor& x_Bnd, const Tensor& router_Kd,
                               const Tensor& neurons_Kdh);

Tensor cnn_output(const Mode& mode, const Tensor& x_Bnd, const Tensor&, const Tensor& neurons_1dh) {
  const Tensor hidden = x_Bnd.matmul(neurons_1dh[0]).relu();
  return hidden.matmul(mode.weights.outputs_Kho[0]).squeeze(2).sum(1) / mode.options.divisor;
}

/// The patches that each expert selects are gathered, with the routers as they are.
Tensor separate_output(const Mode& mode, const Tensor& x_Bnd, const Tensor& router_Kd,
                       const Tensor& neurons_Kdh) {
  const int64_t examples = x_Bnd.size(0), experts = router_Kd.size(0);
  const Tensor place_BlK = std::get<1>(x_Bnd.matmul(router_Kd.t()).topk(mode.options.selected, 1));
  const Tensor place_KBl = place_BlK.permute({2, 0, 1}).contiguous();
  const Tensor row = place_KBl + at::arange(examples).view({1, -1, 1}) * kPatches;
  const Tensor x = x_Bnd.flatten(0, 1).index_select(0, row.flatten()).view({experts, -1, kPixels});
  const Tensor y = x.bmm(neurons_Kdh).relu().bmm(mode.weights.outputs_Kho);
  return y.view({experts, examples, -1}).sum(2).sum(0) / mode.options.divisor;
}

/// All experts see all patches, with a gate of 0 where they did not select one: on a CPU this takes
/// less time than to gather the patches of each expert.
Tensor joint_output(const Mode& mode, const Tensor& x_Bnd, const Tensor& router_Kd,
                    const Tensor& neurons_Kdh) {
  const int64_t experts = router_Kd.size(0);
  const auto [value, place] = x_Bnd.matmul(router_Kd.t()).topk(mode.options.selected, 1);
  const Tensor gate_BnK =
      at::zeros({x_Bnd.size(0), kPatches, experts}).scatter(1, place, value.softmax(1));
  const Tensor all = neurons_Kdh.transpose(0, 1).flatten(1);
  const Tensor hidden = x_Bnd.matmul(all).relu().view({x_Bnd.size(0), kPatches, experts, -1});
  const Tensor y_BnK = (hidden * mode.weights.outputs_Kho.squeeze(2)).sum(3);
  return (gate_BnK * y_BnK).sum({1, 2}) / mode.options.divisor;
}

/// Makes steps by autograd.
class EagerPatchSteps {
 public:
  EagerPatchSteps(const Mode& mode, EagerOutput output) : mode_(mode), output_(output) {
    neurons_ = mode.weights.neurons_Kdh.clone().requires_grad_(true);
    moves_router_ = mode.weights.router_Kd.defined();
    router_ = moves_router_ ? mode.weights.router_Kd.clone().requires_grad_(true) : mode.router_Kd;
    y_N_ = (1 - 2 * mode.label_N).to(at::kFloat);
  }

  void operator()(const std::vector<std::vector<int64_t>>& batches) {
    for (const std::vector<int64_t>& batch : batches) {
      const Tensor ids = torch::tensor(batch, torch::kLong);
      const Tensor f = output_(mode_, mode_.x_Nnd.index_select(0, ids), router_, neurons_);
      const Tensor loss = at::softplus(-y_N_.index_select(0, ids) * f).mean();
      loss.backward();
      descend(neurons_);
      if (moves_router_) descend(router_);
    }
  }

  const Tensor& neurons() const { return neurons_; }

 private:
  static void descend(const Tensor& moved) {
    const torch::NoGradGuard no_grad;
    moved.sub_(moved.grad(), kPatchRate);
    moved.mutable_grad().reset();
  }

  const Mode& mode_;
  EagerOutput output_;
  bool moves_router_;
  Tensor y_N_, router_, neurons_;
};

Row patches_against(Mode mode, EagerOutput output, const Contest& contest) {
  EagerPatchSteps peer(mode, output);
  PatchWeights ours = mode.weights;
  ours.neurons_Kdh = ours.neurons_Kdh.clone();
  if (ours.router_Kd.defined()) ours.router_Kd = ours.router_Kd.clone();
  const PatchExamples examples(mode.x_Nnd, mode.label_N, mode.routed_NKl);
  std::vector<std::vector<int64_t>> batches(kSteps);
  for (int64_t i = 0; i < kEpochs * kSamples; ++i) {
    batches[static_cast<size_t>(i % kSteps)].push_back(i % kSamples);
  }
  const auto own = [&] { patch_sgd_steps(ours, examples, batches, mode.options); };
  own();
  peer(batches);
  const double off = (ours.neurons_Kdh - peer.neurons().detach()).abs().max().item<double>();
  if (!(off < 1e-3)) fail("bench pmoe: what the peer trains differs by {:.3g}", off);
  const Times times = alternate(own, [&] { peer(batches); });
  return row_of(contest, {times.ours / kSteps, times.peer / kSteps});
}

}  // namespace

void bench_pmoe(const Report& report) {
  const OneThread one;
  constexpr double kGoal = 5.0;
  report("cpu/step_cnn", [&] {
    return patches_against(mode_of(1, 40), cnn_output, {kGoal, "autograd, all patches"});
  });
  Mode separate = mode_of(2, 20);
  separate.options.selected = 2;
  separate.router_Kd = at::randn({2, kPixels});
  separate.routed_NKl =
      select_patches(separate.x_Nnd, separate.router_Kd, separate.options.selected);
  report("cpu/step_separate", [&] {
    return patches_against(separate, separate_output,
                           {kGoal, "autograd, selected patches gathered"});
  });
  Mode joint = mode_of(8, 5);
  joint.weights.neurons_Kdh.mul_(0.1);
  joint.weights.router_Kd = at::randn({8, kPixels}) * 1e-4;
  joint.options.selected = 6;
  report("cpu/step_joint", [&] {
    return patches_against(joint, joint_output, {kGoal, "autograd, gates of 0 where not selected"});
  });
}

}  // namespace moesaic::bench
