// SPDX-License-Identifier: Apache-2.0
// TorchScript form of the routing rules: ops/route_*.h by aten operators.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "parts.h"

namespace moesaic::script {
namespace {

constexpr char kCapacityByFactor[] = R"(
def capacity(self, tokens: int) -> int:
    exact = float(tokens) * {k}.0 * {factor} / {experts}.0
    rows = {rounded}
    assert rows > 0 or tokens == 0, "{{}} tokens give no row to an expert".format(tokens)
    return (rows + {multiple} - 1) // {multiple} * {multiple}
)";
constexpr char kHalfToEven[] =
    "torch.floor(exact)\n"
    "    rest = exact - float(rows)\n"
    "    if rest > 0.5 or (rest == 0.5 and rows % 2 == 1):\n"
    "        rows += 1";

constexpr char kCapacity[] = R"(
def capacity(self, tokens: int) -> int:
    return {}
)";

// has_room(choice [T, k], gate [T, k]) -> bool [T, k]. A queue holds all first choices before the
// second ones, each rank in the order of tokens or of first gates; a stable sort lays the queues
// side by side. Every expert has one queue, or one for each group of tokens.
constexpr char kRoom[] = R"(
def has_room(self, choice: Tensor, gate: Tensor) -> Tensor:
    tokens = choice.size(0)
    queue = choice{queue_of_group}
    {first}
    queue, order = torch.sort(queue.t().flatten(), stable=True)
    place = torch.arange(tokens * {k}, device=choice.device) - torch.searchsorted(queue, queue)
    place = torch.zeros_like(place).scatter_(0, order, place).view([{k}, tokens]).t()
    {back}
    return place < {capacity}
)";
constexpr char kPriority[] =
    "first = torch.sort(gate[:, 0], stable=True, dim=0, descending=True)[1]\n"
    "    queue = queue.index_select(0, first)";
constexpr char kInTokenOrder[] = "place = torch.zeros_like(place).index_copy(0, first, place)";

constexpr char kQueueOfGroup[] =
    " + torch.floor_divide(torch.arange(tokens, device=choice.device), {}).unsqueeze(1) * {}";

// The last group has the remaining tokens.
constexpr char kCapacityOfGroup[] =
    "torch.where(torch.arange(tokens, device=choice.device) < tokens - tokens % {group_size}, "
    "self.capacity({group_size}), self.capacity(tokens % {group_size})).unsqueeze(1)";

// The stable sort gives ties to the lower expert, which torch.topk does not promise.
constexpr char kTokensChoose[] = R"(
    ranked, order = torch.sort(logits, stable=True, dim=1, descending=True)
    choice = order[:, :{k}]
    {gate}
    {drop}
    return torch.zeros_like(logits).scatter_(1, choice, gate)
)";
constexpr char kSoftmax[] =
    "fractions = torch.exp(ranked{over} - ranked[:, :1])\n"
    "    gate = fractions[:, :{k}] / fractions.sum([1], keepdim=True)";

// choose(logits [G, S, E], rows) -> [G, S, E]; ties go to the earlier token.
constexpr char kChoose[] = R"(
def choose(self, logits: Tensor, rows: int) -> Tensor:
    ranked, order = torch.sort({score}, stable=True, dim=1, descending=True)
    assert rows <= logits.size(1), "a group has {{}} tokens, fewer than {{}}".format(logits.size(1), rows)
    return torch.zeros_like(logits).scatter_(1, order[:, :rows], {gate})
)";

// Groups of `size` tokens, then one of the remaining tokens.
constexpr char kExpertsChoose[] = R"(
    tokens, experts = logits.size(0), logits.size(1)
    size = min(tokens, {group_size})
    whole = tokens - tokens % max(size, 1)
    rest = logits[whole:].unsqueeze(0)
    weights = logits[:0]
    if whole > 0:
        groups = logits[:whole].view([whole // size, size, experts])
        weights = self.choose(groups, {rows_of_size}).flatten(0, 1)
    if whole < tokens:
        weights = torch.cat([weights, self.choose(rest, {rows_of_rest}).flatten(0, 1)])
    return weights
)";

bool limited(const TokenChoiceOptions& rule) {
  return rule.capacity > 0 || rule.capacity_factor > 0.0;
}

/// Returns a method with the capacity of a group, see expert_capacity().
template <class Options>
std::string capacity_source(const Options& rule, int64_t k, int64_t rows, int64_t experts) {
  if (rows > 0) return fmt::format(kCapacity, rows);
  const bool up = rule.capacity_rounding == CapacityRounding::ceil;
  return fmt::format(kCapacityByFactor, fmt::arg("k", k), fmt::arg("experts", experts),
                     fmt::arg("factor", literal(rule.capacity_factor)),
                     fmt::arg("rounded", up ? "torch.ceil(exact)" : kHalfToEven),
                     fmt::arg("multiple", rule.capacity_multiple_of));
}

std::string room_source(const TokenChoiceOptions& rule, int64_t experts) {
  std::string queue_of_group, capacity = "self.capacity(tokens)";
  if (rule.group_size > 0) {
    queue_of_group = fmt::format(kQueueOfGroup, rule.group_size, experts);
    capacity = fmt::format(kCapacityOfGroup, fmt::arg("group_size", rule.group_size));
  }
  const bool priority = rule.batch_priority;
  return capacity_source(rule, rule.k, rule.capacity, experts) +
         fmt::format(kRoom, fmt::arg("k", rule.k), fmt::arg("queue_of_group", queue_of_group),
                     fmt::arg("first", priority ? kPriority : "# in the order of tokens"),
                     fmt::arg("back", priority ? kInTokenOrder : "# as they are"),
                     fmt::arg("capacity", capacity));
}

/// Returns the body of combine_weights(), and the methods that it calls.
struct WeightsSource {
  std::string body, methods;
};

WeightsSource source_of(const TokenChoiceOptions& rule, int64_t experts) {
  const std::string selected = fmt::format("[:, :{}]", rule.k);
  std::string gate;
  switch (rule.gate) {
    case Gate::softmax_selected:
    case Gate::softmax_all:
      gate = fmt::format(kSoftmax, fmt::arg("k", rule.k),
                         fmt::arg("over", rule.gate == Gate::softmax_all ? "" : selected));
      break;
    case Gate::logit:
      gate = "gate = ranked" + selected;
      break;
    case Gate::one:
      gate = "gate = torch.ones_like(ranked" + selected + ")";
      break;
  }
  const bool drops = limited(rule);
  return {fmt::format(kTokensChoose, fmt::arg("k", rule.k), fmt::arg("gate", gate),
                      fmt::arg("drop", drops ? "gate = gate * self.has_room(choice, gate)"
                                             : "# nothing is dropped")),
          drops ? room_source(rule, experts) : std::string()};
}

WeightsSource source_of(const ExpertChoiceOptions& rule, int64_t experts) {
  const bool by_expert = rule.gate == ExpertGate::softmax_experts;
  const char* gate = "";
  switch (rule.gate) {
    case ExpertGate::softmax_selected:
      gate = "torch.softmax(ranked[:, :rows], 1)";
      break;
    case ExpertGate::softmax_tokens:
      gate = "torch.softmax(ranked, 1)[:, :rows]";
      break;
    case ExpertGate::softmax_experts:
      gate = "ranked[:, :rows]";
      break;
    case ExpertGate::one:
      gate = "torch.ones_like(ranked[:, :rows])";
      break;
  }
  // A fixed number of rows has to fit into every group; a capacity is at most its size.
  const auto rows_of = [&](const char* size, const char* tokens) {
    return rule.rows > 0 ? fmt::format("self.capacity({})", tokens)
                         : fmt::format("min(self.capacity({0}), {0})", size);
  };
  const std::string group_size =
      rule.group_size > 0 ? std::to_string(rule.group_size) : std::string("tokens");
  return {fmt::format(kExpertsChoose, fmt::arg("group_size", group_size),
                      fmt::arg("rows_of_size", rows_of("size", "size")),
                      fmt::arg("rows_of_rest", rows_of("rest.size(1)", "tokens"))),
          capacity_source(rule, 1, rule.rows, experts) +
              fmt::format(kChoose, fmt::arg("gate", gate),
                          fmt::arg("score", by_expert ? "torch.softmax(logits, 2)" : "logits"))};
}

/// The smallest float32 that reaches the threshold makes the comparison exact.
WeightsSource source_of(const AdaptiveOptions& rule, int64_t) {
  auto threshold = static_cast<float>(rule.threshold);
  if (threshold < rule.threshold) {
    threshold = std::nextafter(threshold, std::numeric_limits<float>::infinity());
  }
  return {fmt::format("    return (logits >= {}).to(logits.dtype)\n", literal(threshold)), ""};
}

constexpr char kColumns[] = "{}.index_select(1, torch.tensor([{}], device=logits.device))";

}  // namespace

std::string weights_source(const nn::RoutingRule& rule, int64_t experts) {
  const std::vector<int64_t>& kept = nn::kept_experts(rule);
  const std::string columns = fmt::format("{}", fmt::join(kept, ", "));
  const bool reroutes = !kept.empty() && nn::pruned_selection(rule) == PrunedSelection::reroute;
  const auto seen = reroutes ? static_cast<int64_t>(kept.size()) : experts;
  const WeightsSource source =
      std::visit([&](const auto& options) { return source_of(options, seen); }, rule);
  // Pruned experts are out of the selection, or only of what it gives.
  std::string text = source.methods + "\ndef weights_of_seen(self, logits: Tensor) -> Tensor:\n" +
                     source.body + "\ndef combine_weights(self, logits: Tensor) -> Tensor:\n";
  if (kept.empty()) return text + "    return self.weights_of_seen(logits)\n";
  if (reroutes) {
    return text + "    return self.weights_of_seen(" + fmt::format(kColumns, "logits", columns) +
           ")\n";
  }
  std::vector<int64_t> removed;
  for (int64_t id = 0; id < experts; ++id) {
    if (!std::binary_search(kept.begin(), kept.end(), id)) removed.push_back(id);
  }
  const std::string weights = "self.weights_of_seen(logits)";
  return text + "    return " + fmt::format(kColumns, weights, columns) +
         "\ndef removed_weights(self, logits: Tensor) -> Tensor:\n    return " +
         fmt::format(kColumns, weights, fmt::format("{}", fmt::join(removed, ", "))) + "\n";
}

}  // namespace moesaic::script
