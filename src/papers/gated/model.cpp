// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include "moesaic/nn/init.h"
#include "moesaic/nn/script.h"
#include "moesaic/papers/gated.h"

namespace moesaic {
namespace {

nn::GatedMixtureOptions options_of(const GatedMoEConfig& config) {
  return {config.width, config.experts, link_from_name(config.link), config.noise};
}

/// Returns g of `z` in TorchScript.
std::string link_source(Link link) {
  switch (link) {
    case Link::identity:
      return "z";
    case Link::leaky_relu:
      return "torch.leaky_relu(z, 0.01)";
    case Link::softplus:
      return "torch.softplus(z)";
    case Link::step:
      return "torch.gt(z, 0).to(z.dtype)";
    default:
      return fmt::format("torch.{}(z)", kLinkNames.at(static_cast<size_t>(link)));
  }
}

constexpr char kMixture[] = R"(
def forward(self, x: Tensor) -> Tensor:
    gates = torch.softmax(torch.constant_pad_nd(torch.mm(x, self.gates.t()), [0, 1]), 1)
    z = torch.mm(x, self.regressors.t())
    return torch.sum(gates * ({link}), [1])
)";

nn::GruView view_of(const GruConfig& config) {
  return config.view == nn::kGruViewNames.front() ? nn::GruView::mixture : nn::GruView::recurrent;
}

constexpr char kSteps[] = R"(
def forward(self, x: Tensor) -> Tensor:
    inputs = torch.linear(x, self.weight_ih, self.bias_ih)
    h = torch.zeros([x.size(0), self.weight_hh.size(1)], dtype=x.dtype, device=x.device)
    for t in range(x.size(1)):
        a = torch.chunk(inputs.select(1, t), 3, 1)
        b = torch.chunk(torch.linear(h, self.weight_hh, self.bias_hh), 3, 1)
        r = torch.sigmoid(a[0] + b[0])
        z = torch.sigmoid(-(a[1] + b[1]))
)";
constexpr char kMixtureCandidate[] =
    "        c = torch.lerp(torch.tanh(a[2]), torch.tanh(a[2] + b[2]), r)\n";
constexpr char kRecurrent[] = "        c = torch.tanh(a[2] + r * b[2])\n";
constexpr char kUpdate[] = "        h = torch.lerp(h, c, z)\n    return h\n";

}  // namespace

ConfigProblem config_problem(const GatedMoEConfig& config) {
  if (config.regressors == "random" || config.experts <= config.width) return {};
  return {fmt::format("{} regressors along axes do not fit into {} dimensions", config.experts,
                      config.width),
          {"regressors", "experts", "width"}};
}

GatedMoE::GatedMoE(GatedMoEConfig config, uint64_t seed) : OneLayerModel(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  mixture = register_module("mixture", nn::GatedMixture(options_of(config_), generator));
  const torch::NoGradGuard no_grad;
  if (config_.gates == "random") {
    mixture->gates.normal_(0.0, 1.0, generator);
    mixture->gates.div_(mixture->gates.norm(2, {1}, true));
  }
  if (config_.regressors == "axes") torch::nn::init::eye_(mixture->regressors);
}

ModelOutput GatedMoE::forward(const at::Tensor& images_BCHW, const at::Generator&) {
  check_input_shape(*this, config_.name, "inputs", images_BCHW);
  const at::Tensor y = mixture->forward(images_BCHW.flatten(1)).unsqueeze(1);
  return {y, y, {}};
}

std::optional<torch::jit::Module> GatedMoE::torchscript() const {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const auto script_mixture = script::make_module(
      unit, "GatedMixture", *mixture, {},
      fmt::format(kMixture, fmt::arg("link", link_source(mixture->options().link))));
  return script::make_module(
      unit, "GatedMoE", *this, {{"mixture", script_mixture}},
      script::entrance(input_shape()) +
          "    return self.mixture.forward(images.flatten(1)).unsqueeze(1)\n");
}

std::map<std::string, at::Tensor> GatedMoE::weight_directions() const {
  std::map<std::string, at::Tensor> directions = {
      {"regressor", mixture->regressors.detach().unsqueeze(1)}};
  if (config_.experts > 1) directions["gate"] = mixture->gates.detach().unsqueeze(1);
  return directions;
}

Gru::Gru(GruConfig config, uint64_t seed) : OneLayerModel(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  gru = register_module("gru",
                        nn::GruMixture(config_.width, config_.hidden, view_of(config_), generator));
  head = register_module("head", torch::nn::Linear(config_.hidden, config_.classes));
  nn::xavier_uniform(head->weight, generator);
  torch::nn::init::zeros_(head->bias);
}

ModelOutput Gru::forward(const at::Tensor& images_BCHW, const at::Generator&) {
  check_input_shape(*this, config_.name, "images", images_BCHW);
  const at::Tensor last = gru->forward(images_BCHW.squeeze(1)).states.select(1, -1);
  return {head->forward(last), last, {}};
}

void Gru::reset_head(int64_t classes) {
  config_.classes = classes;
  head = replace_module("head", torch::nn::Linear(config_.hidden, classes));
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : head->parameters()) parameter.zero_();
}

std::optional<torch::jit::Module> Gru::torchscript() const {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const std::string candidate =
      gru->view() == nn::GruView::mixture ? kMixtureCandidate : kRecurrent;
  return script::make_module(
      unit, "Gru", *this,
      {{"gru", script::make_module(unit, "GruMixture", *gru, {}, kSteps + candidate + kUpdate)},
       {"head", script::make_linear(unit, *head)}},
      script::entrance(input_shape()) +
          "    return self.head.forward(self.gru.forward(images.squeeze(1)))\n");
}

std::map<std::string, at::Tensor> Gru::gates_over_time(const at::Tensor& images_BCHW) const {
  const nn::GruStates out = gru->forward(images_BCHW.squeeze(1));
  return {{"update", out.update.mean(2)}, {"reset", out.reset.mean(2)}};
}

}  // namespace moesaic
