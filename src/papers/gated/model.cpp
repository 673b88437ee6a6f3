// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include "losses.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/script.h"
#include "moesaic/ops/enum_names.h"

namespace moesaic {
namespace {

/// A link as a function of tensors, and of `z` in TorchScript.
struct LinkForm {
  at::Tensor (*apply)(const at::Tensor& z);
  const char* source;
};
constexpr LinkForm kLinkForms[kLinkNames.size()] = {
    {[](const at::Tensor& z) { return z; }, "z"},
    {[](const at::Tensor& z) { return at::relu(z); }, "torch.relu(z)"},
    {[](const at::Tensor& z) { return at::leaky_relu(z, 0.01); }, "torch.leaky_relu(z, 0.01)"},
    {[](const at::Tensor& z) { return at::sigmoid(z); }, "torch.sigmoid(z)"},
    {[](const at::Tensor& z) { return at::tanh(z); }, "torch.tanh(z)"},
    {[](const at::Tensor& z) { return at::softplus(z); }, "torch.softplus(z)"},
    // Autograd knows the derivative of sign(), 0.
    {[](const at::Tensor& z) { return at::relu(at::sign(z)); }, "torch.gt(z, 0).to(z.dtype)"}};

}  // namespace

Link link_from_name(std::string_view name) {
  return ops::enum_from_name<Link>("link", name, {kLinkNames.begin(), kLinkNames.end()});
}

at::Tensor apply_link(const at::Tensor& z, Link link) {
  return kLinkForms[static_cast<size_t>(link)].apply(z);
}

namespace nn {

GruMixtureImpl::GruMixtureImpl(int64_t width, int64_t hidden, GruView view,
                               const at::Generator& generator, GruGates gates)
    : view_(view), gates_(gates) {
  weight_ih = register_parameter("weight_ih", torch::empty({3 * hidden, width}));
  weight_hh = register_parameter("weight_hh", torch::empty({3 * hidden, hidden}));
  bias_ih = register_parameter("bias_ih", torch::empty({3 * hidden}));
  bias_hh = register_parameter("bias_hh", torch::empty({3 * hidden}));
  const torch::NoGradGuard no_grad;
  const double bound = 1.0 / std::sqrt(static_cast<double>(hidden));
  for (const at::Tensor& parameter : parameters()) parameter.uniform_(-bound, bound, generator);
}

namespace {

/// Returns 1{x >= 0} with the gradient of sigmoid(x).
at::Tensor straight_through(const at::Tensor& x) {
  const at::Tensor soft = at::sigmoid(x);
  return x.ge(0.0).to(x.scalar_type()) + (soft - soft.detach());
}

}  // namespace

GruStates GruMixtureImpl::forward(const at::Tensor& x_BTd) const {
  const auto gate = [&](const at::Tensor& x) {
    return gates_ == GruGates::binary ? straight_through(x) : at::sigmoid(x);
  };
  const at::Tensor inputs = at::linear(x_BTd, weight_ih, bias_ih);  // [B, T, 3 m]
  at::Tensor h = at::zeros({x_BTd.size(0), weight_hh.size(1)}, inputs.options());
  std::vector<at::Tensor> states, updates, resets;
  for (int64_t t = 0; t < x_BTd.size(1); ++t) {
    const auto of_x = inputs.select(1, t).chunk(3, 1);
    const auto of_h = at::linear(h, weight_hh, bias_hh).chunk(3, 1);
    const at::Tensor r = gate(of_x[0] + of_h[0]);
    const at::Tensor z = gate(-(of_x[1] + of_h[1]));
    const at::Tensor candidate = view_ == GruView::recurrent
                                     ? at::tanh(of_x[2] + r * of_h[2])
                                     : at::lerp(at::tanh(of_x[2]), at::tanh(of_x[2] + of_h[2]), r);
    h = at::lerp(h, candidate, z);
    states.push_back(h);
    updates.push_back(z);
    resets.push_back(r);
  }
  return {at::stack(states, 1), at::stack(updates, 1), at::stack(resets, 1)};
}

}  // namespace nn

namespace {

constexpr char kMixture[] = R"(
def forward(self, x: Tensor) -> Tensor:
    logits = torch.mm(x, self.gates.t()){bias}
    gates = torch.softmax(torch.constant_pad_nd(logits, [0, 1]), 1)
    z = torch.mm(x, self.regressors.t())
    return torch.sum(gates * ({link}), [1])
)";

constexpr char kSteps[] = R"(
def forward(self, x: Tensor) -> Tensor:
    inputs = torch.linear(x, self.weight_ih, self.bias_ih)
    h = torch.zeros([x.size(0), self.weight_hh.size(1)], dtype=x.dtype, device=x.device)
    for t in range(x.size(1)):
        a = torch.chunk(inputs.select(1, t), 3, 1)
        b = torch.chunk(torch.linear(h, self.weight_hh, self.bias_hh), 3, 1)
)";
constexpr char kSigmoids[] =
    "        r = torch.sigmoid(a[0] + b[0])\n"
    "        z = torch.sigmoid(-(a[1] + b[1]))\n";
constexpr char kThresholds[] =
    "        r = torch.ge(a[0] + b[0], 0).to(x.dtype)\n"
    "        z = torch.le(a[1] + b[1], 0).to(x.dtype)\n";
constexpr char kMixtureCandidate[] =
    "        c = torch.lerp(torch.tanh(a[2]), torch.tanh(a[2] + b[2]), r)\n";
constexpr char kRecurrent[] = "        c = torch.tanh(a[2] + r * b[2])\n";
constexpr char kUpdate[] = "        h = torch.lerp(h, c, z)\n    return h\n";

}  // namespace

ConfigProblem config_problem(const GatedMoEConfig& config) {
  if (config.regressors == "random" || config.num_experts <= config.width) return {};
  return {fmt::format("{} regressors along axes do not fit into {} dimensions", config.num_experts,
                      config.width),
          {"regressors", "num_experts", "width"}};
}

GatedMoE::GatedMoE(GatedMoEConfig config, uint64_t seed) : OneLayerModel(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  const int64_t experts = config_.num_experts, width = config_.width;
  mixture_ = register_module("mixture", std::make_shared<torch::nn::Module>());
  regressors = mixture_->register_parameter("regressors", torch::empty({experts, width}));
  gates = mixture_->register_parameter("gates", torch::zeros({experts - 1, width}));
  if (config_.has_gate_biases) {
    gates_bias = mixture_->register_parameter("gates_bias", torch::zeros({experts - 1}));
  }
  const torch::NoGradGuard no_grad;
  regressors.normal_(0.0, 1.0, generator);
  regressors.div_(regressors.norm(2, {1}, true));
  if (config_.gates == "random") {
    gates.normal_(0.0, 1.0, generator);
    gates.div_(gates.norm(2, {1}, true));
  }
  if (config_.regressors == "axes") torch::nn::init::eye_(regressors);
}

Link GatedMoE::link() const {
  return link_from_name(config_.link);
}

ModelOutput GatedMoE::forward(const at::Tensor& images_BCHW, const at::Generator&) {
  check_input_shape(*this, config_.name, "inputs", images_BCHW);
  const at::Tensor x_Bd = images_BCHW.flatten(1);
  at::Tensor logits = x_Bd.mm(gates.t());
  if (gates_bias.defined()) logits = logits + gates_bias;
  const at::Tensor probability_Bk = at::constant_pad_nd(logits, {0, 1}).softmax(1);
  const at::Tensor y =
      (probability_Bk * apply_link(x_Bd.mm(regressors.t()), link())).sum(1).unsqueeze(1);
  return {y, y, {}};
}

std::optional<torch::jit::Module> GatedMoE::torchscript(const script::Context& context) const {
  const auto script_mixture = script::make_module(
      context, "GatedMixture", *mixture_, {},
      fmt::format(kMixture, fmt::arg("link", kLinkForms[static_cast<size_t>(link())].source),
                  fmt::arg("bias", config_.has_gate_biases ? " + self.gates_bias" : "")));
  return script::make_module(
      context, "GatedMoE", *this, {{"mixture", script_mixture}},
      script::input_check_source(input_shape()) +
          "    return self.mixture.forward(images.flatten(1)).unsqueeze(1)\n");
}

std::map<std::string, at::Tensor> GatedMoE::weight_directions() const {
  std::map<std::string, at::Tensor> directions = {{"regressor", regressors.detach().unsqueeze(1)}};
  if (config_.num_experts > 1) directions["gate"] = full_gates().detach().unsqueeze(1);
  return directions;
}

Gru::Gru(GruConfig config, uint64_t seed) : OneLayerModel(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  const bool is_mixture = config_.view == nn::kGruViewNames.front();
  const bool has_sigmoids = config_.gates == nn::kGruGatesNames.front();
  gru = register_module(
      "gru", nn::GruMixture(config_.input_size, config_.hidden_size,
                            is_mixture ? nn::GruView::mixture : nn::GruView::recurrent, generator,
                            has_sigmoids ? nn::GruGates::sigmoid : nn::GruGates::binary));
  head =
      register_module("head", nn::make_linear(config_.hidden_size, config_.num_classes, generator));
}

ModelOutput Gru::forward(const at::Tensor& images_BCHW, const at::Generator&) {
  check_input_shape(*this, config_.name, "images", images_BCHW);
  const at::Tensor last = gru->forward(images_BCHW.squeeze(1)).states.select(1, -1);
  return {head->forward(last), last, {}};
}

void Gru::reset_head(int64_t classes) {
  config_.num_classes = classes;
  head = replace_module("head", torch::nn::Linear(config_.hidden_size, classes));
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : head->parameters()) parameter.zero_();
}

std::optional<torch::jit::Module> Gru::torchscript(const script::Context& context) const {
  const std::string gates = config_.gates == nn::kGruGatesNames.front() ? kSigmoids : kThresholds;
  const std::string candidate =
      config_.view == nn::kGruViewNames.front() ? kMixtureCandidate : kRecurrent;
  return script::make_module(
      context, "Gru", *this,
      {{"gru",
        script::make_module(context, "GruMixture", *gru, {}, kSteps + gates + candidate + kUpdate)},
       {"head", script::make_linear(context, *head)}},
      script::input_check_source(input_shape()) +
          "    return self.head.forward(self.gru.forward(images.squeeze(1)))\n");
}

std::map<std::string, at::Tensor> Gru::gates_over_time(const at::Tensor& images_BCHW) const {
  const nn::GruStates out = gru->forward(images_BCHW.squeeze(1));
  return {{"update", out.update.mean(2)}, {"reset", out.reset.mean(2)}};
}

}  // namespace moesaic
