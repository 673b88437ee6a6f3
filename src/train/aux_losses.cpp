// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/objective.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "moesaic/base/log.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/nn/router.h"
#include "moesaic/ops/losses.h"
#include "moesaic/train/phase.h"

namespace moesaic {
namespace {

/// An auxiliary loss of a layer. Where experts choose they are balanced, so that all are 0 but
/// those that are also `of_experts_choice`.
struct AuxLoss {
  at::Tensor (*of)(const RoutingRecord&);
  bool of_experts_choice = false;
};

at::Tensor no_loss(const RoutingRecord& record) {
  return at::zeros({}, record.logits_TE.options().dtype(at::kFloat));
}

/// The record with the logits of those experts only that the router could choose. Members of an
/// ensemble have losses of their own: one after the other, each of its groups becomes a group.
RoutingRecord as_router_saw(RoutingRecord record) {
  if (record.num_members > 1) {
    const int64_t tokens = record.logits_TE.size(0);
    record.group_size = (record.group_size > 0 ? record.group_size : tokens) / record.num_members;
    for (at::Tensor* logits : {&record.logits_TE, &record.noisy_logits_TE}) {
      *logits = nn::member_logits(*logits, record.num_members).flatten(0, 1);
    }
    return record;
  }
  if (!record.is_rerouted) return record;
  const at::Tensor kept = index_on(record.logits_TE.device(), record.kept);
  record.logits_TE = record.logits_TE.index_select(1, kept);
  record.noisy_logits_TE = record.noisy_logits_TE.index_select(1, kept);
  return record;
}

at::Tensor load_of(const RoutingRecord& record) {
  if (record.noise_std == 0.0) return no_loss(record);
  return load_loss(record.logits_TE, record.noisy_logits_TE, record.routing.choice.size(1),
                   record.noise_std, record.group_size);
}

template <BalanceProxy proxy>
at::Tensor switch_balance_of(const RoutingRecord& record) {
  return switch_balance_loss(record.noisy_logits_TE, record.group_size, proxy);
}

const Registry<AuxLoss>& aux_losses() {
  static const Registry<AuxLoss> registry(
      "auxiliary loss",
      {{"gshard",
        {[](const RoutingRecord& r) { return gshard_loss(r.noisy_logits_TE, r.group_size); }}},
       {"importance",
        {[](const RoutingRecord& r) { return importance_loss(r.logits_TE, r.group_size); }}},
       {"load", {load_of}},
       {"router_z",
        {[](const RoutingRecord& r) { return router_z_loss(r.logits_TE, r.group_size); }, true}},
       {"switch_balance", {switch_balance_of<BalanceProxy::probability>}},
       {"switch_balance_logit", {switch_balance_of<BalanceProxy::logit>}}});
  return registry;
}

/// Why a loss is 0 at every step: a message, "" where it is not, and the setting of the model that
/// causes it.
struct ZeroLoss {
  std::string text = {}, setting = {};
  bool lacks_noise = false;
};

ZeroLoss zero_without_noise(const NoiseOptions& noise, const SettingPaths& paths) {
  const auto named = [](const std::string& setting, const char* otherwise) {
    return setting.empty() ? otherwise : setting;
  };
  if (noise.kind != NoiseKind::gaussian) {
    return {fmt::format("needs gaussian noise, but the router's noise is uniform; set {} to "
                        "'gaussian' or choose importance",
                        named(paths.router_noise_kind, "it")),
            paths.router_noise_kind, true};
  }
  if (noise.scale > 0.0) return {};
  return {
      fmt::format("needs noise, but {0} is 0 or the router's noise is 'never'; set {0} (to 1, for "
                  "instance) or choose importance",
                  named(paths.router_noise, "its scale")),
      paths.router_noise, true};
}

ZeroLoss zero_loss(const std::string& name, const nn::RouterOptions& router,
                   const SettingPaths& paths) {
  if (name != "router_z" && router.rule.num_selected_experts() == 0) {
    const bool experts = router.rule.is_expert_choice();
    return {fmt::format("balances tokens that choose, but here {}; leave it out or choose router_z",
                        experts ? "experts choose and are balanced" : "a threshold does"),
            paths.router_name};
  }
  return name == "load" ? zero_without_noise(router.noise, paths) : ZeroLoss{};
}

ZeroLoss zero_loss(const std::string& name, const Model& model) {
  const SettingPaths paths = model.setting_paths();
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  if (blocks.empty()) return {"needs an MoE layer, but the model has none; leave it out"};
  for (const MoEBlock& block : blocks) {
    ZeroLoss zero = zero_loss(name, block.layer->options(), paths);
    if (!zero.text.empty()) return zero;
  }
  return {};
}

bool gates_are_one(const RouteOptions& rule) {
  const bool of_one = rule.is_token_choice() && rule.k == 1 && rule.gate == Gate::softmax_selected;
  return of_one || rule.kind == RoutingKind::threshold || rule.gate == Gate::one;
}

/// Warns of the first router with gates of 1 that the phase trains.
void warn_of_idle_router(const SettingLocations& locations, const Model& model) {
  const auto parameters = model.named_parameters();
  for (const std::string& name : trained_parameters(model, locations.phase())) {
    for (const MoEBlock& block : model.moe_blocks()) {
      const bool idle = gates_are_one(block.layer->options().rule);
      if (!idle || !parameters[name].is_same(block.layer->router->weight)) continue;
      log_warning(
          "{0}: the router's gates are 1, so {1} gets no gradient; add {1} to 'frozen', or, in a "
          "model with token choice, set the gate softmax_all",
          locations.at_place(
              locations.find_in_model(model.setting_paths().router_name, "trainable")),
          name);
      return;
    }
  }
}

}  // namespace

std::vector<std::string> aux_loss_names() {
  return aux_losses().names();
}

ConfigProblem aux_losses_problem(const std::map<std::string, double>& phase) {
  for (const auto& [name, weight] : phase) {
    if (aux_losses().find(name) != nullptr) continue;
    return {fmt::format("unknown auxiliary loss '{}' in aux_losses; {}", name,
                        did_you_mean(name, aux_loss_names())),
            {"aux_losses." + name + ":"}};
  }
  return {};
}

void check_aux_losses(const std::map<std::string, double>& phase, const SettingLocations& locations,
                      const Model& model) {
  if (locations.phase().steps == 0) return;
  bool reaches_router = false;
  const bool has_layers = !model.moe_blocks().empty();
  for (const auto& [name, weight] : has_layers ? aux_loss_weights(phase, model) : phase) {
    if (weight == 0.0) continue;
    const ZeroLoss zero = zero_loss(name, model);
    reaches_router |= zero.text.empty();
    if (zero.text.empty()) continue;
    const bool of_phase = phase.contains(name);
    const std::string key = "aux_losses." + name,
                      of_model = locations.find_in_model(zero.setting, key + ":");
    const std::string place =
        of_phase ? SettingLocations::preferred({locations.find({key + ":"}), of_model}) : of_model;
    const std::string message = fmt::format(
        "{}: {} {}", locations.at_place(place),
        of_phase ? key : fmt::format("the model's weight of the {} loss", name), zero.text);
    if (of_phase || !zero.lacks_noise) fail_usage("{}", message);
    log_warning("{}", message);
  }
  if (!reaches_router) warn_of_idle_router(locations, model);
}

std::map<std::string, double> aux_loss_weights(const std::map<std::string, double>& phase,
                                               const Model& model) {
  std::map<std::string, double> weights = phase;
  weights.merge(model.aux_losses());
  return weights;
}

at::Tensor aux_loss(const std::string& name, const ModelOutput& output) {
  const AuxLoss& loss = aux_losses().at(name);
  std::vector<at::Tensor> losses;
  for (const RoutingRecord& record : output.routings) {
    const RoutingRecord seen = as_router_saw(record);
    const bool is_expert_choice = seen.routing.choice.size(1) == 0;
    losses.push_back(is_expert_choice && !loss.of_experts_choice ? no_loss(seen) : loss.of(seen));
  }
  if (losses.empty()) return at::zeros({}, output.logits.options().dtype(at::kFloat));
  return at::stack(losses).sum();
}

}  // namespace moesaic
