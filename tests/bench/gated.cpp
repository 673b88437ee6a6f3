// SPDX-License-Identifier: Apache-2.0
// A step of stochastic gradient descent on the loss L4, with its fresh samples, on one thread, as
// models/gated/recipes/l4.json has it.
#include <torch/torch.h>

#include <vector>

#include "bench.h"
#include "moesaic/base/error.h"
#include "moesaic/data/gated_mixture.h"
#include "moesaic/ops/gated_losses.h"
#include "one_thread.h"

namespace moesaic::bench {
namespace {

using at::Tensor;

constexpr int64_t kL4Batch = 1024, kL4Block = 16;
constexpr double kL4Rate = 0.005;
constexpr L4Weights kWeights;

/// Samples by LibTorch's generator, of the same mixture.
GatedExamples drawn_samples(const GatedMixtureConfig& config, const GatedTruth& truth) {
  const Tensor x = at::randn({kL4Batch, config.width});
  const Tensor outputs = x.mm(truth.a_kd.t());
  const Tensor first = at::rand({kL4Batch}).lt(x.mv(truth.w_kd[0]).sigmoid());
  const Tensor y = at::where(first, outputs.select(1, 0), outputs.select(1, 1));
  return {x, y + config.noise * at::randn({kL4Batch})};
}

struct Transformed {
  Tensor q4, q2;

  Transformed(const Tensor& y, const OutputTransforms& t) {
    const Tensor y2 = y * y;
    q4 = ((y2 + t.beta) * y2 + t.e4) / t.c4;  // alpha = gamma = delta = 0 for the identity.
    q2 = (y2 + t.e2) / t.c2;
  }
};

/// The loss as one writes it down, for autograd.
Tensor eager_l4(const GatedExamples& samples, const Tensor& a, const OutputTransforms& t) {
  const Transformed q(samples.y_N, t);
  const Tensor p = samples.x_Nd.mm(a.t()), m = a.mm(a.t());
  Tensor loss = kWeights.delta / 2.0 * a.square().sum();
  for (int64_t i = 0; i < a.size(0); ++i) {
    const Tensor u = p.select(1, i), n = m[i][i], u2 = u * u;
    loss = loss - kWeights.mu * (q.q4 * (u2 * u2 - 6 * n * u2 + 3 * n * n)).mean() +
           kWeights.lambda * ((q.q2 * (u2 - n)).mean() - 1).square();
    for (int64_t j = 0; j < a.size(0); ++j) {
      if (j == i) continue;
      const Tensor v = p.select(1, j), l = m[j][j], c = m[i][j], v2 = v * v;
      loss = loss + (q.q4 * (u2 * v2 - n * v2 - 4 * u * v * c - l * u2 + n * l + 2 * c * c)).mean();
    }
  }
  return loss;
}

/// The gradient by its formula in products of matrices, for any k.
Tensor closed_form_l4(const GatedExamples& samples, const Tensor& a, const OutputTransforms& t) {
  const Transformed q(samples.y_N, t);
  const Tensor p = samples.x_Nd.mm(a.t()), p2 = p * p, m = a.mm(a.t()), n = m.diagonal();
  const Tensor other = m - n.diag();
  const Tensor q4 = q.q4.unsqueeze(1), q2 = q.q2.unsqueeze(1);
  const Tensor others = 4 * (p * (p2.sum(1, true) - p2 - (n.sum() - n)) - 2 * p.mm(other));
  const Tensor c = q4 * (others - kWeights.mu * 4 * p * (p2 - 3 * n));
  const double each = 1.0 / static_cast<double>(kL4Batch);
  const Tensor of_x = c.t().mm(samples.x_Nd) * each;
  const Tensor fit_x = (q2 * p).t().mm(samples.x_Nd) * each;
  const Tensor pairs = (q4 * p).t().mm(p) * each, mean4 = q.q4.mean(), mean2 = q.q2.mean();
  const Tensor own = pairs.diagonal();
  const Tensor fit = (q2 * p2).mean(0) - n * mean2 - 1;
  const Tensor of_own = kWeights.delta - 4 * kWeights.lambda * fit * mean2 +
                        12 * kWeights.mu * (own - n * mean4) +
                        4 * ((n.sum() - n) * mean4 - (own.sum() - own));
  const Tensor of_others = 8 * (other * mean4 - (pairs - own.diag()));
  return of_x + 4 * kWeights.lambda * fit.unsqueeze(1) * fit_x + of_own.unsqueeze(1) * a +
         of_others.mm(a);
}

Tensor gradient_of(const GatedExamples& samples, const Tensor& a, const OutputTransforms& t) {
  const Tensor leaf = a.detach().requires_grad_(true);
  eager_l4(samples, leaf, t).backward();
  return leaf.grad();
}

void check_l4_gradient(const char* what, const Tensor& ours, const Tensor& peer) {
  const double off = ((ours - peer).abs().max() / peer.abs().max()).item<double>();
  if (!(off < 1e-3)) fail("bench gated: the peer's {} differs by {:.3g} of it", what, off);
}

using L4Peer = Tensor (*)(const GatedExamples&, const Tensor&, const OutputTransforms&);

Row l4_against(L4Peer peer, const Contest& contest) {
  const GatedMixtureConfig config;
  const GatedTruth truth = gated_truth(config);
  const OutputTransforms transforms = output_transforms(Link::identity, config.noise);
  Tensor ours = at::randn({2, config.width});
  ours /= ours.norm(2, {1}, true);
  Tensor theirs = ours.clone();
  const GatedExamples same = gated_examples(config, truth, "train", 0, kL4Batch);
  check_l4_gradient("gradient", l4_loss(same.x_Nd, same.y_N, ours, transforms, kWeights).regressors,
                    peer(same, ours, transforms));
  int64_t made = 0;
  const Times times = alternate(
      [&] {
        const GatedExamples block =
            gated_examples(config, truth, "train", made * kL4Batch, kL4Block * kL4Batch);
        for (int64_t i = 0; i < kL4Block; ++i) {
          ours.sub_(l4_loss(block.x_Nd.narrow(0, i * kL4Batch, kL4Batch),
                            block.y_N.narrow(0, i * kL4Batch, kL4Batch), ours, transforms, kWeights)
                        .regressors,
                    kL4Rate);
        }
        made += kL4Block;
      },
      [&] {
        for (int64_t i = 0; i < kL4Block; ++i) {
          theirs.sub_(peer(drawn_samples(config, truth), theirs, transforms), kL4Rate);
        }
      });
  for (const Tensor* trained : {&ours, &theirs}) {
    if (!trained->isfinite().all().item<bool>()) fail("bench gated: a step diverged");
  }
  return row_of(contest, {times.ours / kL4Block, times.peer / kL4Block});
}

}  // namespace

void bench_gated(const Report& report) {
  const OneThread one;
  report("cpu/l4_step_vs_eager", [&] {
    return l4_against(gradient_of,
                      {25.0, "autograd of the loss; samples of both by their own generators"});
  });
  report("cpu/l4_step_vs_closed_form", [&] {
    return l4_against(closed_form_l4,
                      {3.0, "the gradient's formula in products of matrices; samples as above"});
  });
}

}  // namespace moesaic::bench
