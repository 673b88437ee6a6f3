// SPDX-License-Identifier: Apache-2.0
// TorchScript form of a mixture-of-experts layer: ops/dispatch.h, the experts and ops/combine.h by
// aten operators.
#include <fmt/format.h>

#include "moesaic/nn/map_experts.h"
#include "moesaic/nn/mlp_experts.h"
#include "parts.h"

namespace moesaic::script {
namespace {

// x [T, d] is the router's input, inputs [T, ...] are the experts'.
constexpr char kForward[] = R"(
def forward(self, x: Tensor, inputs: Tensor) -> Tensor:
    return self.of_experts(self.combine_weights(self.router.forward(x)), inputs)
)";

// Experts of maps dispatch and combine themselves.
constexpr char kMix[] = R"(
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

std::string forward_source(const nn::MoELayerImpl& layer) {
  if (layer.experts->as<nn::MapExperts>() != nullptr) return kMix;
  const auto* mlps = layer.experts->as<nn::MlpExperts>();
  const bool rounds = mlps != nullptr && mlps->options().bfloat16;
  const std::string rounded =
      rounds ? fmt::format(kRounded, static_cast<int>(at::kBFloat16)) : std::string();
  std::string source = fmt::format(kOfExperts, rounded);
  if (mlps != nullptr) source += fmt::format(kFewAtOnce, rounded, kFewRows);
  source += fmt::format(kOneByOne, rounded);
  return source + (layer.stand_in.defined() ? kWithStandIns : kForward);
}

}  // namespace

Module make_moe_layer(const Unit& unit, const nn::MoELayerImpl& from,
                      const std::vector<int64_t>& shape) {
  return make_module(unit, "MoELayer", from,
                     {{"router", make_router(unit, *from.router)},
                      {"experts", make_experts(unit, *from.experts, shape)}},
                     weights_source(from.router->evaluation_rule(), from.options().experts) +
                         forward_source(from));
}

}  // namespace moesaic::script
