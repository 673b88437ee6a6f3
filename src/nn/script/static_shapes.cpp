// SPDX-License-Identifier: Apache-2.0
#include "static_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "moesaic/nn/script.h"

namespace moesaic::script {
namespace {

constexpr char kStaticCapacity[] = R"(
def capacity(self, tokens: Tensor) -> Tensor:
    rows = torch.{round}(tokens * {k}.0 * {factor} / {experts}.0)
    return torch.floor((rows + {multiple}.0 - 1.0) / {multiple}.0) * {multiple}.0
)";

// The number of tokens as float64.
constexpr char kStaticTokens[] = "torch.ones_like({}, dtype=torch.float64).sum()";

// A queue holds all first choices of a group before the second ones, each rank in the order of
// tokens or of first gates.
constexpr char kStaticRoom[] = R"(
def has_room(self, choice: Tensor, gate: Tensor) -> Tensor:
    tokens = choice.size(0)
    queue = {queue}
    {sort}
    taken = F.one_hot(queue.transpose(1, 2).flatten(1), {queues})
    place = ((taken.cumsum(1) - 1) * taken).sum([2]).unflatten(1, [{k}, -1]).transpose(1, 2)
    {back}
    return place.flatten(0, 1)[:tokens] < {capacity}
)";
constexpr char kStaticSort[] =
    "first = {}\n"
    "    first = torch.sort(first, stable=True, dim=1, descending=True)[1].unsqueeze(2)\n"
    "    first = first.expand_as(queue)\n"
    "    queue = queue.gather(1, first)";
constexpr char kStaticBack[] = "place = torch.zeros_like(place).scatter_(1, first, place)";

// Tokens behind the last ones fill the last group; they queue for no expert.
constexpr char kStaticFilled[] =
    "torch.constant_pad_nd({0}, [{1}0, ((tokens + {2} - 1) // {2}) * {2} - tokens], {3})"
    ".unflatten(0, [-1, {2}])";

// The last group has the remaining tokens.
constexpr char kStaticCapacityOfGroup[] = "self.capacity_of_group(gate[:, 0]).unsqueeze(1)";
constexpr char kStaticCapacityOfGroups[] = R"(
def capacity_of_group(self, gate: Tensor) -> Tensor:
    tokens = {tokens}
    whole = torch.floor(tokens / {group_size}.0) * {group_size}.0
    is_whole = torch.arange(gate.size(0), device=gate.device) < whole
    return torch.where(is_whole, {capacity}.0, self.capacity(tokens - whole))
)";

constexpr char kStaticChoose[] = R"(
def choose(self, logits: Tensor) -> Tensor:
    ranked, order = torch.sort({score}, stable=True, dim=1, descending=True)
    rank = torch.arange(ranked.size(1), device=logits.device).unsqueeze(1)
    selected = rank < self.capacity({tokens})
    return torch.zeros_like(logits).scatter_(1, order, {gate})
)";

// The gates are in the order of Gate; expert choice has no `logit`.
constexpr std::array kStaticGates = {
    "torch.softmax(ranked.masked_fill(~selected, float(\"-inf\")), 1)", "ranked * selected", "",
    "selected.to(logits.dtype).expand_as(ranked)", "torch.softmax(ranked, 1) * selected"};

// Groups lie one after the other; each expert's tokens are sorted along the last dimension, which
// has no gaps.
constexpr char kStaticSelection[] = R"(
def select(self, logits: Tensor) -> List[Tensor]:
    groups = {groups}
    assert {rows} <= groups.size(1), "a group has {{}} tokens, fewer than {rows}".format(groups.size(1))
    ranked, order = torch.sort({score}.transpose(1, 2){kept}, stable=True, dim=2, descending=True)
    first = torch.arange(0, logits.size(0), groups.size(1), device=logits.device).view([-1, 1, 1])
    token = order.narrow(2, 0, {rows}) + first
    return [token.transpose(0, 1).flatten(1), {gate}.transpose(0, 1).flatten(1)]
)";

// The gates are in the order of Gate; expert choice has no `logit`.
constexpr std::array kSelectedGates = {
    "torch.softmax(ranked.narrow(2, 0, {0}), 2)", "ranked.narrow(2, 0, {0})", "",
    "torch.ones_like(ranked.narrow(2, 0, {0}))", "torch.softmax(ranked, 2).narrow(2, 0, {0})"};

constexpr char kSelectedForward[] = R"(
def forward(self, x: Tensor, inputs: Tensor) -> Tensor:
    logits = self.router.forward(x)
    token, gate = self.select({logits})
    room = token.size(1)
    token = token.flatten()
    rows = inputs.index_select(0, token){rounded}
    {by_operator}rows = {rows}{rounded} * gate.flatten().unsqueeze(1)
    return rows.new_zeros([inputs.size(0), rows.size(1)]).index_add_(0, token, rows)
)";
constexpr char kSelectedByOperator[] = R"(if has_operators():
        offsets = torch.arange({0} + 1, dtype=torch.int32, device=token.device) * room
        parts = self.experts.w1, self.experts.b1, self.experts.w2, self.experts.b2
        rows = torch.ops.moesaic.grouped_mlp(rows, offsets, *parts, {1})[0]
    else:
        rows = self.experts.all_at_once(rows.unflatten(0, [{0}, -1])).flatten(0, 1)
    )";

constexpr char kStaticRoomOfExpert[] = R"(
def room(self, tokens: int) -> int:
    return torch.sym_min(({rows}) * {most}, tokens)
)";

// The rows of weight 0 are of any tokens.
constexpr char kStaticRows[] = R"(
    room = self.room(inputs.size(0))
    token = torch.topk(weights.abs(), room, 1)[1]
    gate = weights.gather(1, token).flatten().unsqueeze(1)
    token = token.flatten()
    rows = {}{} * gate
    return rows.new_zeros([inputs.size(0), rows.size(1)]).index_add_(0, token, rows)
)";
constexpr char kStaticAtOnce[] =
    "self.experts.all_at_once(tokens.index_select(0, token).unflatten(0, [{}, -1])).flatten(0, 1)";
constexpr char kStaticOneByOne[] =
    "self.experts.one_by_one(tokens.index_select(0, token), [room] * {})";

std::string capacity_text(const CapacityRule& rule, int64_t k, int64_t experts) {
  const bool up = rule.rounding == CapacityRounding::ceil;
  return fmt::format(kStaticCapacity, fmt::arg("round", up ? "ceil" : "round"), fmt::arg("k", k),
                     fmt::arg("factor", literal(rule.factor)), fmt::arg("experts", experts),
                     fmt::arg("multiple", rule.multiple_of));
}

/// Returns an expression of `tokens` for at least the capacity that they have together, in whole
/// numbers: 2^20 parts of a row of each token.
std::string rows_text(const RouteOptions& options, int64_t k, int64_t experts) {
  const CapacityRule& rule = options.capacity;
  const int64_t group = options.group_size, given = options.given_rows();
  if (group > 0) {
    const int64_t rows = given > 0 ? given : expert_capacity(group, k, rule, experts);
    return fmt::format("(tokens + {0} - 1) // {0} * {1}", group, std::min(group, rows));
  }
  if (given > 0) return std::to_string(given);
  constexpr int64_t kParts = int64_t{1} << 20;
  const double share = static_cast<double>(k) * rule.factor / static_cast<double>(experts);
  const auto parts = static_cast<int64_t>(std::ceil(share * static_cast<double>(kParts))) + 1;
  return fmt::format("((tokens * {0} + {1} - 1) // {1} + {2} - 1) // {2} * {2}", parts, kParts,
                     rule.multiple_of);
}

/// Returns the most experts of which one computes the tokens.
int64_t most_merged(const nn::MoELayerImpl& layer) {
  std::map<int64_t, int64_t> counts;
  int64_t most = 1;
  for (const int64_t id : layer.merged_into) most = std::max(most, ++counts[id]);
  return most;
}

/// Returns rows_text() of a routing; "" where an expert may get all tokens.
std::string room_text(const RouteOptions& rule, int64_t experts) {
  if (!nn::is_batch_dependent(rule)) return "";
  return rows_text(rule, rule.is_expert_choice() ? 1 : rule.k, experts);
}

}  // namespace

std::string static_room(const RouteOptions& rule, int64_t experts) {
  const int64_t group = rule.group_size;
  const CapacityRule& capacity = rule.capacity;
  std::string queue = "choice.unsqueeze(0)", first = "gate[:, 0].unsqueeze(0)", methods;
  std::string rows = fmt::format("self.capacity({})", fmt::format(kStaticTokens, "gate[:, 0]"));
  if (group > 0) {
    queue = fmt::format(kStaticFilled, "choice", "0, 0, ", group, experts);
    first = fmt::format(kStaticFilled, "gate[:, 0]", "", group, "float(\"-inf\")");
    rows = kStaticCapacityOfGroup;
    methods =
        fmt::format(kStaticCapacityOfGroups, fmt::arg("tokens", fmt::format(kStaticTokens, "gate")),
                    fmt::arg("group_size", group),
                    fmt::arg("capacity", expert_capacity(group, rule.k, capacity, experts)));
  }
  if (capacity.rows > 0) {
    rows = std::to_string(capacity.rows);
    methods.clear();
  } else {
    methods += capacity_text(capacity, rule.k, experts);
  }
  const bool priority = capacity.batch_priority;
  return methods + fmt::format(kStaticRoom, fmt::arg("k", rule.k), fmt::arg("queue", queue),
                               fmt::arg("sort", priority ? fmt::format(kStaticSort, first)
                                                         : "# in the order of tokens"),
                               fmt::arg("queues", group > 0 ? experts + 1 : experts),
                               fmt::arg("back", priority ? kStaticBack : "# as they are"),
                               fmt::arg("capacity", rows));
}

std::string static_choice(const RouteOptions& rule, const std::string& score, int64_t experts) {
  const char* const gate = kStaticGates.at(static_cast<size_t>(rule.gate));
  return capacity_text(rule.capacity, 1, experts) +
         fmt::format(kStaticChoose, fmt::arg("score", score), fmt::arg("gate", gate),
                     fmt::arg("tokens", fmt::format(kStaticTokens, "logits[0, :, 0]")));
}

std::string static_selection(const RouteOptions& rule, const std::string& kept, int64_t experts) {
  const int64_t group = rule.group_size;
  const std::string groups =
      group > 0 ? fmt::format("logits.unflatten(0, [-1, {}])", group) : "logits.unsqueeze(0)";
  const int64_t given = rule.given_rows();
  const int64_t rows =
      given > 0 ? given : std::min(group, expert_capacity(group, 1, rule.capacity, experts));
  const char* const gate = kSelectedGates.at(static_cast<size_t>(rule.gate));
  const bool by_expert = rule.gate == Gate::softmax_all;
  return fmt::format(kStaticSelection, fmt::arg("groups", groups), fmt::arg("rows", rows),
                     fmt::arg("score", by_expert ? "torch.softmax(groups, 2)" : "groups"),
                     fmt::arg("kept", kept),
                     fmt::arg("gate", fmt::format(fmt::runtime(gate), rows)));
}

std::string selected_forward(const nn::ExpertsScript& experts, int64_t count,
                             const std::string& logits, const std::string& rounded) {
  std::string by_operator, rows = fmt::format("self.experts.one_by_one(rows, [room] * {})", count);
  if (experts.mlp) {
    by_operator = fmt::format(kSelectedByOperator, count, static_cast<int>(*experts.mlp));
    rows = "rows";
  }
  return fmt::format(kSelectedForward, fmt::arg("rounded", rounded), fmt::arg("rows", rows),
                     fmt::arg("logits", logits), fmt::arg("by_operator", by_operator));
}

std::string room_of_expert(const nn::MoELayerImpl& layer) {
  const RouteOptions rule = layer.router->evaluation_rule();
  const auto kept = static_cast<int64_t>(rule.kept.size());
  const std::string rows = room_text(rule, rule.is_rerouted() ? kept : layer.options().num_experts);
  const bool is_recorded = !layer.experts->children().empty();
  if (rows.empty() && !is_recorded && !layer.experts->script_source().has_mix) return "";
  return fmt::format(kStaticRoomOfExpert, fmt::arg("rows", rows.empty() ? "tokens" : rows),
                     fmt::arg("most", most_merged(layer)));
}

std::string static_rows(const nn::ExpertsScript& experts, int64_t count,
                        const std::string& rounded) {
  const char* const rows = experts.mlp ? kStaticAtOnce : kStaticOneByOne;
  return fmt::format(kStaticRows, fmt::format(fmt::runtime(rows), count), rounded);
}

}  // namespace moesaic::script
