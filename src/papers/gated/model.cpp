// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/gated/model.h"

#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/script.h"

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

}  // namespace

ConfigProblem config_problem(const GatedMoEConfig& config) {
  if (config.regressors == "random" || config.experts <= config.width) return {};
  return {fmt::format("{} regressors along axes do not fit into {} dimensions", config.experts,
                      config.width),
          {"regressors", "experts", "width"}};
}

GatedMoE::GatedMoE(GatedMoEConfig config, uint64_t seed) : config_(std::move(config)) {
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

void GatedMoE::reset_head(int64_t classes) {
  fail_usage("{}: it has one output and no head: there is none to be made for {} classes",
             config_.name, classes);
}

double GatedMoE::flops_per_image(const RowsPerToken&) const {
  return 2.0 * static_cast<double>(parameter_count());
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

}  // namespace moesaic
