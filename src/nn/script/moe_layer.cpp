// SPDX-License-Identifier: Apache-2.0
// TorchScript form of a mixture-of-experts layer by aten operators: its router, the rules of
// ops/route.h, ops/dispatch.h, the experts and ops/combine.h.
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <limits>

#include "moesaic/base/random.h"
#include "moesaic/nn/image_network.h"
#include "moesaic/nn/script.h"
#include "static_shapes.h"

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
constexpr char kTokenChoiceSource[] = R"(
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

// The gates are in the order of Gate; expert choice has no `logit`.
constexpr std::array kExpertGates = {"torch.softmax(ranked[:, :rows], 1)", "ranked[:, :rows]", "",
                                     "torch.ones_like(ranked[:, :rows])",
                                     "torch.softmax(ranked, 1)[:, :rows]"};

// Groups of `size` tokens, then one of the remaining tokens.
constexpr char kExpertChoiceSource[] = R"(
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

// Experts that choose a number of tokens that is known.
constexpr char kWeightsOfSelected[] = R"(
    token, gate = self.select(logits)
    return gate.new_zeros([token.size(0), logits.size(0)]).scatter_(1, token, gate).t()
)";

/// Returns a method with the capacity of a group, see expert_capacity().
std::string capacity_source(const RouteOptions& rule, int64_t k, int64_t experts) {
  if (const int64_t rows = rule.given_rows(); rows > 0)
    return fmt::format("\ndef capacity(self, tokens: int) -> int:\n    return {}\n", rows);
  const bool up = rule.capacity.rounding == CapacityRounding::ceil;
  return fmt::format(kCapacityByFactor, fmt::arg("k", k), fmt::arg("experts", experts),
                     fmt::arg("factor", literal(rule.capacity.factor)),
                     fmt::arg("rounded", up ? "torch.ceil(exact)" : kHalfToEven),
                     fmt::arg("multiple", rule.capacity.multiple_of));
}

std::string room_source(const RouteOptions& rule, int64_t experts) {
  std::string queue_of_group, capacity = "self.capacity(tokens)";
  if (rule.group_size > 0) {
    queue_of_group = fmt::format(kQueueOfGroup, rule.group_size, experts);
    capacity = fmt::format(kCapacityOfGroup, fmt::arg("group_size", rule.group_size));
  }
  const bool priority = rule.capacity.batch_priority;
  return capacity_source(rule, rule.k, experts) +
         fmt::format(kRoom, fmt::arg("k", rule.k), fmt::arg("queue_of_group", queue_of_group),
                     fmt::arg("first", priority ? kPriority : "# in the order of tokens"),
                     fmt::arg("back", priority ? kInTokenOrder : "# as they are"),
                     fmt::arg("capacity", capacity));
}

/// Returns the body of combine_weights(), and the methods that it calls.
struct WeightsSource {
  std::string body, methods;
};

WeightsSource token_choice_source(const RouteOptions& rule, int64_t experts, Dialect dialect) {
  const std::string selected = fmt::format("[:, :{}]", rule.k);
  const bool over_all = rule.gate == Gate::softmax_all;
  const std::string gate =
      over_all || rule.gate == Gate::softmax_selected
          ? fmt::format(kSoftmax, fmt::arg("k", rule.k), fmt::arg("over", over_all ? "" : selected))
      : rule.gate == Gate::logit ? "gate = ranked" + selected
                                 : "gate = torch.ones_like(ranked" + selected + ")";
  const bool drops = rule.capacity.has_capacity();
  return {fmt::format(kTokenChoiceSource, fmt::arg("k", rule.k), fmt::arg("gate", gate),
                      fmt::arg("drop", drops ? "gate = gate * self.has_room(choice, gate)"
                                             : "# nothing is dropped")),
          !drops                       ? std::string()
          : dialect == Dialect::python ? static_room(rule, experts)
                                       : room_source(rule, experts)};
}

bool has_fixed_rows(const RouteOptions& rule) {
  return rule.given_rows() > 0 || rule.group_size > 0;
}

WeightsSource expert_choice_source(const RouteOptions& rule, int64_t experts, Dialect dialect,
                                   const std::string& kept) {
  const bool by_expert = rule.gate == Gate::softmax_all;
  const std::string score = by_expert ? "torch.softmax(logits, 2)" : "logits";
  if (dialect == Dialect::python) {
    if (has_fixed_rows(rule)) return {kWeightsOfSelected, static_selection(rule, kept, experts)};
    return {"    return self.choose(logits.unsqueeze(0)).flatten(0, 1)\n",
            static_choice(rule, score, experts)};
  }
  const char* const gate = kExpertGates.at(static_cast<size_t>(rule.gate));
  const std::string choose = fmt::format(kChoose, fmt::arg("gate", gate), fmt::arg("score", score));
  // A fixed number of rows has to fit into every group; a capacity is at most its size.
  const auto rows_of = [&](const char* size, const char* tokens) {
    return rule.given_rows() > 0 ? fmt::format("self.capacity({})", tokens)
                                 : fmt::format("min(self.capacity({0}), {0})", size);
  };
  const std::string group_size =
      rule.group_size > 0 ? std::to_string(rule.group_size) : std::string("tokens");
  return {fmt::format(kExpertChoiceSource, fmt::arg("group_size", group_size),
                      fmt::arg("rows_of_size", rows_of("size", "size")),
                      fmt::arg("rows_of_rest", rows_of("rest.size(1)", "tokens"))),
          capacity_source(rule, 1, experts) + choose};
}

/// The smallest float32 that reaches the threshold makes the comparison exact.
WeightsSource threshold_source(const RouteOptions& rule) {
  auto threshold = static_cast<float>(rule.threshold);
  if (threshold < rule.threshold) {
    threshold = std::nextafter(threshold, std::numeric_limits<float>::infinity());
  }
  return {fmt::format("    return (logits >= {}).to(logits.dtype)\n", literal(threshold)), ""};
}

/// Returns the columns of a tensor that belong to some experts.
std::string columns_of(const std::string& tensor, const std::vector<int64_t>& experts) {
  return fmt::format("{}.index_select(1, torch.tensor([{}], device=logits.device))", tensor,
                     fmt::join(experts, ", "));
}

constexpr char kMergedColumns[] =
    "    place = torch.tensor([{}], device=logits.device)\n"
    "    weights = self.weights_of_seen(logits)\n"
    "    return weights.new_zeros([weights.size(0), {}]).index_add_(1, place, weights)\n";

/// Returns whether forward() computes the rows that a fixed number of choices names.
bool selects_rows(const nn::MoELayerImpl& layer, const nn::ExpertsScript& experts,
                  Dialect dialect) {
  const RouteOptions rule = layer.router->evaluation_rule();
  return dialect == Dialect::python && rule.is_expert_choice() && has_fixed_rows(rule) &&
         !experts.has_mix && layer.merged_into.empty() && !layer.replacement_outputs.defined();
}

/// Returns combine_weights(logits [T, E]) -> [T, K], and what it calls: the gates of the experts to
/// which a token is routed, 0 elsewhere. Where removed experts are selected,
/// removed_weights(logits) -> [T, E - K] are theirs. Gates of merged experts add up.
std::string weights_source(const nn::MoELayerImpl& layer, Dialect dialect, bool selects) {
  const RouteOptions rule = layer.router->evaluation_rule();
  const int64_t experts = layer.options().num_experts;
  const std::vector<int64_t>& kept = rule.kept;
  const auto seen = rule.is_rerouted() ? static_cast<int64_t>(kept.size()) : experts;
  const bool selects_kept = selects && !kept.empty() && !rule.is_rerouted();
  const std::string of_scores = selects_kept ? columns_of("", kept) : std::string();
  const WeightsSource source = rule.is_token_choice() ? token_choice_source(rule, seen, dialect)
                               : rule.is_expert_choice()
                                   ? expert_choice_source(rule, seen, dialect, of_scores)
                                   : threshold_source(rule);
  // Removed experts are out of the selection, or only of what it gives.
  std::string text = source.methods + "\ndef weights_of_seen(self, logits: Tensor) -> Tensor:\n" +
                     source.body + "\ndef combine_weights(self, logits: Tensor) -> Tensor:\n";
  if (kept.empty() || selects_kept) return text + "    return self.weights_of_seen(logits)\n";
  if (!layer.merged_into.empty()) {
    return text + fmt::format(kMergedColumns, fmt::join(layer.merged_slots(), ", "), kept.size());
  }
  if (rule.is_rerouted()) {
    return text + "    return self.weights_of_seen(" + columns_of("logits", kept) + ")\n";
  }
  const std::string weights = "self.weights_of_seen(logits)";
  return text + "    return " + columns_of(weights, kept) +
         "\ndef removed_weights(self, logits: Tensor) -> Tensor:\n    return " +
         columns_of(weights, nn::removed_experts(rule, experts)) + "\n";
}

constexpr char kRouter[] = R"(
def forward(self, x: Tensor) -> Tensor:
    logits = torch.linear(x, self.weight)
)";

// Token t is of member t % M, expert e of member e / (E / M).
constexpr char kOwnExperts[] = R"(
    member = torch.remainder(torch.arange(x.size(0), device=x.device), {members}).unsqueeze(1)
    owner = torch.floor_divide(torch.arange({experts}, device=x.device), {each})
    logits = logits.masked_fill(member != owner, float("-inf"))
)";

// Noise of token t is that of CounterRng at position t: Philox4x32-10 on words of 32 bits, two
// numbers from [0, 1) for each count of blocks. TorchScript names a dtype only by its number.
constexpr char kNoise[] = R"(
def noise(self, logits: Tensor) -> Tensor:
    block = torch.arange({blocks}, device=logits.device)
    position = torch.arange(logits.size(0), device=logits.device).unsqueeze(1)
    w0, w2 = block + torch.zeros_like(position), position + torch.zeros_like(block)
    w1, w3 = torch.zeros_like(w0), torch.zeros_like(w0)
    key0, key1 = {key0}, {key1}
    for i in range(10):
        a, b = w0 * 3528531795, w2 * 3449720151
        w0 = (torch.bitwise_right_shift(b, 32) & 4294967295) ^ w1 ^ key0
        w2 = (torch.bitwise_right_shift(a, 32) & 4294967295) ^ w3 ^ key1
        w1, w3 = b & 4294967295, a & 4294967295
        key0, key1 = (key0 + 2654435769) & 4294967295, (key1 + 3144134277) & 4294967295
    u = (w1 * 2097152 + torch.bitwise_right_shift(w0, 11)).to({float64}) / 9007199254740992.0
    v = (w3 * 2097152 + torch.bitwise_right_shift(w2, 11)).to({float64}) / 9007199254740992.0
    {transform}
    noise = {scale} * torch.stack([u, v], 2).flatten(1)[:, :{each}]
    return noise.to({float32}).to(logits.dtype).repeat([1, {members}])
)";

// Box and Muller.
constexpr char kNormal[] =
    "radius, angle = torch.sqrt(-2.0 * torch.log(1.0 - u)), 6.283185307179586 * v\n"
    "    u, v = radius * torch.cos(angle), radius * torch.sin(angle)";

std::string noise_source(const nn::RouterOptions& options) {
  const int64_t each = options.num_experts / options.num_members;
  const bool gaussian = options.noise.kind == NoiseKind::gaussian;
  // The key of CounterRng's stream.
  const uint64_t key =
      mix64(*options.evaluation_seed + mix64(stream_id(nn::kEvaluationNoiseStream)));
  return fmt::format(kNoise, fmt::arg("blocks", (each + 1) / 2), fmt::arg("key0", key & 0xFFFFFFFF),
                     fmt::arg("key1", key >> 32),
                     fmt::arg("transform", gaussian ? kNormal : "# they are uniform already"),
                     fmt::arg("scale", literal(options.noise_scale())), fmt::arg("each", each),
                     fmt::arg("members", options.num_members),
                     fmt::arg("float64", static_cast<int>(at::kDouble)),
                     fmt::arg("float32", static_cast<int>(at::kFloat)));
}

// x [T, d] is the router's input, inputs [T, ...] are the experts'.
constexpr char kForward[] = R"(
def forward(self, x: Tensor, inputs: Tensor) -> Tensor:
    return self.of_experts(self.combine_weights(self.router.forward(x)), inputs)
)";

// Experts that have mix() dispatch and combine themselves.
constexpr char kMixed[] = R"(
def forward(self, x: Tensor, inputs: Tensor) -> Tensor:
    return self.experts.mix(inputs, self.combine_weights(self.router.forward(x)){})
)";

constexpr char kOfExperts[] = R"(
def of_experts(self, gates: Tensor, inputs: Tensor) -> Tensor:
    weights = gates.t().contiguous()
    tokens = inputs{}
)";

// In Python our operators compute where they are loaded. Recordings have none of them.
constexpr char kByOperator[] = R"(
    if has_operators():
        routed = weights != 0
        token = routed.nonzero()[:, 1]
        offsets = F.pad(routed.sum([1]).cumsum(0), [1, 0]).to(torch.int32)
        parts = self.experts.w1, self.experts.b1, self.experts.w2, self.experts.b2
        rows = torch.ops.moesaic.grouped_mlp(tokens.index_select(0, token), offsets, *parts, {1})[0]{0}
        rows = rows * weights[routed].unsqueeze(1)
        return rows.new_zeros([inputs.size(0), rows.size(1)]).index_add_(0, token, rows)
)";

constexpr char kCounts[] = R"(
    routed = weights != 0
    counts: List[int] = routed.sum([1]).tolist()
)";

// The other form gives the vectors of removed experts, whose name is nn::kReplacementOutputsKey, to
// the tokens that still select these experts.
constexpr char kWithReplacements[] = R"(
def forward(self, x: Tensor, inputs: Tensor) -> Tensor:
    logits = self.router.forward(x)
    gates = self.removed_weights(logits)
    return self.of_experts(self.combine_weights(logits), inputs) + torch.mm(gates, self.stand_in)
)";

// If few rows are evenly spread, they are padded with tokens of weight 0, so that two products
// serve all experts: for them calls cost more than arithmetic.
constexpr char kFewAtOnce[] = R"(
    longest = max(counts)
    if sum(counts) <= {1} and len(counts) * longest <= 3 * sum(counts):
        token = torch.sort(weights.abs(), dim=1, descending=True)[1][:, :longest]
        gate = weights.gather(1, token).unsqueeze(2)
        token = token.flatten()
        rows = tokens.index_select(0, token).view([len(counts), longest, tokens.size(1)])
        rows = (self.experts.all_at_once(rows){0} * gate).flatten(0, 1)
        return torch.zeros_like(inputs).index_add_(0, token, rows)
)";
constexpr int64_t kFewRows = 256;

constexpr char kOneByOne[] = R"(
    token = routed.nonzero()[:, 1]
    rows = self.experts.one_by_one(tokens.index_select(0, token), counts){0}
    rows = rows * weights[routed].unsqueeze(1)
    return rows.new_zeros([inputs.size(0), rows.size(1)]).index_add_(0, token, rows)
)";

// TorchScript names a dtype only by its number.
constexpr char kRounded[] = ".to({}).to(inputs.dtype)";

constexpr char kLoop[] = R"(
def one_by_one(self, rows: Tensor, counts: List[int]) -> Tensor:
    outputs = [rows.new_zeros([0, {outputs}])]
    for x, {names} in zip(rows.split(counts), {parts}):
        {lines}
        outputs.append({result})
    return torch.cat(outputs)
)";

// The functions are in the order of Activation.
constexpr std::array<const char*, kActivationNames.size()> kActivations = {
    "torch.relu(hidden)", "torch.gelu(hidden, approximate=\"tanh\")",
    "torch.gelu(hidden)", "(hidden * hidden * hidden)",
    "(hidden)",           "torch.celu(hidden)",
    "torch.tanh(hidden)"};

std::string forward_source(const nn::MoELayerImpl& layer, const nn::ExpertsScript& experts,
                           Dialect dialect) {
  const bool is_python = dialect == Dialect::python;
  const std::string room = is_python ? room_of_expert(layer) : std::string();
  if (experts.has_mix)
    return room + fmt::format(kMixed, room.empty() ? "" : ", self.room(x.size(0))");
  const std::string rounded = layer.experts->rounds_to_bfloat16()
                                  ? fmt::format(kRounded, static_cast<int>(at::kBFloat16))
                                  : std::string();
  if (selects_rows(layer, experts, dialect)) {
    const RouteOptions rule = layer.router->evaluation_rule();
    const std::string logits = rule.is_rerouted() ? columns_of("logits", rule.kept) : "logits";
    return selected_forward(experts, layer.experts->num_experts(), logits, rounded);
  }
  std::string source = room + fmt::format(kOfExperts, rounded);
  if (is_python && experts.mlp) {
    source += fmt::format(kByOperator, rounded, static_cast<int>(*experts.mlp));
  }
  if (!room.empty()) {
    source += static_rows(experts, layer.experts->num_experts(), rounded);
  } else {
    source += kCounts;
    if (!is_python && experts.mlp) source += fmt::format(kFewAtOnce, rounded, kFewRows);
    source += fmt::format(kOneByOne, rounded);
  }
  return source + (layer.replacement_outputs.defined() ? kWithReplacements : kForward);
}

Module experts_module(const Context& context, const nn::Experts& from,
                      const nn::ExpertsScript& script, const std::vector<int64_t>& shape) {
  torch::nn::Module stored;
  for (const auto& [name, value] : script.tensors) stored.register_buffer(name, value);
  if (!script.tensors.empty()) return make_module(context, "Experts", stored, {}, script.source);
  Children networks;
  for (const auto& child : from.named_children()) {
    auto& network = dynamic_cast<nn::ImageNetwork&>(*child.value());
    const auto forward = [&](const at::Tensor& images) {
      return network.head->forward(network.features(images));
    };
    networks.emplace_back(child.key(), make_traced(context, network, forward, shape));
  }
  return make_module(context, "Experts", from, networks, script.source);
}

/// forward(x [T, d]) -> logits [T, E]
Module make_router(const Context& context, const nn::RouterImpl& from) {
  const nn::RouterOptions& options = from.options();
  std::string source = kRouter;
  if (options.num_members > 1) {
    source += fmt::format(kOwnExperts, fmt::arg("members", options.num_members),
                          fmt::arg("experts", options.num_experts),
                          fmt::arg("each", options.num_experts / options.num_members));
  }
  const bool noisy = options.evaluation_seed && options.noise.scale > 0.0;
  source += noisy ? "    return logits + self.noise(logits)\n" + noise_source(options)
                  : "    return logits\n";
  return make_module(context, "Router", from, {}, source);
}

}  // namespace

std::string activation_source(Activation activation) {
  return kActivations.at(static_cast<size_t>(activation));
}

std::string expert_loop_source(int64_t outputs, const std::vector<std::string>& tensors,
                               const std::string& lines, const std::string& result) {
  std::vector<std::string> parts;
  for (const std::string& name : tensors) parts.push_back("self." + name + ".unbind(0)");
  return fmt::format(kLoop, fmt::arg("outputs", outputs),
                     fmt::arg("names", fmt::format("{}", fmt::join(tensors, ", "))),
                     fmt::arg("parts", fmt::format("{}", fmt::join(parts, ", "))),
                     fmt::arg("lines", lines), fmt::arg("result", result));
}

Module make_experts(const Context& context, const nn::Experts& from,
                    const std::vector<int64_t>& shape) {
  return experts_module(context, from, from.script_source(), shape);
}

Module make_moe_layer(const Context& context, const nn::MoELayerImpl& from,
                      const std::vector<int64_t>& shape) {
  const nn::ExpertsScript experts = from.experts->script_source();  // int8 rounds all weights
  const bool selects = selects_rows(from, experts, context.dialect);
  return make_module(context, "MoELayer", from,
                     {{"router", make_router(context, *from.router)},
                      {"experts", experts_module(context, *from.experts, experts, shape)}},
                     weights_source(from, context.dialect, selects) +
                         forward_source(from, experts, context.dialect));
}

}  // namespace moesaic::script
