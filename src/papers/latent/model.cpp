// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/latent.h"

#include <torch/torch.h>

#include <cmath>

#include "moesaic/models/router_config.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/script.h"
#include "moesaic/ops/autocast.h"

namespace moesaic::nn {
namespace {

// The same in TorchScript; `hermite` [J, K] has coefficients of polynomials.
constexpr char kHermiteLines[] =
    R"(before, now = torch.zeros_like(hidden), torch.ones_like(hidden)
        active = torch.zeros_like(hidden)
        for k in range({}):
            active = active + hermite[:, k] * now
            next = (hidden * now - float(k) ** 0.5 * before) / float(k + 1) ** 0.5
            before = now
            now = next)";

/// Returns sum_i c[j, i] He_i(z[r, j]) / sqrt(i!).
at::Tensor hermite_series(const at::Tensor& z_RJ, const at::Tensor& c_JK) {
  at::Tensor before = at::zeros_like(z_RJ), now = at::ones_like(z_RJ), sum = before;
  for (int64_t k = 0; k < c_JK.size(1); ++k) {
    sum = sum + c_JK.select(1, k) * now;
    const auto degree = static_cast<double>(k);
    const at::Tensor next = (z_RJ * now - std::sqrt(degree) * before) / std::sqrt(degree + 1.0);
    before = now;
    now = next;
  }
  return sum;
}

}  // namespace

at::Tensor shallow_neurons(const at::Tensor& x_Rd, const at::Tensor& w_Jd, const at::Tensor& b_J,
                           const at::Tensor& hermite_JK) {
  const at::Tensor z = at::addmm(b_J, x_Rd, w_Jd.t());
  return hermite_JK.defined() ? hermite_series(z, hermite_JK) : z.relu();
}

ShallowExpertsImpl::ShallowExpertsImpl(const LatentMoEConfig& config,
                                       const at::Generator& generator) {
  const int64_t experts = config.num_experts, hidden = config.num_neurons;
  w = register_parameter("w", torch::empty({experts, hidden, config.width}));
  a = register_parameter("a", torch::empty({experts, hidden}));
  b = register_parameter("b", torch::empty({experts, hidden}));
  const torch::NoGradGuard no_grad;
  const Neurons drawn = draw_neurons(generator);
  w.copy_(drawn.w);
  a.copy_(drawn.a);
  b.uniform_(-config.max_bias, config.max_bias, generator);
  if (config.activation != "hermite") return;
  hermite = register_buffer("hermite", torch::zeros({experts, hidden, config.max_degree + 1}));
  const at::Tensor signs =
      torch::empty({experts, hidden, config.max_degree - config.min_degree + 1});
  hermite.slice(2, config.min_degree).copy_(signs.bernoulli_(0.5, generator) * 2 - 1);
}

ShallowExpertsImpl::Neurons ShallowExpertsImpl::draw_neurons(const at::Generator& generator) const {
  const at::Tensor rows = torch::empty(w.sizes()).normal_(0.0, 1.0, generator);
  const at::Tensor signs = torch::empty(a.sizes()).bernoulli_(0.5, generator);
  return {rows / rows.norm(2, {2}, /*keepdim=*/true), signs * 2 - 1};
}

at::Tensor ShallowExpertsImpl::outputs_of(const at::Tensor& x_Rd, int64_t slot) const {
  const at::Tensor hermite_JK = hermite.defined() ? hermite[slot] : hermite;
  const at::Tensor hidden = shallow_neurons(x_Rd, w[slot], b[slot], hermite_JK);
  return hidden.mv(a[slot]) / static_cast<double>(w.size(1));
}

ExpertRows ShallowExpertsImpl::compute(const at::Tensor& rows_Ad, const Routing& routing,
                                       const at::Generator&) {
  const NoAutocastGuard no_autocast;
  const at::Tensor x_Ad = rows_Ad.to(w.scalar_type());
  if (x_Ad.is_meta()) return {at::empty({x_Ad.size(0), 1}, x_Ad.options()), {}};
  return for_each_expert(x_Ad, routing, [&](int64_t slot, const at::Tensor& own) {
    return ExpertRows{outputs_of(own, slot).unsqueeze(1)};
  });
}

ExpertsScript ShallowExpertsImpl::script_source() const {
  std::vector<std::string> tensors = {"w", "a", "b"};
  std::string lines = "hidden = torch.addmm(b, x, w.t())\n        ";
  if (hermite.defined()) {
    tensors.emplace_back("hermite");
    lines += fmt::format(kHermiteLines, hermite.size(2));
  } else {
    lines += "active = torch.relu(hidden)";
  }
  return {script::expert_loop_source(
      1, tensors, lines, fmt::format("torch.mv(active, a).unsqueeze(1) / {}.0", w.size(1)))};
}

RouterOptions latent_router_options(int64_t width, int64_t experts, const std::string& routing,
                                    const std::vector<int64_t>& kept) {
  // Noise breaks ties. It is far below the spread of logits that differ, so that few samples have
  // another order because of it.
  constexpr double kTies = 1e-6;
  if (routing != kTopOne) {
    return {.width = width,
            .num_experts = experts,
            .rule = {.kind = RoutingKind::threshold, .kept = kept}};
  }
  return {.width = width,
          .num_experts = experts,
          .rule = {.k = 1, .kept = kept, .pruned = PrunedSelection::reroute},
          .noise = {NoiseKind::uniform, kTies},
          .evaluation_seed = 0,
          .gate_noise = false};
}

std::string latent_routing_name(const RouterOptions& options) {
  return options.rule.is_token_choice() ? kTopOne : kEveryAboveZero;
}

}  // namespace moesaic::nn

namespace moesaic {

ConfigProblem config_problem(const LatentMoEConfig& config) {
  if (config.min_degree > config.max_degree) {
    return {
        fmt::format("min_degree {} is above max_degree {}", config.min_degree, config.max_degree),
        {"min_degree", "max_degree"}};
  }
  return kept_setting_problem(config.kept_experts, config.num_experts, "kept_experts");
}

LatentMoE::LatentMoE(LatentMoEConfig config, uint64_t seed) : OneLayerModel(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  experts = nn::ShallowExperts(config_, generator);
  if (!config_.kept_experts.empty()) experts->keep(config_.kept_experts);
  moe = register_module(
      "moe", nn::MoELayer(nn::latent_router_options(config_.width, config_.num_experts,
                                                    config_.routing, config_.kept_experts),
                          experts.ptr(), generator));
  const torch::NoGradGuard no_grad;
  moe->router->weight.zero_();
}

ModelOutput LatentMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "inputs", images_BCHW);
  const nn::MoEOutput routed = moe->forward(images_BCHW.flatten(1), random);
  return {routed.y_Td, routed.y_Td, {routed}};
}

nn::ShallowExperts LatentMoE::draw_experts(int64_t num_experts, int64_t num_neurons,
                                           const at::Generator& generator) const {
  LatentMoEConfig config = config_;
  config.num_experts = num_experts;
  config.num_neurons = num_neurons;
  return nn::ShallowExperts(config, generator);
}

void LatentMoE::replace_experts(const nn::ShallowExperts& made, const at::Tensor& router_Md) {
  const auto put = [](const at::Tensor& place, const at::Tensor& value) {
    if (place.defined()) nn::replace_value(place, value.detach().to(place.options()));
  };
  put(experts->w, made->w);
  put(experts->a, made->a);
  put(experts->b, made->b);
  put(experts->hermite, made->hermite);
  put(moe->router->weight, router_Md);
  config_.num_experts = made->num_experts();
  config_.num_neurons = made->w.size(1);
  config_.kept_experts.clear();
  moe->router->set_options(nn::latent_router_options(config_.width, config_.num_experts,
                                                     nn::latent_routing_name(moe->options()), {}));
}

std::optional<torch::jit::Module> LatentMoE::torchscript(const script::Context& context) const {
  return script::make_module(
      context, "LatentMoE", *this,
      {{"moe", script::make_moe_layer(context, *moe, {config_.width})}},
      script::input_check_source(input_shape()) +
          "    inputs = images.flatten(1)\n    return self.moe.forward(inputs, inputs)\n");
}

}  // namespace moesaic
