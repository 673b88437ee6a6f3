// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/models/registry.h"
#include "moesaic/train/gradient_phase.h"
#include "moesaic/train/objective.h"
#include "support/tensors.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using at::Tensor;

/// Loss and gradient of the logits' head by plain loops: each image's margin is its logit less the
/// largest other one.
struct PlainHinge {
  double loss = 0.0;
  Tensor d_logits_BC;
};

PlainHinge plain_hinge(const Tensor& logits, const Tensor& labels, bool linear) {
  PlainHinge plain{0.0, torch::zeros_like(logits)};
  const int64_t images = logits.size(0);
  for (int64_t b = 0; b < images; ++b) {
    const auto own = labels[b].item<int64_t>();
    int64_t other = own == 0 ? 1 : 0;
    for (int64_t c = 0; c < logits.size(1); ++c) {
      if (c != own && logits[b][c].item<double>() > logits[b][other].item<double>()) other = c;
    }
    const double loss = 1.0 - (logits[b][own].item<double>() - logits[b][other].item<double>());
    if (loss > 0) plain.loss += loss / static_cast<double>(images);
    if (loss <= 0 && !linear) continue;
    plain.d_logits_BC[b][own] -= 1.0 / static_cast<double>(images);
    plain.d_logits_BC[b][other] += 1.0 / static_cast<double>(images);
  }
  return plain;
}

TEST(HingeObjective, EqualsLoopsOverImages) {
  const std::shared_ptr<Model> network =
      build_model(Document::from_text(kModel, "model.json").root(), 3);
  Tensor weight = network->named_parameters()["head.weight"];
  {
    const torch::NoGradGuard no_grad;
    weight.copy_(testing::randn(weight.sizes().vec(), 5, torch::kFloat) * 0.5);
  }
  const Batch batch{.inputs = testing::randn({12, 1, 4, 4}, 6, torch::kFloat),
                    .labels = torch::arange(12).remainder(3)};
  for (const bool linear : {false, true}) {
    SCOPED_TRACE(linear);
    const RunConfig run =
        config_of(std::string(R"({"name": "x", "model": )") + kModel +
                  R"(, "phases": [{"name": "p", "data": "three", "steps": 1, "loss": "hinge",
                      "linear": )" +
                  (linear ? "true" : "false") + "}]}");
    const NamedSettings& settings = settings_of<GradientConfig>(run.phases[0]).loss;
    const auto objective = objectives().at("hinge").make(settings, *network, "float32");
    network->eval();
    network->zero_grad();
    const LossTerms found = (*objective)(*network, batch, {});
    found.loss.backward();
    const ModelOutput output = network->forward(batch.inputs);
    const PlainHinge plain = plain_hinge(output.logits.detach(), batch.labels, linear);
    EXPECT_NEAR(found.loss.item<double>(), plain.loss, 1e-5);
    testing::expect_close(weight.grad(), plain.d_logits_BC.t().mm(output.pre_logits.detach()),
                          1e-5);
  }
}

}  // namespace
}  // namespace moesaic
