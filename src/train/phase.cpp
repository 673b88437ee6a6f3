// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/phase.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

#include "moesaic/base/random.h"
#include "moesaic/data/views.h"
#include "moesaic/models/family.h"
#include "moesaic/models/registry.h"
#include "moesaic/parallel/process_mesh.h"
#include "moesaic/train/gradient_phase.h"

namespace moesaic {

Registry<PhaseKind>& phase_kinds() {
  static Registry<PhaseKind> registry("kind of phase", {{"gradient", gradient_phase_kind()}});
  return registry;
}

std::vector<NamedSettings> phase_kind_choices() {
  return choices_of(phase_kinds(), "gradient");
}

std::string objective_name(const PhaseConfig& phase) {
  const PhaseKind& kind = phase_kinds().at(phase.kind.name());
  return kind.objective ? kind.objective(phase) : "";
}

std::vector<std::string> trained_parameters(const Model& model, const PhaseConfig& phase) {
  const Patterns trains(phase.trainable), frozen(phase.frozen);
  std::vector<std::string> names = model.named_parameters().keys();
  std::erase_if(names, [&](const std::string& name) {
    return !trains.any_matches(name) || frozen.any_matches(name);
  });
  return names;
}

int Phase::sync_step(int signal, const ProcessMesh* processes) {
  return processes == nullptr ? signal : static_cast<int>(processes->all_reduce_max(signal));
}

uint64_t phase_seed(int64_t run_seed, int64_t phase_index) {
  return mix64(mix64(static_cast<uint64_t>(run_seed)) + static_cast<uint64_t>(phase_index));
}

namespace {

/// Returns the keys under which the model's configuration may have a setting: that of today and
/// former ones.
std::vector<std::string> keys_of(const Value& model, const std::string& setting) {
  std::vector<std::string> keys = {setting};
  const std::string group = setting.substr(0, setting.rfind('.') + 1);
  const Value filled = with_preset(model);
  const Value* name = filled.find("name");
  if (name == nullptr) return keys;
  for (const auto& row : families().at(name->as_string(), name->where()).help()) {
    if (row.key != "model." + setting) continue;
    for (const std::string& former : row.former_keys) keys.push_back(group + former);
  }
  return keys;
}

}  // namespace

std::string SettingLocations::find_in_model(const std::string& setting,
                                            const std::string& otherwise) const {
  const std::string in_phase = find({otherwise});
  if (!model_.is_object() || setting.empty()) return in_phase;
  return preferred({location_of(model_, keys_of(model_, setting)), in_phase});
}

std::string SettingLocations::preferred(const std::vector<std::string>& locations) {
  for (const std::string& place : locations) {
    if (place.starts_with("argument '")) return place;
  }
  return locations.front();
}

OnlinePhase::OnlinePhase(const PhasePlan& plan, PhaseContext context, std::string end)
    : plan_(plan),
      context_(std::move(context)),
      offset_(stream_offset(context_.seed)),
      all_(context_.data->inputs()),
      end_key_(std::move(end)) {
  if (context_.data->is_endless()) return;
  const auto batches = static_cast<uint64_t>(plan_.steps_per_epoch);
  offset_ = static_cast<int64_t>(mix64(context_.seed) % batches) * plan_.batch_size;
}

DatasetInputs OnlinePhase::inputs(int64_t first, int64_t count) const {
  const int64_t begin = offset_ + first;
  if (context_.data->is_endless()) return context_.data->generate(begin, count);
  const int64_t in_epoch = plan_.steps_per_epoch * plan_.batch_size;
  const at::Tensor rows = at::arange(begin, begin + count, at::kLong).remainder(in_epoch);
  DatasetInputs inputs = all_;
  for_each_tensor(inputs, [&](at::Tensor& tensor) { tensor = tensor.index_select(0, rows); });
  return inputs;
}

StepReport OnlinePhase::step() {
  const torch::NoGradGuard no_grad;
  StepReport report = make_step();
  steps_done_ += report.steps;
  return report;
}

PhaseState OnlinePhase::state() const {
  PhaseState state{{{"made", steps_done_}}, {}};
  if (!end_key_.empty()) state.values[end_key_] = has_reached_end_;
  return state;
}

void OnlinePhase::load(const PhaseState& state) {
  const auto made = state.values.find("made"), met = state.values.find(end_key_);
  const bool valid = made != state.values.end() && made->is_number_integer() && *made >= 0 &&
                     *made <= plan_.steps &&
                     (end_key_.empty() || (met != state.values.end() && met->is_boolean()));
  if (!valid) fail("phase '{}': its state is corrupt", plan_.config.name);
  steps_done_ = made->get<int64_t>();
  has_reached_end_ = !end_key_.empty() && met->get<bool>();
}

std::string OnlinePhase::lower_hint(const std::string& setting, double now) const {
  return fmt::format("lower phases.{}.{} ({} now)", plan_.config.name, setting, now);
}

void OnlinePhase::check_finite(double loss, const std::vector<at::Tensor>& weights) {
  if (!std::isfinite(loss) || !std::all_of(weights.begin(), weights.end(), all_finite)) {
    throw DivergedError("the loss or a weight is not finite");
  }
}

void plan_steps(PhasePlan& plan, const SettingLocations& locations, const Dataset& data,
                int64_t batch) {
  if (!data.is_endless() && batch > data.size()) {
    fail_usage("{0}: {1} samples are more than the {2} of '{3}'; choose at most {2}",
               locations.at({"batch_size", "num_samples"}), batch, data.size(), plan.config.data);
  }
  plan.batch_size = batch;
  plan.steps_per_epoch = std::max<int64_t>(1, data.size() / batch);
  plan.steps = plan.config.steps ? *plan.config.steps : *plan.config.epochs * plan.steps_per_epoch;
}

void check_all_trained(const PhasePlan& plan, const SettingLocations& locations, const Model& model,
                       const std::string& reason) {
  if (trained_parameters(model, plan.config) == model.named_parameters().keys()) return;
  fail_usage("{}: {}", locations.at({"frozen", "trainable"}), reason);
}

void fail_needs(const SettingLocations& locations, const std::string& place,
                const std::string& what) {
  fail_usage("{}: a phase of kind '{}' needs {}", locations.at_place(place),
             locations.phase().kind.name(), what);
}

at::Tensor host_copy(const at::Tensor& tensor) {
  return tensor.detach()
      .to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

at::Tensor router_rows(const nn::MoELayer& layer) {
  return host_copy(layer->router->weight)
      .index_select(0, torch::tensor(layer->kept(), torch::kLong))
      .contiguous();
}

void set_router_rows(const nn::MoELayer& layer, const at::Tensor& router_Kd) {
  at::Tensor weight = layer->router->weight;
  weight.index_copy_(0, torch::tensor(layer->kept(), torch::kLong).to(weight.device()),
                     router_Kd.to(weight.options()));
}

}  // namespace moesaic
