// SPDX-License-Identifier: Apache-2.0
#include "phase.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/random.h"
#include "moesaic/data/dataset_inputs.h"
#include "moesaic/data/sample.h"
#include "moesaic/nn/init.h"
#include "moesaic/ops/route_adaptive.h"
#include "moesaic/ops/route_token_choice.h"

namespace moesaic {
namespace {

/// Returns the rows of samples whose experts have the largest logit, one of several by the sample's
/// random number; gates are softmaxes over all experts.
Routing route_to_largest(const at::Tensor& logits_SK, const std::vector<float>& random) {
  const int64_t samples = logits_SK.size(0), experts = logits_SK.size(1);
  const at::Tensor chosen_SK = at::zeros_like(logits_SK), gate_S = at::empty({samples});
  const auto* logits = logits_SK.const_data_ptr<float>();
  auto *chosen = chosen_SK.mutable_data_ptr<float>(), *gate = gate_S.mutable_data_ptr<float>();
  for (int64_t s = 0; s < samples; ++s, logits += experts, chosen += experts) {
    const float largest = *std::max_element(logits, logits + experts);
    const auto ties = std::count(logits, logits + experts, largest);
    const float number = random[static_cast<size_t>(s)] * static_cast<float>(ties);
    int64_t left = std::min<int64_t>(static_cast<int64_t>(number), ties - 1);
    float sum = 0.0f;
    for (int64_t k = 0; k < experts; ++k) {
      if (logits[k] == largest && left-- == 0) chosen[k] = 1.0f;
      sum += std::exp(logits[k] - largest);
    }
    gate[s] = 1.0f / sum;
  }
  Routing routing = route_token_choice(chosen_SK, {.k = 1, .gate = Gate::one});
  routing.gate = gate_S.index_select(0, routing.token);
  return routing;
}

}  // namespace

RoutedBlock route_samples(const at::Tensor& x_Sd, const at::Tensor& y_S,
                          const at::Tensor& router_Kd, const std::string& routing,
                          const SampleRandom& ties, int64_t first) {
  const int64_t samples = x_Sd.size(0), experts = router_Kd.size(0);
  RoutedBlock block;
  block.rows.x_Sd = x_Sd;
  block.rows.y_S = y_S;
  const bool zero = router_Kd.eq(0).all().item<bool>();
  block.logits_SK = zero ? at::zeros({samples, experts}) : x_Sd.mm(router_Kd.t());
  Routing routed;
  if (routing == nn::kTopOne) {
    std::vector<float> random(static_cast<size_t>(samples));
    ties.uniforms(first, samples, 0, random.data());
    routed = route_to_largest(block.logits_SK, random);
  } else {
    routed = route_adaptive(block.logits_SK, {.threshold = 0.0});
  }
  const auto rows = routed.offsets[experts].item<int64_t>();
  block.rows.offset = routed.offsets.to(at::kLong);
  block.rows.sample = routed.token.narrow(0, 0, rows);
  block.rows.gate = routed.gate.narrow(0, 0, rows);
  return block;
}

void plan_latent(PhasePlan& plan, const PhasePlaces& places, const Model& model,
                 const Dataset& data, int64_t samples) {
  const PhaseConfig& phase = plan.config;
  if (!find_layer_of<nn::ShallowExperts>(model)) {
    fail_usage(
        "{}: phase '{}': a phase of kind '{}' needs a model of one layer of two-layer experts "
        "(moesaic list models)",
        places.of_model("name", "kind"), phase.name, phase.kind.name());
  }
  if (data.has_images() || !data.endless() || data.info().targets.size() != 1) {
    fail_usage(
        "{}: phase '{}': a phase of kind '{}' needs an endless stream of inputs with one "
        "real-valued target, which '{}' is not",
        places.of({"data"}), phase.name, phase.kind.name(), phase.data);
  }
  check_moves_all(
      plan, places, model,
      fmt::format("what it moves is given by its kind '{}'; leave 'trains' and 'frozen' "
                  "out",
                  phase.kind.name()));
  plan_steps(plan, data.size(), samples);
}

LatentPhase::LatentPhase(const PhasePlan& plan, PhaseContext context, const std::string& routing,
                         const std::string& end)
    : OnlinePhase(plan, std::move(context), end),
      layer_(*find_layer_of<nn::ShallowExperts>(*context_.model)),
      routing_(routing),
      ties_(context_.seed, stream_id("latent.ties")),
      offset_(stream_begin(context_.seed)) {
  const nn::RouterOptions& options = layer_->options();
  layer_->router->set_options(nn::latent_router_options(options.width, options.experts, routing,
                                                        nn::kept_experts(options.rule)));
}

LatentPhase::Samples LatentPhase::samples(int64_t first, int64_t count) const {
  const DatasetInputs inputs = context_.data->generate(offset_ + first, count);
  return {inputs.values_NCHW.flatten(1).contiguous(), inputs.targets_NK.flatten().contiguous()};
}

RoutedBlock LatentPhase::routed(const Samples& samples, int64_t first,
                                const at::Tensor& router_Kd) const {
  return route_samples(samples.x_Sd, samples.y_S, router_Kd, routing_, ties_, offset_ + first);
}

at::Generator LatentPhase::generator(const char* purpose) const {
  return nn::make_generator(mix64(context_.seed ^ stream_id(purpose)));
}

}  // namespace moesaic
