// SPDX-License-Identifier: Apache-2.0
// TorchScript forms of the kinds of experts.
#include <fmt/format.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/torch.h>

#include <array>
#include <string>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/nn/filter_experts.h"
#include "moesaic/nn/image_experts.h"
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

/// Makes the tree of a module around its own tensors, without methods.
Module make_tree(const Unit& unit, const torch::nn::Module& from) {
  Children children;
  for (const auto& child : from.named_children()) {
    children.emplace_back(child.key(), make_tree(unit, *child.value()));
  }
  return make_module(unit, "Network", from, children, "", Copy::no);
}

void copy_tensors(Module& module) {
  for (const auto& item : module.named_attributes(/*recurse=*/false)) {
    if (item.value.isTensor()) module.setattr(item.name, item.value.toTensor().detach().clone());
  }
  for (Module child : module.children()) copy_tensors(child);
}

/// Makes a network by recording what it computes, which is the same for all images of its shape.
Module make_network(const Unit& unit, nn::ImageNetwork& from, const std::vector<int64_t>& shape) {
  using torch::jit::Stack;
  Module module = make_tree(unit, from);
  std::vector<int64_t> batch = {2};
  batch.insert(batch.end(), shape.begin(), shape.end());
  const torch::NoGradGuard no_grad;
  const bool trains = from.is_training();
  from.eval();
  const auto [state, outputs] = torch::jit::tracer::trace(
      {at::zeros(batch, from.head->weight.options())},
      [&](const Stack& images) {
        return Stack{from.head->forward(from.features(images.at(0).toTensor()))};
      },
      [](const at::Tensor&) { return std::string(); }, /*strict=*/true, /*force_outplace=*/false,
      &module);
  from.train(trains);
  module.type()->addMethod(
      unit->create_function(c10::QualifiedName(*module.type()->name(), "forward"), state->graph));
  copy_tensors(module);  // Recording finds parameters by identity.
  return module;
}

Module make_networks(const Unit& unit, const nn::ImageExpertsImpl& from,
                     const std::vector<int64_t>& shape) {
  Children children;
  std::string source =
      fmt::format(kNetworks, fmt::arg("outputs", from.network(0)->head->weight.size(0)));
  for (int64_t e = 0; e < from.count(); ++e) {
    children.emplace_back(std::to_string(e), make_network(unit, *from.network(e), shape));
    source += fmt::format(kNetwork, e);
  }
  return make_module(unit, "Experts", from, children, source + "    return torch.cat(outputs)\n");
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
  if (const auto* networks = from.as<nn::ImageExperts>()) {
    return make_networks(unit, *networks, shape);
  }
  fail("torchscript: these experts have no such form; {}", kOtherFormat);
}

}  // namespace moesaic::script
