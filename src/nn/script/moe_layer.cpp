// SPDX-License-Identifier: Apache-2.0
// TorchScript form of a mixture-of-experts layer: its router, ops/dispatch.h, the experts and
// ops/combine.h by aten operators.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "moesaic/base/random.h"
#include "moesaic/nn/image_network.h"
#include "parts.h"

namespace moesaic::script {
namespace {

constexpr char kRouter[] = R"(
def forward(self, x: Tensor) -> Tensor:
    logits = torch.mm(x, self.weight.t())
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
  const int64_t each = options.experts / options.members;
  const bool gaussian = options.noise.kind == NoiseKind::gaussian;
  // The key of CounterRng's stream.
  const uint64_t key =
      mix64(*options.evaluation_seed + mix64(stream_id(nn::kEvaluationNoiseStream)));
  return fmt::format(kNoise, fmt::arg("blocks", (each + 1) / 2), fmt::arg("key0", key & 0xFFFFFFFF),
                     fmt::arg("key1", key >> 32),
                     fmt::arg("transform", gaussian ? kNormal : "# they are uniform already"),
                     fmt::arg("scale", literal(options.noise_scale())), fmt::arg("each", each),
                     fmt::arg("members", options.members),
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
    return self.experts.mix(inputs, self.combine_weights(self.router.forward(x)))
)";

constexpr char kOfExperts[] = R"(
def of_experts(self, gates: Tensor, inputs: Tensor) -> Tensor:
    weights = gates.t().contiguous()
    tokens = inputs{0}
    routed = weights != 0
    counts: List[int] = routed.sum([1]).tolist()
)";

// The other form gives the vectors of pruned experts to the tokens that still select them.
constexpr char kWithStandIns[] = R"(
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
    rows = rows * weights.masked_select(routed).unsqueeze(1)
    return rows.new_zeros([inputs.size(0), rows.size(1)]).index_add_(0, token, rows)
)";

// TorchScript names a dtype only by its number.
constexpr char kRounded[] = ".to({}).to(inputs.dtype)";

constexpr char kLoop[] = R"(
def one_by_one(self, rows: Tensor, counts: List[int]) -> Tensor:
    outputs = [rows.new_zeros([0, {outputs}])]
    for x, {names} in zip(rows.split(counts), {parts}):
        if x.size(0) > 0:
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

std::string forward_source(const nn::MoELayerImpl& layer, const nn::ExpertsScript& experts) {
  if (experts.mixes) return kMixed;
  const std::string rounded =
      experts.bfloat16 ? fmt::format(kRounded, static_cast<int>(at::kBFloat16)) : std::string();
  std::string source = fmt::format(kOfExperts, rounded);
  if (experts.at_once) source += fmt::format(kFewAtOnce, rounded, kFewRows);
  source += fmt::format(kOneByOne, rounded);
  return source + (layer.stand_in.defined() ? kWithStandIns : kForward);
}

/// forward(x [T, d]) -> logits [T, E]
Module make_router(const Unit& unit, const nn::RouterImpl& from) {
  const nn::RouterOptions& options = from.options();
  std::string source = kRouter;
  if (options.members > 1) {
    source += fmt::format(kOwnExperts, fmt::arg("members", options.members),
                          fmt::arg("experts", options.experts),
                          fmt::arg("each", options.experts / options.members));
  }
  const bool noisy = options.evaluation_seed && options.noise.scale > 0.0;
  source += noisy ? "    return logits + self.noise(logits)\n" + noise_source(options)
                  : "    return logits\n";
  return make_module(unit, "Router", from, {}, source);
}

}  // namespace

std::string text_of(Activation activation) {
  return kActivations.at(static_cast<size_t>(activation));
}

std::string one_by_one(int64_t outputs, const std::vector<std::string>& tensors,
                       const std::string& lines, const std::string& result) {
  std::vector<std::string> parts;
  for (const std::string& name : tensors) parts.push_back("self." + name + ".unbind(0)");
  return fmt::format(kLoop, fmt::arg("outputs", outputs),
                     fmt::arg("names", fmt::format("{}", fmt::join(tensors, ", "))),
                     fmt::arg("parts", fmt::format("{}", fmt::join(parts, ", "))),
                     fmt::arg("lines", lines), fmt::arg("result", result));
}

Module make_experts(const Unit& unit, const nn::Experts& from, const std::vector<int64_t>& shape) {
  Children networks;
  for (const auto& child : from.named_children()) {
    auto& network = dynamic_cast<nn::ImageNetwork&>(*child.value());
    const auto forward = [&](const at::Tensor& images) {
      return network.head->forward(network.features(images));
    };
    networks.emplace_back(child.key(), make_traced(unit, network, forward, shape));
  }
  return make_module(unit, "Experts", from, networks, from.script_source().source);
}

Module make_moe_layer(const Unit& unit, const nn::MoELayerImpl& from,
                      const std::vector<int64_t>& shape) {
  return make_module(unit, "MoELayer", from,
                     {{"router", make_router(unit, *from.router)},
                      {"experts", make_experts(unit, *from.experts, shape)}},
                     weights_source(from.router->evaluation_rule(), from.options().experts) +
                         forward_source(from, from.experts->script_source()));
}

}  // namespace moesaic::script
