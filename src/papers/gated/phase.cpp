// SPDX-License-Identifier: Apache-2.0
#include "phase.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/random.h"
#include "moesaic/data/dataset_inputs.h"
#include "moesaic/data/sample.h"

namespace moesaic {

SampleSource::SampleSource(std::shared_ptr<const Dataset> data, uint64_t seed, int64_t batch)
    : data_(std::move(data)), batch_(batch) {
  if (data_->endless()) {
    offset_ = stream_begin(seed);
    return;
  }
  all_ = read(0, data_->size());
  offset_ = static_cast<int64_t>(mix64(seed) % static_cast<uint64_t>(data_->size() / batch_));
}

Samples SampleSource::read(int64_t first, int64_t count) const {
  const DatasetInputs inputs = data_->generate(first, count);
  return {inputs.values_NCHW.flatten(1), inputs.targets_NK.flatten()};
}

Samples SampleSource::batches(int64_t first, int64_t count) const {
  if (data_->endless()) return read(offset_ + first * batch_, count * batch_);
  const int64_t in_epoch = data_->size() / batch_;
  std::vector<at::Tensor> x, y;
  for (int64_t i = offset_ + first; i < offset_ + first + count; ++i) {
    x.push_back(all_.x_Nd.narrow(0, i % in_epoch * batch_, batch_));
    y.push_back(all_.y_N.narrow(0, i % in_epoch * batch_, batch_));
  }
  return {at::cat(x), at::cat(y)};
}

MixtureParameters::MixtureParameters(const Model& model) : mixture_(nn::find_gated_mixture(model)) {
  a_kd = mixture_->regressors.detach().to(at::kCPU).clone();
  w_kd = mixture_->gates.detach().to(at::kCPU).clone();
}

void MixtureParameters::write() const {
  for (const at::Tensor* tensor : {&a_kd, &w_kd}) {
    if (!all_finite(*tensor)) throw Diverged("a parameter is not finite");
  }
  const torch::NoGradGuard no_grad;
  mixture_->regressors.copy_(a_kd);
  mixture_->gates.copy_(w_kd);
}

std::pair<std::string, std::string> MixtureParameters::names(const Model& model) {
  const auto mixture = nn::find_gated_mixture(model);
  std::pair<std::string, std::string> names;
  for (const auto& item : model.named_parameters()) {
    if (item.value().is_same(mixture->regressors)) names.first = item.key();
    if (item.value().is_same(mixture->gates)) names.second = item.key();
  }
  return names;
}

Moves Moves::within(const PhaseConfig& phase, const Model& model) const {
  const auto [a, w] = MixtureParameters::names(model);
  const std::vector<std::string> trained = trained_parameters(model, phase);
  const auto moves = [&](const std::string& name) {
    return std::find(trained.begin(), trained.end(), name) != trained.end();
  };
  return {regressors && moves(a), gates && moves(w)};
}

std::vector<std::string> Moves::names(const Model& model) const {
  const auto [a, w] = MixtureParameters::names(model);
  std::vector<std::string> names;
  if (regressors) names.push_back(a);
  if (gates) names.push_back(w);
  return names;
}

namespace {

/// Warns of fewer samples than a regressor has numbers, which no loss determines.
void check_samples(const PhasePlaces& places, int64_t samples, int64_t width) {
  if (samples >= width) return;
  log_warning("{}: phase '{}': {} samples do not determine regressors of {} dimensions",
              places.of({"batch_size", "samples"}), places.phase().name, samples, width);
}

/// Checks the network's mixture against what can be recovered, and against the data's.
void check_mixture(const PhasePlaces& places, const nn::GatedMixtureOptions& mixture,
                   const Dataset& data) {
  const std::string& name = places.phase().name;
  if (2 * mixture.experts - 1 > mixture.width) {
    fail_usage(
        "{}: phase '{}': {} experts have {} regressors and gates, which do not fit into {} "
        "dimensions (assumption 3), at most {} experts do",
        places.of_model("experts", "kind"), name, mixture.experts, 2 * mixture.experts - 1,
        mixture.width, (mixture.width + 1) / 2);
  }
  const Directions known = data.directions();
  const auto regressors = known.find("regressor");
  if (regressors == known.end() || regressors->second.size(0) == mixture.experts) return;
  log_warning("{}: phase '{}': the model has {} experts, the mixture of '{}' has {}",
              places.of_model("experts", "data"), name, mixture.experts, places.phase().data,
              regressors->second.size(0));
}

}  // namespace

void plan_gated(PhasePlan& plan, const PhasePlaces& places, const Model& model, const Dataset& data,
                int64_t batch, const Moves& moves) {
  const PhaseConfig& phase = plan.config;
  const auto mixture = nn::find_gated_mixture(model);
  if (!mixture) {
    fail_usage(
        "{}: phase '{}': a phase of kind '{}' needs a model with a gated mixture (moesaic list "
        "models)",
        places.of_model("name", "kind"), phase.name, phase.kind.name());
  }
  const DatasetInfo& info = data.info();
  if (data.has_images() || info.targets.size() != 1 ||
      data.image_size() != mixture->options().width) {
    fail_usage(
        "{}: phase '{}': a phase of kind '{}' needs inputs of {} numbers with one real-valued "
        "target, which '{}' has not",
        places.of({"data"}), phase.name, phase.kind.name(), mixture->options().width, phase.data);
  }
  check_mixture(places, mixture->options(), data);
  check_samples(places, batch, mixture->options().width);
  if (moves.within(phase, model).names(model).empty()) {
    fail_usage("{}: phase '{}': it moves {}, of which 'trains' and 'frozen' leave nothing",
               places.of({"frozen", "trains", "kind"}), phase.name,
               fmt::join(moves.names(model), " and "));
  }
  if (!data.endless() && batch > data.size()) {
    fail_usage("{}: phase '{}': {} samples are more than the {} of '{}'",
               places.of({"batch_size", "samples"}), phase.name, batch, data.size(), phase.data);
  }
  plan_steps(plan, data.size(), batch);
}

GatedPhase::GatedPhase(const PhasePlan& plan, PhaseContext context, const Moves& moves)
    : OnlinePhase(plan, std::move(context)),
      moves_(moves.within(plan_.config, *context_.model)),
      samples_(context_.data, context_.seed, plan.batch) {}

void project_rows(const at::Tensor& rows, double radius) {
  if (radius == 0.0) return;
  const at::Tensor norms = rows.norm(2, {1}, true);
  rows.mul_(at::where(norms > radius, radius / norms, at::ones_like(norms)));
}

}  // namespace moesaic
