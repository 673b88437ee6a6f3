// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/aux_losses.h"

#include <torch/torch.h>

#include "moesaic/base/registry.h"
#include "moesaic/nn/router.h"
#include "moesaic/ops/losses.h"

namespace moesaic {
namespace {

using AuxLoss = at::Tensor (*)(const RoutingRecord&);

at::Tensor no_loss(const RoutingRecord& record) {
  return at::zeros({}, record.logits_TE.options().dtype(at::kFloat));
}

/// The record with the logits of those experts only that the router could choose. Members of an
/// ensemble have losses of their own: one after the other, each of its groups becomes a group.
RoutingRecord as_router_saw(RoutingRecord record) {
  if (record.members > 1) {
    const int64_t tokens = record.logits_TE.size(0);
    record.group_size = (record.group_size > 0 ? record.group_size : tokens) / record.members;
    for (at::Tensor* logits : {&record.logits_TE, &record.noisy_logits_TE}) {
      *logits = nn::own_logits(*logits, record.members).flatten(0, 1);
    }
    return record;
  }
  if (!record.reroutes) return record;
  const at::Tensor kept = torch::tensor(record.kept, record.logits_TE.device());
  record.logits_TE = record.logits_TE.index_select(1, kept);
  record.noisy_logits_TE = record.noisy_logits_TE.index_select(1, kept);
  return record;
}

bool experts_choose(const RoutingRecord& record) {
  return record.routing.choice.size(1) == 0;
}

at::Tensor importance_of(const RoutingRecord& record) {
  if (experts_choose(record)) return no_loss(record);
  return importance_loss(record.logits_TE, record.group_size);
}
at::Tensor load_of(const RoutingRecord& record) {
  if (experts_choose(record) || record.noise_std == 0.0) return no_loss(record);
  return load_loss(record.logits_TE, record.noisy_logits_TE, record.routing.choice.size(1),
                   record.noise_std, record.group_size);
}
at::Tensor gshard_of(const RoutingRecord& record) {
  if (experts_choose(record)) return no_loss(record);
  return gshard_loss(record.noisy_logits_TE, record.group_size);
}
at::Tensor switch_balance_of(const RoutingRecord& record) {
  if (experts_choose(record)) return no_loss(record);
  return switch_balance_loss(record.noisy_logits_TE, record.group_size);
}
at::Tensor switch_balance_logit_of(const RoutingRecord& record) {
  if (experts_choose(record)) return no_loss(record);
  return switch_balance_loss(record.noisy_logits_TE, record.group_size, BalanceProxy::logit);
}
at::Tensor router_z_of(const RoutingRecord& record) {
  return router_z_loss(record.logits_TE, record.group_size);
}

const Registry<AuxLoss>& aux_losses() {
  static const Registry<AuxLoss> registry("auxiliary loss",
                                          {{"gshard", gshard_of},
                                           {"importance", importance_of},
                                           {"load", load_of},
                                           {"router_z", router_z_of},
                                           {"switch_balance", switch_balance_of},
                                           {"switch_balance_logit", switch_balance_logit_of}});
  return registry;
}

}  // namespace

std::vector<std::string> aux_loss_names() {
  return aux_losses().names();
}

std::map<std::string, double> aux_loss_weights(const std::map<std::string, double>& phase,
                                               const Model& model) {
  std::map<std::string, double> weights = phase;
  weights.merge(model.aux_losses());
  return weights;
}

at::Tensor aux_loss(const std::string& name, const ModelOutput& output) {
  const AuxLoss loss = aux_losses().at(name);
  std::vector<at::Tensor> losses;
  for (const RoutingRecord& record : output.routings) {
    losses.push_back(loss(as_router_saw(record)));
  }
  if (losses.empty()) return at::zeros({}, output.logits.options().dtype(at::kFloat));
  return at::stack(losses).sum();
}

}  // namespace moesaic
