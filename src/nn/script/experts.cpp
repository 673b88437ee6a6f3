// SPDX-License-Identifier: Apache-2.0
// TorchScript forms of the kinds of experts.
#include <fmt/format.h>
#include <torch/torch.h>

#include <array>
#include <string>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/nn/filter_experts.h"
#include "moesaic/nn/image_experts.h"
#include "moesaic/nn/map_experts.h"
#include "moesaic/nn/mlp_experts.h"
#include "moesaic/nn/patch_experts.h"
#include "moesaic/nn/shallow_experts.h"
#include "parts.h"

namespace moesaic::script {
namespace {

constexpr char kMlps[] = R"(
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

// Outputs sum their filters over the patches [A, P, d].
constexpr char kFilters[] = R"(
def one_by_one(self, rows: Tensor, counts: List[int]) -> Tensor:
    outputs = [rows.new_zeros([0, {outputs}])]
    for x, w, b in zip(rows.split(counts), self.w.unbind(0), {biases}):
        if x.size(0) > 0:
            hidden = torch.matmul(x, w) + b
            outputs.append({activation}.unflatten(2, [{outputs}, -1]).sum([1, 3]))
    return torch.cat(outputs)
)";

// Sums over two-layer networks of one output; `hermite` [J, K] has coefficients of polynomials.
constexpr char kShallow[] = R"(
def one_by_one(self, rows: Tensor, counts: List[int]) -> Tensor:
    outputs = [rows.new_zeros([0, 1])]
    for x, w, a, b, hermite in zip(rows.split(counts), self.w.unbind(0), self.a.unbind(0),
                                   self.b.unbind(0), {hermite}.unbind(0)):
        if x.size(0) > 0:
            hidden = torch.addmm(b, x, w.t())
{activation}
            outputs.append(torch.mv(active, a).unsqueeze(1) / {hidden}.0)
    return torch.cat(outputs)
)";
constexpr char kShallowHermite[] =
    R"(            before, now = torch.zeros_like(hidden), torch.ones_like(hidden)
            active = torch.zeros_like(hidden)
            for k in range({terms}):
                active = active + hermite[:, k] * now
                next = (hidden * now - float(k) ** 0.5 * before) / float(k + 1) ** 0.5
                before = now
                now = next)";
// The second layer is fixed.
constexpr char kPatches[] = R"(
def one_by_one(self, rows: Tensor, counts: List[int]) -> Tensor:
    outputs = [rows.new_zeros([0, self.a.size(2)])]
    for x, w, a in zip(rows.split(counts), self.w.unbind(0), self.a.unbind(0)):
        if x.size(0) > 0:
            outputs.append(torch.mm(torch.relu(torch.mm(x, w)), a))
    return torch.cat(outputs)
)";

// mix(x [T, d], gates [T, K]): what an expert did not select is 0, so that behind ReLU it has one
// value everywhere; selected patches add windows of side {window} to the convolution of that.
constexpr char kMaps[] = R"(
def mix(self, x: Tensor, gates: Tensor) -> Tensor:
    images = x.size(0) // {patches}
    scales = self.weight * torch.rsqrt(self.running_var + {epsilon})
    shifts = self.bias - self.running_mean * scales
    place = torch.arange({map}, device=x.device)
    from_small = place.clamp_max({border_of_small}) + (place - {last_middle}).clamp_min(0)
    maps: List[Tensor] = []
    for gate, scale, shift, w, b in zip(gates.unbind(1), scales.unbind(0), shifts.unbind(0),
                                        self.w.unbind(0), self.b.unbind(0)):
        scale, shift = scale.view([-1, 1, 1]), shift.view([-1, 1, 1])
        rest = torch.relu(shift)
        token = gate.nonzero().flatten()
        rows = x.index_select(0, token) * gate.index_select(0, token).unsqueeze(1)
        rows = torch.relu(rows.view([-1, {channels}, {patch}, {patch}]) * scale + shift) - rest
        rows = torch.conv2d(rows, w, None, [1, 1], [{kernel} - 1, {kernel} - 1])
        place = torch.remainder(token, {patches})
        top = torch.floor_divide(place, {each}) * {patch}
        begin = torch.floor_divide(token, {patches}) * {side} + top
        begin = begin * {side} + torch.remainder(place, {each}) * {patch}
        step = torch.arange({window}, device=x.device)
        index = (begin.view([-1, 1, 1]) + step.unsqueeze(1) * {side} + step).flatten()
        y = x.new_zeros([images * {side} * {side}, w.size(0)])
        y = y.index_add_(0, index, rows.permute([0, 2, 3, 1]).reshape([-1, w.size(0)]))
        y = y.view([images, {side}, {side}, w.size(0)]).permute([0, 3, 1, 2])
        y = y[:, :, {border}:{side} - {border}, {border}:{side} - {border}]
        rest = rest.expand([-1, {small}, {small}]).unsqueeze(0)
        rest = torch.conv2d(rest, w, b, [1, 1], [{border}, {border}])
        rest = rest.index_select(2, from_small).index_select(3, from_small)
        maps.append(y + rest)
    y = torch.cat(maps, 1).unflatten(3, [-1, {patch}]).unflatten(2, [-1, {patch}])
    return y.permute([0, 2, 4, 1, 3, 5]).flatten(3).flatten(0, 2)
)";

constexpr char kNetworks[] = R"(
def one_by_one(self, rows: Tensor, counts: List[int]) -> Tensor:
    parts = rows.split(counts)
    outputs = [rows.new_zeros([0, {outputs}])]
)";
constexpr char kNetwork[] = R"(    if counts[{0}] > 0:
        outputs.append(getattr(self, "{0}").forward(parts[{0}]))
)";

// The functions are in the order of Activation.
constexpr std::array<const char*, kActivationNames.size()> kActivations = {
    "torch.relu(hidden)", "torch.gelu(hidden, approximate=\"tanh\")",
    "torch.gelu(hidden)", "(hidden * hidden * hidden)",
    "(hidden)",           "torch.celu(hidden)",
    "torch.tanh(hidden)"};

const char* activation_of(Activation activation) {
  return kActivations.at(static_cast<size_t>(activation));
}

Module make_networks(const Unit& unit, const nn::ImageExpertsImpl& from,
                     const std::vector<int64_t>& shape) {
  Children children;
  std::string source =
      fmt::format(kNetworks, fmt::arg("outputs", from.network(0)->head->weight.size(0)));
  for (int64_t e = 0; e < from.count(); ++e) {
    nn::ImageNetwork& network = *from.network(e);
    const auto forward = [&](const at::Tensor& images) {
      return network.head->forward(network.features(images));
    };
    children.emplace_back(std::to_string(e), make_traced(unit, network, forward, shape));
    source += fmt::format(kNetwork, e);
  }
  return make_module(unit, "Experts", from, children, source + "    return torch.cat(outputs)\n");
}

Module make_maps(const Unit& unit, const nn::MapExpertsImpl& from) {
  const nn::MapExpertsOptions& options = from.options();
  // A small map is enough for what all positions share, see nn/map_experts.cpp.
  const bool whole = options.side <= options.kernel;
  const int64_t border = options.kernel / 2;
  return make_module(
      unit, "Experts", from, {},
      fmt::format(kMaps, fmt::arg("patches", options.patches()),
                  fmt::arg("epsilon", literal(options.epsilon)),
                  fmt::arg("channels", options.channels), fmt::arg("patch", options.patch),
                  fmt::arg("kernel", options.kernel), fmt::arg("border", options.kernel / 2),
                  fmt::arg("each", options.side / options.patch), fmt::arg("map", options.side),
                  fmt::arg("small", std::min(options.side, options.kernel)),
                  fmt::arg("border_of_small", whole ? options.side : border),
                  fmt::arg("last_middle", whole ? options.side : options.side - 1 - border),
                  fmt::arg("side", options.side + options.kernel - 1),
                  fmt::arg("window", options.patch + options.kernel - 1)));
}

}  // namespace

Module make_experts(const Unit& unit, const nn::Experts& from, const std::vector<int64_t>& shape) {
  if (const auto* mlps = from.as<nn::MlpExperts>()) {
    return make_module(
        unit, "Experts", from, {},
        fmt::format(kMlps, fmt::arg("activation", activation_of(mlps->options().activation))));
  }
  if (const auto* filters = from.as<nn::FilterExperts>()) {
    return make_module(
        unit, "Experts", from, {},
        fmt::format(kFilters, fmt::arg("outputs", filters->options().outputs),
                    fmt::arg("biases", filters->options().bias
                                           ? "self.b.unbind(0)"
                                           : "torch.zeros_like(self.w[:, 0]).unbind(0)"),
                    fmt::arg("activation", activation_of(filters->options().activation))));
  }
  if (const auto* shallow = from.as<nn::ShallowExperts>()) {
    const bool hermite = shallow->hermite.defined();
    const std::string polynomial =
        hermite ? fmt::format(kShallowHermite, fmt::arg("terms", shallow->hermite.size(2))) : "";
    return make_module(
        unit, "Experts", from, {},
        fmt::format(kShallow, fmt::arg("hidden", shallow->w.size(1)),
                    fmt::arg("hermite", hermite ? "self.hermite" : "self.a"),
                    fmt::arg("activation",
                             hermite ? polynomial : "            active = torch.relu(hidden)")));
  }
  if (from.as<nn::PatchExperts>() != nullptr)
    return make_module(unit, "Experts", from, {}, kPatches);
  if (const auto* maps = from.as<nn::MapExperts>()) return make_maps(unit, *maps);
  if (const auto* networks = from.as<nn::ImageExperts>()) {
    return make_networks(unit, *networks, shape);
  }
  fail("torchscript: these experts have no such form; {}", kOtherFormat);
}

}  // namespace moesaic::script
