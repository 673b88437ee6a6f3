// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/gradient_phase.h"

#include <torch/csrc/utils/tensor_flatten.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "moesaic/base/suggestions.h"
#include "moesaic/parallel/process_mesh.h"

namespace moesaic {
namespace {

/// Returns the numbers of tensors in one row, or memory for them.
at::Tensor flattened(const std::vector<at::Tensor>& tensors, bool filled) {
  if (tensors.empty()) return at::empty({0});
  if (filled) return torch::utils::flatten_dense_tensors(tensors);
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return at::empty({count}, tensors.front().options().requires_grad(false));
}

// The rules run as one fused pass over the parameters: on two cores that is what keeps the update
// within a few per cent of a step.

/// The form in which fused updates take UpdateRule::Group::skip.
std::optional<at::Tensor> found_inf(const UpdateRule::Group& group) {
  return group.skip.defined() ? std::optional(group.skip) : std::nullopt;
}

void scale_parameters(UpdateRule::Group& group, double factor) {
  if (!group.skip.defined()) return at::_foreach_mul_(group.parameters, factor);
  const auto options = group.parameters[0].options().requires_grad(false);
  const at::Tensor guarded = at::full({}, factor, options).masked_fill_(group.skip.ne(0), 1.0);
  at::_foreach_mul_(group.parameters, guarded);
}

class Sgd : public UpdateRule {
 public:
  explicit Sgd(double momentum) : momentum_(momentum) {}

  std::vector<std::string> slot_names() const override {
    if (momentum_ == 0.0) return {};
    return {"momentum"};
  }

  // The fused kernel's own weight decay would enter the momentum, so the decay comes first here.
  void apply(Group& group, double lr, int64_t step) const override {
    if (group.weight_decay != 0.0) scale_parameters(group, 1.0 - lr * group.weight_decay);
    const std::vector<at::Tensor> none;
    const auto& momenta = group.slots.empty() ? none : group.slots[0];
    at::_fused_sgd_(group.parameters, group.gradients, momenta, /*weight_decay=*/0.0, momentum_, lr,
                    /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/false, /*grad_scale=*/{}, found_inf(group));
  }

 private:
  double momentum_;
};

/// "experts.3." of a parameter "experts.3.stem.conv.weight", wherever it stands; "" where experts
/// are not networks of their own.
std::string separate_expert(const std::string& name) {
  static const std::string kExperts = "experts.";
  const size_t found = name.find(kExperts);
  if (found == std::string::npos || (found > 0 && name[found - 1] != '.')) return "";
  const size_t number = found + kExperts.size();
  const size_t end = name.find_first_not_of("0123456789", number);
  if (end == number || end == std::string::npos || name[end] != '.') return "";
  return name.substr(0, end + 1);
}

/// Divides the gradients of one expert by their joint norm, or by the sum of their norms. The
/// factor is beyond float32 where they are next to nothing; the factor's root is not.
void normalise_together(const std::vector<at::Tensor*>& gradients, bool by_sum) {
  at::Tensor total = at::zeros({}, gradients.front()->options().dtype(at::kDouble));
  for (const at::Tensor* gradient : gradients) {
    const at::Tensor norm = gradient->norm(2, at::kDouble);
    total += by_sum ? norm : norm.square();
  }
  const at::Tensor root = at::where(total > 0, total.pow(by_sum ? -0.5 : -0.25), 0.0);
  for (at::Tensor* gradient : gradients) *gradient = *gradient * root * root;
}

/// The same for the gradients of parameters whose first dimension counts the experts.
void normalise_stacked(const std::vector<at::Tensor*>& gradients, bool by_sum) {
  const at::Tensor& first = *gradients.front();
  const int64_t experts = first.dim() > 0 ? first.size(0) : 0;
  at::Tensor total = at::zeros({experts}, first.options().dtype(at::kDouble));
  for (const at::Tensor* gradient : gradients) {
    if (gradient->dim() == 0 || gradient->size(0) != experts) {
      fail_usage("normalized_sgd: parameters of {} and of {} experts have no common norm", experts,
                 gradient->dim() > 0 ? gradient->size(0) : 0);
    }
    const at::Tensor squares =
        gradient->reshape({experts, gradient->numel() / std::max<int64_t>(experts, 1)})
            .to(at::kDouble)
            .square()
            .sum(1);
    total += by_sum ? squares.sqrt() : squares;
  }
  const at::Tensor norm_inverse = by_sum ? total.reciprocal() : total.rsqrt();
  const at::Tensor factor = at::where(total > 0, norm_inverse, 0.0);
  for (at::Tensor* gradient : gradients) {
    std::vector<int64_t> shape(gradient->dim(), 1);
    shape[0] = experts;
    // In float64: the factor of a gradient that is next to nothing is beyond float32.
    *gradient = (gradient->to(at::kDouble) * factor.view(shape)).to(gradient->scalar_type());
  }
}

class NormalizedSgd : public Sgd {
 public:
  NormalizedSgd(double momentum, bool by_sum) : Sgd(momentum), by_sum_(by_sum) {}

  void prepare(const std::vector<std::string>& names,
               std::vector<at::Tensor>& gradients) const override {
    std::map<std::string, std::vector<at::Tensor*>> experts;
    for (size_t i = 0; i < names.size(); ++i) {
      experts[separate_expert(names[i])].push_back(&gradients[i]);
    }
    for (const auto& [name, own] : experts) {
      name.empty() ? normalise_stacked(own, by_sum_) : normalise_together(own, by_sum_);
    }
  }

 private:
  bool by_sum_;
};

class AdamW : public UpdateRule {
 public:
  AdamW(double beta1, double beta2, double eps) : beta1_(beta1), beta2_(beta2), eps_(eps) {}

  std::vector<std::string> slot_names() const override { return {"exp_avg", "exp_avg_sq"}; }

  void apply(Group& group, double lr, int64_t step) const override {
    const at::Tensor count =
        at::full({}, step, group.parameters[0].options().dtype(at::kFloat).requires_grad(false));
    const std::vector<at::Tensor> counts(group.parameters.size(), count);
    at::_fused_adamw_(group.parameters, group.gradients, group.slots[0], group.slots[1], {}, counts,
                      lr, beta1_, beta2_, group.weight_decay, eps_, /*amsgrad=*/false,
                      /*maximize=*/false, /*grad_scale=*/{}, found_inf(group));
  }

 private:
  double beta1_, beta2_, eps_;
};

double shape(const std::string& name, double x) {
  if (name == "cosine") return 0.5 * (1.0 + std::cos(std::numbers::pi * x));
  return 1.0 - x;
}

double inverse_root(const ScheduleConfig& schedule, double peak, int64_t step, int64_t steps) {
  const int64_t cooldown = steps - schedule.cooldown_steps;
  const auto after = static_cast<double>(std::min(step, cooldown) - schedule.warmup_steps);
  const double rate = peak / std::sqrt(1.0 + after / static_cast<double>(schedule.timescale));
  if (step < cooldown) return rate;
  return rate * std::max(0.0, static_cast<double>(steps - step)) /
         static_cast<double>(std::max<int64_t>(1, schedule.cooldown_steps));
}

}  // namespace

Optimizer::Optimizer(NamedParameters parameters, const OptimizerConfig& config,
                     const std::vector<std::string>& frozen,
                     const std::vector<ParamGroupConfig>& param_groups,
                     const LayersAfter& layers_after) {
  for (const ParamGroupConfig& param_group : param_groups) {
    add_param_group(param_group.optimizer, param_group.optimizer.lr / config.lr,
                    Patterns(param_group.parameters), frozen, layers_after, parameters);
  }
  add_param_group(config, 1.0, Patterns({""}), frozen, layers_after, parameters);
}

void Optimizer::add_param_group(const OptimizerConfig& config, double lr_scale,
                                const Patterns& selected, const std::vector<std::string>& frozen,
                                const LayersAfter& layers_after, NamedParameters& parameters) {
  const PatternValues weight_decays(config.weight_decays);
  const Patterns never(frozen), no_decay(config.no_decay);
  const auto weight_decay = [&](const std::string& name) {
    if (!weight_decays.empty()) return weight_decays.value_for(name, 0.0);
    return no_decay.any_matches(name) ? 0.0 : config.weight_decay;
  };
  ParamGroup part{make_update_rule(config), lr_scale, config.l2, {}, {}};
  NamedParameters others;
  for (auto& [name, parameter] : parameters) {
    if (!selected.any_matches(name)) {
      others.emplace_back(name, parameter);
      continue;
    }
    const auto layers = layers_after ? layers_after(name).value_or(0) : 0;
    Entry entry{.name = name,
                .parameter = parameter,
                .slots = {},
                .weight_decay = weight_decay(name),
                .lr_scale = std::pow(config.layer_decay, static_cast<double>(layers)),
                .is_frozen = never.any_matches(name)};
    for (size_t slot = 0; !entry.is_frozen && slot < part.rule->slot_names().size(); ++slot) {
      entry.slots.push_back(at::zeros_like(parameter, at::MemoryFormat::Contiguous));
    }
    part.settings.emplace(entry.weight_decay, entry.lr_scale);
    part.entries.push_back(std::move(entry));
  }
  parameters = std::move(others);
  param_groups_.push_back(std::move(part));
}

void Optimizer::shard_state(std::shared_ptr<const ProcessMesh> processes,
                            const NameTest& is_replicated) {
  processes_ = std::move(processes);
  std::vector<int64_t> load(static_cast<size_t>(processes_->size()), 0);
  for (ParamGroup& part : param_groups_) {
    for (Entry& entry : part.entries) {
      if (entry.is_frozen || is_replicated(entry.name)) continue;
      const auto least = std::min_element(load.begin(), load.end());
      *least += entry.parameter.numel();
      entry.owner = least - load.begin();
      if (!is_local(entry)) entry.slots.clear();
    }
  }
}

Optimizer::StateShard Optimizer::max_state_shard() const {
  std::map<int64_t, StateShard> shares;  // By owner.
  for (const ParamGroup& part : param_groups_) {
    const auto slots = static_cast<int64_t>(part.rule->slot_names().size());
    for (const Entry& entry : part.entries) {
      if (entry.is_frozen) continue;
      shares[entry.owner].updated += entry.parameter.numel();
      shares[entry.owner].state += entry.parameter.numel() * slots;
    }
  }
  const StateShard common = shares[kAllRanks];
  StateShard largest;
  for (const auto& [owner, share] : shares) {
    if (owner == kAllRanks) continue;
    largest = {std::max(largest.state, share.state), std::max(largest.updated, share.updated)};
  }
  return {largest.state + common.state, largest.updated + common.updated};
}

bool Optimizer::is_local(const Entry& entry) const {
  return entry.owner == kAllRanks || entry.owner == processes_->rank();
}

void Optimizer::broadcast_parameters() const {
  const torch::NoGradGuard no_grad;
  const auto own = static_cast<size_t>(processes_->rank());
  std::vector<std::vector<at::Tensor>> owned(static_cast<size_t>(processes_->size()));
  for_entries([&](const Entry& entry) {
    if (entry.owner != kAllRanks)
      owned[static_cast<size_t>(entry.owner)].push_back(entry.parameter);
  });
  std::vector<at::Tensor> flat;  // Of each process, one range.
  for (size_t owner = 0; owner < owned.size(); ++owner) {
    flat.push_back(flattened(owned[owner], /*filled=*/owner == own));
  }
  processes_->world().broadcast_each(flat, Traffic::parameters);
  for (size_t owner = 0; owner < owned.size(); ++owner) {
    if (owner == own || owned[owner].empty()) continue;
    const std::vector<at::Tensor> values =
        torch::utils::unflatten_dense_tensors(flat[owner], owned[owner]);
    for (size_t i = 0; i < values.size(); ++i) owned[owner][i].copy_(values[i]);
  }
}

void Optimizer::scale_gradients(const PatternValues& factors) {
  if (factors.empty()) return;
  const torch::NoGradGuard no_grad;
  for_entries([&](const Entry& entry) {
    const double factor = factors.value_for(entry.name, 1.0);
    if (factor != 1.0 && entry.parameter.grad().defined()) entry.parameter.grad().mul_(factor);
  });
}

void Optimizer::step(double lr, const std::vector<std::optional<double>>& group_lrs,
                     const at::Tensor& skip) {
  const torch::NoGradGuard no_grad;
  ++num_steps_;
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    const std::optional<double> own = i < group_lrs.size() ? group_lrs[i] : std::nullopt;
    step_group(param_groups_[i], own.value_or(lr * param_groups_[i].lr_scale), skip);
  }
  if (processes_) broadcast_parameters();
}

std::vector<at::Tensor> Optimizer::prepared_gradients(const ParamGroup& part) {
  std::vector<std::string> names;
  std::vector<at::Tensor> gradients;
  for (const Entry& entry : part.entries) {
    const at::Tensor gradient = entry.parameter.grad();
    names.push_back(entry.name);
    gradients.push_back(gradient.defined() ? gradient.contiguous()
                                           : at::zeros_like(entry.parameter));
  }
  part.rule->prepare(names, gradients);
  for (size_t i = 0; part.l2 > 0.0 && i < gradients.size(); ++i) {
    gradients[i] = gradients[i].add(part.entries[i].parameter, part.l2);
  }
  return gradients;
}

void Optimizer::step_group(const ParamGroup& part, double lr, const at::Tensor& skip) const {
  const std::vector<at::Tensor> gradients = prepared_gradients(part);
  for (const auto& [weight_decay, lr_scale] : part.settings) {
    UpdateRule::Group group{.weight_decay = weight_decay, .skip = skip};
    group.slots.resize(part.rule->slot_names().size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      const Entry& entry = part.entries[i];
      const bool alike = entry.weight_decay == weight_decay && entry.lr_scale == lr_scale;
      if (entry.is_frozen || !alike || !is_local(entry)) continue;
      group.parameters.push_back(entry.parameter);
      group.gradients.push_back(gradients[i]);
      for (size_t slot = 0; slot < group.slots.size(); ++slot) {
        group.slots[slot].push_back(entry.slots[slot]);
      }
    }
    if (!group.parameters.empty()) part.rule->apply(group, lr * lr_scale, num_steps_);
  }
}

void Optimizer::zero_grad() {
  for_entries([](const Entry& entry) {
    at::Tensor parameter = entry.parameter;
    parameter.mutable_grad().reset();
  });
}

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> list;
  for_entries([&](const Entry& entry) {
    if (entry.parameter.grad().defined()) list.push_back(entry.parameter.grad());
  });
  return list;
}

TensorMap Optimizer::state() const {
  TensorMap map;
  for (const ParamGroup& part : param_groups_) {
    const std::vector<std::string> names = part.rule->slot_names();
    for (const Entry& entry : part.entries) {
      for (size_t slot = 0; slot < entry.slots.size(); ++slot) {
        map[entry.name + "." + names[slot]] = entry.slots[slot];
      }
    }
  }
  return map;
}

void Optimizer::load_state(const TensorMap& state, int64_t num_steps) {
  const TensorMap own = this->state();
  for (const auto& [name, tensor] : own) {
    const auto found = state.find(name);
    if (found == state.end()) fail("optimizer: '{}' is missing", name);
    if (found->second.sizes() != tensor.sizes()) {
      fail("optimizer: '{}' must have the shape {}, found {}", name, c10::str(tensor.sizes()),
           c10::str(found->second.sizes()));
    }
  }
  for (const auto& item : state) {
    const std::string& name = item.first;
    bool is_known = own.contains(name);  // Or a slot of a parameter that another process updates.
    for_entries([&](const Entry& entry) {
      is_known = is_known || (!is_local(entry) && name.starts_with(entry.name + "."));
    });
    if (!is_known) fail("optimizer: unexpected '{}'", name);
  }
  for (const auto& [name, tensor] : own) tensor.copy_(state.at(name));
  num_steps_ = num_steps;
}

std::unique_ptr<UpdateRule> make_update_rule(const OptimizerConfig& config) {
  if (config.name == "sgd") return std::make_unique<Sgd>(config.momentum);
  if (config.name == "adam" || config.name == "adamw") {
    return std::make_unique<AdamW>(config.betas.at(0), config.betas.at(1), config.eps);
  }
  if (config.name == "normalized_sgd") {
    return std::make_unique<NormalizedSgd>(config.momentum, config.expert_norm == "sum");
  }
  const std::vector<std::string> names = {"sgd", "normalized_sgd", "adam", "adamw"};
  fail_usage("unknown optimizer '{}'; {}", config.name, did_you_mean(config.name, names));
}

at::Tensor gradient_norm(const std::vector<at::Tensor>& gradients) {
  if (gradients.empty()) return at::zeros({}, at::kFloat);
  const torch::NoGradGuard no_grad;
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients)), 2);
}

void clip_gradients(std::vector<at::Tensor>& gradients, const at::Tensor& norm, double limit) {
  if (limit <= 0.0 || gradients.empty()) return;
  const torch::NoGradGuard no_grad;
  // On the CPU the norm is at hand, and knowing it saves a pass over the gradients.
  if (norm.is_cpu() && norm.item<double>() < limit) return;
  const at::Tensor wide = norm.to(at::kDouble);
  const at::Tensor factor = at::full_like(wide, limit).div_(wide).clamp_max_(1.0);
  at::_foreach_mul_(gradients, factor.to(gradients[0].scalar_type()));
}

void clip_gradient_values(std::vector<at::Tensor>& gradients, double limit) {
  if (limit <= 0.0) return;
  const torch::NoGradGuard no_grad;
  for (at::Tensor& gradient : gradients) gradient.clamp_(-limit, limit);
}

double learning_rate(const ScheduleConfig& schedule, double peak, int64_t step, int64_t steps,
                     int64_t steps_per_epoch) {
  if (schedule.by_epoch) step -= step % steps_per_epoch;
  const int64_t warmup = schedule.warmup_steps;
  if (step < warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  if (schedule.name == "constant") return peak;
  if (schedule.name == "rsqrt") return inverse_root(schedule, peak, step, steps);
  const double end = schedule.end_lr.value_or(peak * schedule.end);
  const auto after = static_cast<double>(step - warmup);
  if (schedule.period) {
    const int64_t period = *schedule.period * (schedule.by_epoch ? steps_per_epoch : 1);
    return end + (peak - end) * shape(schedule.name, after / static_cast<double>(period));
  }
  const double x = after / static_cast<double>(steps - warmup);
  return end + (peak - end) * shape(schedule.name, std::min(x, 1.0));
}

}  // namespace moesaic
