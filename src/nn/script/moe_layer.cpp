// SPDX-License-Identifier: Apache-2.0
// TorchScript form of a mixture-of-experts layer: ops/route_token_choice.h, ops/dispatch.h,
// ops/grouped_mlp.h and ops/combine.h by aten operators.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "moesaic/base/error.h"
#include "moesaic/nn/mlp_experts.h"
#include "moesaic/nn/script.h"

namespace moesaic::script {
namespace {

constexpr char kRouter[] = R"(
def forward(self, x: Tensor) -> Tensor:
    return torch.mm(x, self.weight.t())
)";

// one_by_one: counts[e] consecutive rows belong to expert e, which is skipped without rows.
// all_at_once: rows [K, C, d] with C rows for each expert.
constexpr char kExperts[] = R"(
def one_by_one(self, rows: Tensor, counts: List[int]) -> Tensor:
    outputs = [rows[:0]]
    for x, w1, b1, w2, b2 in zip(rows.split(counts), self.w1.unbind(0), self.b1.unbind(0),
                                 self.w2.unbind(0), self.b2.unbind(0)):
        if x.size(0) > 0:
            hidden = torch.addmm(b1, x, w1)
            outputs.append(torch.addmm(b2, {activation}, w2))
    return torch.cat(outputs)

def all_at_once(self, rows: Tensor) -> Tensor:
    hidden = torch.baddbmm(self.b1.unsqueeze(1), rows, self.w1)
    return torch.baddbmm(self.b2.unsqueeze(1), {activation}, self.w2)
)";

// has_room(choice [T, k]) -> bool [T, k]. A queue holds all first choices before the second ones,
// each rank in token order; a stable sort lays the queues side by side. Every expert has one queue,
// or one for each group of tokens.
constexpr char kCapacityByFactor[] = R"(
def capacity(self, tokens: int) -> int:
    rows = torch.ceil(float(tokens) * {k}.0 * {factor} / {experts}.0)
    return (rows + {multiple} - 1) // {multiple} * {multiple}
)";

constexpr char kCapacity[] = R"(
def capacity(self, tokens: int) -> int:
    return {}
)";

constexpr char kRoom[] = R"(
def has_room(self, choice: Tensor) -> Tensor:
    tokens = choice.size(0)
    queue = choice{queue_of_group}
    queue, order = torch.sort(queue.t().flatten(), stable=True)
    place = torch.arange(tokens * {k}, device=choice.device) - torch.searchsorted(queue, queue)
    place = torch.zeros_like(place).scatter_(0, order, place).view([{k}, tokens]).t()
    return place < {capacity}
)";

constexpr char kQueueOfGroup[] =
    " + torch.floor_divide(torch.arange(tokens, device=choice.device), {}).unsqueeze(1) * {}";

// The last group has the remaining tokens.
constexpr char kCapacityOfGroup[] =
    "torch.where(torch.arange(tokens, device=choice.device) < tokens - tokens % {group_size}, "
    "self.capacity({group_size}), self.capacity(tokens % {group_size})).unsqueeze(1)";

// combine_weights(logits [T, E]) -> [T, E]: the gates of the selected experts, 0 elsewhere. The
// stable sort gives ties to the lower expert, which torch.topk does not promise.
constexpr char kWeights[] = R"(
def combine_weights(self, logits: Tensor) -> Tensor:
    ranked, order = torch.sort(logits, stable=True, dim=1, descending=True)
    choice = order[:, :{k}]
    fractions = torch.exp(ranked{softmax_over} - ranked[:, :1])
    gate = fractions[:, :{k}] / fractions.sum([1], keepdim=True)
    {drop}
    return torch.zeros_like(logits).scatter_(1, choice, gate)
)";

// If few rows are evenly spread, they are padded with tokens of weight 0, so that two products
// serve all experts: for them calls cost more than arithmetic.
constexpr char kLayer[] = R"(
def forward(self, x: Tensor) -> Tensor:
    weights = self.combine_weights(self.router.forward(x)).t().contiguous()
    {keep}
    tokens = x{rounded}
    routed = weights != 0
    counts: List[int] = routed.sum([1]).tolist()
    longest = max(counts)
    if sum(counts) <= {few} and len(counts) * longest <= 3 * sum(counts):
        gate, token = torch.sort(weights, dim=1, descending=True)
        gate = gate[:, :longest].unsqueeze(2)
        token = token[:, :longest].flatten()
        rows = tokens.index_select(0, token).view([len(counts), longest, x.size(1)])
        rows = self.experts.all_at_once(rows)
    else:
        gate = weights.masked_select(routed).unsqueeze(1)
        token = routed.nonzero()[:, 1]
        rows = self.experts.one_by_one(tokens.index_select(0, token), counts)
    rows = (rows{rounded} * gate).view([token.size(0), x.size(1)])
    return torch.zeros_like(x).index_add_(0, token, rows)
)";
constexpr int64_t kFewRows = 256;

// TorchScript names a dtype only by its number.
constexpr char kRounded[] = ".to({}).to(x.dtype)";

constexpr char kKeep[] = "weights = weights.index_select(0, torch.tensor([{}], device=x.device))";

bool limited(const TokenChoiceOptions& choice) {
  return choice.capacity > 0 || choice.capacity_factor > 0.0;
}

std::string capacity_source(const TokenChoiceOptions& choice, int64_t experts) {
  if (choice.capacity > 0) return fmt::format(kCapacity, choice.capacity);
  return fmt::format(kCapacityByFactor, fmt::arg("k", choice.k), fmt::arg("experts", experts),
                     fmt::arg("factor", literal(choice.capacity_factor)),
                     fmt::arg("multiple", choice.capacity_multiple_of));
}

std::string room_source(const TokenChoiceOptions& choice, int64_t experts) {
  std::string queue_of_group, capacity = "self.capacity(tokens)";
  if (choice.group_size > 0) {
    queue_of_group = fmt::format(kQueueOfGroup, choice.group_size, experts);
    capacity = fmt::format(kCapacityOfGroup, fmt::arg("group_size", choice.group_size));
  }
  return capacity_source(choice, experts) + fmt::format(kRoom, fmt::arg("k", choice.k),
                                                        fmt::arg("queue_of_group", queue_of_group),
                                                        fmt::arg("capacity", capacity));
}

/// Checks that the source above supports the routing.
void check_exportable(const TokenChoiceOptions& choice) {
  const bool softmax = choice.gate == Gate::softmax_all || choice.gate == Gate::softmax_selected;
  if (!softmax) {
    fail("torchscript: gates '{}' cannot be exported yet; {}",
         gate_names()[static_cast<size_t>(choice.gate)], kOtherFormat);
  }
  if (choice.batch_priority && limited(choice)) {
    fail("torchscript: batch priority with a capacity cannot be exported yet; {}", kOtherFormat);
  }
  if (choice.capacity_rounding != CapacityRounding::ceil && choice.capacity_factor > 0.0) {
    fail("torchscript: capacities rounded to the nearest cannot be exported yet; {}", kOtherFormat);
  }
  if (choice.pruned == PrunedSelection::reroute && !choice.kept.empty()) {
    fail("torchscript: pruned layers that reroute cannot be exported yet; {}", kOtherFormat);
  }
}

std::string weights_source(const TokenChoiceOptions& choice) {
  const bool all = choice.gate == Gate::softmax_all;
  const bool drops = limited(choice);
  return fmt::format(
      kWeights, fmt::arg("k", choice.k),
      fmt::arg("softmax_over", all ? "" : fmt::format("[:, :{}]", choice.k)),
      fmt::arg("drop", drops ? "gate = gate * self.has_room(choice)" : "# nothing is dropped"));
}

std::string forward_source(const std::vector<int64_t>& kept, bool bfloat16) {
  const std::string keep =
      kept.empty() ? "# every expert is there" : fmt::format(kKeep, fmt::join(kept, ", "));
  const std::string rounded =
      bfloat16 ? fmt::format(kRounded, static_cast<int>(at::kBFloat16)) : std::string();
  return fmt::format(kLayer, fmt::arg("keep", keep), fmt::arg("few", kFewRows),
                     fmt::arg("rounded", rounded));
}

Module make_router(const Unit& unit, const nn::RouterImpl& from) {
  return make_module(unit, "Router", from, {}, kRouter);
}

// The functions are in the order of Activation.
constexpr std::array<const char*, kActivationNames.size()> kActivations = {
    "torch.relu(hidden)", "torch.gelu(hidden, approximate=\"tanh\")",
    "torch.gelu(hidden)", "(hidden * hidden * hidden)",
    "(hidden)",           "torch.celu(hidden)",
    "torch.tanh(hidden)"};

Module make_experts(const Unit& unit, const nn::MlpExpertsImpl& from) {
  const char* activation = kActivations.at(static_cast<size_t>(from.options().activation));
  return make_module(unit, "Experts", from, {},
                     fmt::format(kExperts, fmt::arg("activation", activation)));
}

}  // namespace

Module make_moe_layer(const Unit& unit, const nn::MoELayerImpl& from) {
  const nn::RoutingRule rule = from.router->evaluation_rule();
  const auto* tokens_choose = std::get_if<TokenChoiceOptions>(&rule);
  if (tokens_choose == nullptr) {
    const bool adaptive = std::holds_alternative<AdaptiveOptions>(rule);
    fail("torchscript: {} cannot be exported yet; {}",
         adaptive ? "adaptive routing" : "expert choice", kOtherFormat);
  }
  const auto* experts = from.experts->as<nn::MlpExperts>();
  if (experts == nullptr) {
    fail("torchscript: experts other than MLPs cannot be exported yet; {}", kOtherFormat);
  }
  if (from.options().evaluation_seed && from.options().noise.scale > 0.0) {
    fail("torchscript: a router with noise in evaluation cannot be exported; {}", kOtherFormat);
  }
  const TokenChoiceOptions& choice = *tokens_choose;
  check_exportable(choice);
  std::string source =
      weights_source(choice) + forward_source(choice.kept, experts->options().bfloat16);
  if (limited(choice)) source = room_source(choice, from.options().experts) + source;
  return make_module(
      unit, "MoELayer", from,
      {{"router", make_router(unit, *from.router)}, {"experts", make_experts(unit, *experts)}},
      source);
}

}  // namespace moesaic::script
