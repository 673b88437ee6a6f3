// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/expert_use.h"

#include <torch/torch.h>

namespace moesaic {
namespace {

constexpr Powers kUsePowers[] = {{0, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}};

at::Tensor zeros(at::IntArrayRef shape) {
  return at::zeros(shape, at::kDouble);
}

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.to(at::kCPU, at::kDouble);
}

LayerUse empty_use(int64_t experts) {
  LayerUse use;
  for (const Powers powers : kUsePowers) use.sums[powers] = zeros({experts});
  use.selections = zeros({experts});
  use.first_gates = zeros({experts});
  return use;
}

/// Adds what tokens select, and the gates of those that an expert has the largest of.
void add_choices(const RoutingRecord& record, const at::Tensor& ids_K, LayerUse& use) {
  const Routing& routing = record.routing;
  const at::Tensor weights_TK = on_host(combine_weights(routing));
  if (routing.choice.size(1) == 0) {
    const auto [gate_T, slot_T] = weights_TK.max(1);
    use.first_gates.index_add_(0, ids_K.index_select(0, slot_T), gate_T.clamp_min(0));
    use.selections.index_add_(0, ids_K, on_host(routing.offsets.diff()));
    return;
  }
  const at::Tensor choice_Tk = routing.choice.to(at::kCPU, at::kLong);
  use.selections.index_add_(0, choice_Tk.flatten(), at::ones({choice_Tk.numel()}, at::kDouble));
  // A first choice that finds no room, or was pruned, is received by no one.
  at::Tensor weights_TE = zeros({weights_TK.size(0), use.selections.size(0)});
  weights_TE.index_copy_(1, ids_K, weights_TK);
  const at::Tensor first_T1 = choice_Tk.narrow(1, 0, 1);
  use.first_gates.index_add_(0, first_T1.squeeze(1), weights_TE.gather(1, first_T1).squeeze(1));
}

/// Adds the experts' outputs. Where gates are within them, a gate times the norm is the norm alone.
void add_rows(const RoutingRecord& record, const nn::ExpertRows& computed, const at::Tensor& ids_K,
              LayerUse& use) {
  const Routing& routing = record.routing;
  const auto rows = routing.offsets[-1].item<int64_t>();
  const at::Tensor id_R =
      ids_K.index_select(0, row_experts(routing).narrow(0, 0, rows).to(at::kCPU));
  const at::Tensor outputs_Ro = on_host(computed.outputs.narrow(0, 0, rows));
  const at::Tensor gate_R = on_host(routing.gate.narrow(0, 0, rows));
  const at::Tensor norm_R = outputs_Ro.norm(2, {1});
  for (auto& [powers, sum] : use.sums) {
    const double gate = computed.gated && powers.norm > 0 ? 0 : powers.gate;
    sum.index_add_(0, id_R, gate_R.pow(gate) * norm_R.pow(powers.norm));
  }
  if (!use.outputs_Eo.defined()) {
    use.outputs_Eo = zeros({use.selections.size(0), outputs_Ro.size(1)});
  }
  use.outputs_Eo.index_add_(0, id_R, outputs_Ro);
}

}  // namespace

double LayerUse::sum(Powers powers, int64_t expert) const {
  return sums.at(powers)[expert].item<double>();
}

int64_t LayerUse::rows(int64_t expert) const {
  return static_cast<int64_t>(sum({0, 0}, expert));
}

at::Tensor LayerUse::mean_outputs_Eo() const {
  return outputs_Eo / sums.at({0, 0}).clamp_min(1.0).unsqueeze(1);
}

ExpertUseMeter::ExpertUseMeter(const Model& model) : blocks_(model.moe_blocks()) {
  for (MoEBlock& block : blocks_) {
    LayerUse& use = use_[block.block] = empty_use(block.layer->options().experts);
    block.layer->observe([&use, experts = block.layer->experts](const RoutingRecord& record,
                                                                const at::Tensor& inputs) {
      const torch::NoGradGuard no_grad;
      const at::Tensor ids_K = at::tensor(record.kept, at::kLong);
      use.tokens += record.routing.tokens();
      add_choices(record, ids_K, use);
      add_rows(record, experts->compute(inputs, record.routing, {}), ids_K, use);
    });
  }
}

ExpertUseMeter::~ExpertUseMeter() {
  for (MoEBlock& block : blocks_) block.layer->observe({});
}

}  // namespace moesaic
