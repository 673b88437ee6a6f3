// SPDX-License-Identifier: Apache-2.0
// A training step of the clusters paper's mixture, on one thread, as table1.json has it. As the
// batch is the same at every step, ours has summed its patches for the router before the clock
// runs; everything else is as it is for any inputs.
#include <fmt/format.h>
#include <torch/torch.h>

#include <memory>

#include "bench.h"
#include "eager_clusters.h"
#include "moesaic/base/error.h"
#include "moesaic/data/cluster_mixture.h"
#include "moesaic/models/cluster_moe/cluster_moe.h"
#include "moesaic/nn/init.h"
#include "moesaic/train/aux_losses.h"
#include "moesaic/train/classification_objective.h"
#include "moesaic/train/optimizer.h"
#include "one_thread.h"

namespace moesaic::bench {
namespace {

using at::Tensor;

/// Forward, loss, backward and update of our network, as the recipe has them.
class OurStep {
 public:
  explicit OurStep(const ClusterExamples& examples)
      : inputs_(examples.x_NPd.unsqueeze(1)),
        labels_(examples.labels_N),
        model_(std::make_shared<ClusterMoE>(ClusterMoEConfig(), 1)),
        random_(nn::make_generator(7)) {
    OptimizerConfig router;
    router.name = "sgd";
    router.lr = 0.1;
    router.momentum = 0.0;
    OptimizerConfig experts = router;
    experts.name = "normalized_sgd";
    experts.lr = 0.001;
    Optimizer::NamedParameters parameters;
    for (const auto& item : model_->named_parameters()) {
      parameters.emplace_back(item.key(), item.value());
    }
    optimizer_ =
        std::make_unique<Optimizer>(std::move(parameters), router, std::vector<std::string>{},
                                    std::vector<PartOptimizerConfig>{{{"^moe.experts"}, experts}});
    model_->train();
  }

  /// Leaves the gradients; the noise of the step goes to `noise`, unless it is null.
  Tensor backward(Tensor* noise = nullptr) {
    const ModelOutput output = model_->forward(inputs_, random_);
    if (noise != nullptr) {
      const RoutingRecord& record = output.routings.front();
      *noise = (record.noisy_logits_TE - record.logits_TE).detach();
    }
    const LossTerms objective = classification_terms("softmax_twice", {}, output, labels_);
    objective.loss.backward();
    return objective.loss.detach();
  }

  void operator()() {
    backward();
    optimizer_->step(0.1);
    optimizer_->zero_grad();
  }

  ClusterMoE& model() { return *model_; }

 private:
  Tensor inputs_, labels_;
  std::shared_ptr<ClusterMoE> model_;
  at::Generator random_;
  std::unique_ptr<Optimizer> optimizer_;
};

/// What is timed against each other has to compute the same.
void check_same(const char* what, const Tensor& ours, const Tensor& peer) {
  const double off = ((ours - peer).abs().max() / peer.abs().max()).item<double>();
  if (!(off < 1e-3)) fail("bench clusters: the peer's {} differs by {:.3g} of it", what, off);
}

using PeerStep = ClusterGradients (*)(const ClusterStep&);

void check_same_step(OurStep& ours, const ClusterExamples& examples, PeerStep peer) {
  Tensor noise;
  const Tensor loss = ours.backward(&noise);
  ClusterMoE& model = ours.model();
  const ClusterGradients found =
      peer({examples.x_NPd, examples.labels_N, model.experts->w.detach(), model.experts->b.detach(),
            model.moe->router->weight.detach(), noise});
  check_same("loss", loss, found.loss);
  check_same("experts' gradient", model.experts->w.grad(), found.w);
  check_same("biases' gradient", model.experts->b.grad(), found.b);
  check_same("router's gradient", model.moe->router->weight.grad(), found.router);
  for (Tensor parameter : model.parameters()) parameter.mutable_grad().reset();
}

Row against(PeerStep peer, const Contest& contest, const ClusterExamples& examples) {
  OurStep ours(examples);
  for (int i = 0; i < 50; ++i) ours();  // so that the experts have something to tell apart
  check_same_step(ours, examples, peer);
  ClusterMoE& model = ours.model();
  ClusterStep step{examples.x_NPd,
                   examples.labels_N,
                   model.experts->w.detach().clone(),
                   model.experts->b.detach().clone(),
                   model.moe->router->weight.detach().clone(),
                   {}};
  const Times times = alternate([&] { ours(); },
                                [&] {
                                  step.noise_NE = at::rand({step.x_NPd.size(0), step.w.size(0)});
                                  descend(step, peer(step));
                                });
  return row_of(contest, times);
}

}  // namespace

void bench_clusters(const Report& report) {
  const OneThread one;
  const ClusterExamples examples = cluster_examples(ClusterMixtureConfig(), "train");
  report("cpu/step_vs_dense_dispatch", [&] {
    return against(
        dense_dispatch_step,
        {30.0, "every expert computes every input, one-hot; ours knows the sums of patches before",
         "ms", 1e3},
        examples);
  });
  report("cpu/step_vs_closed_form", [&] {
    return against(closed_form_step,
                   {2.0, "selected experts only, gradients by formulas; ours as above", "ms", 1e3},
                   examples);
  });
}

}  // namespace moesaic::bench
