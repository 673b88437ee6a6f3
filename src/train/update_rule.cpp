// SPDX-License-Identifier: Apache-2.0
// The rules run as one fused pass over the parameters: on two cores that is what keeps an update
// within a few per cent of a step.
#include <torch/torch.h>

#include <map>
#include <optional>
#include <string>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/train/optimizer.h"

namespace moesaic {
namespace {

/// The form in which fused updates take UpdateRule::Group::skip.
std::optional<at::Tensor> found_inf(const UpdateRule::Group& group) {
  return group.skip.defined() ? std::optional(group.skip) : std::nullopt;
}

/// Multiplies the parameters of a group.
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
  void apply(Group& group, double lr, int64_t update) const override {
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

  void apply(Group& group, double lr, int64_t update) const override {
    const at::Tensor count =
        at::full({}, update, group.parameters[0].options().dtype(at::kFloat).requires_grad(false));
    const std::vector<at::Tensor> counts(group.parameters.size(), count);
    at::_fused_adamw_(group.parameters, group.gradients, group.slots[0], group.slots[1], {}, counts,
                      lr, beta1_, beta2_, group.weight_decay, eps_, /*amsgrad=*/false,
                      /*maximize=*/false, /*grad_scale=*/{}, found_inf(group));
  }

 private:
  double beta1_, beta2_, eps_;
};

}  // namespace

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

}  // namespace moesaic
