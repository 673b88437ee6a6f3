// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/pmoe.h"

#include <torch/torch.h>

#include "moesaic/nn/init.h"
#include "moesaic/nn/script.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/filter_experts.h"
#include "moesaic/parallel/process_group.h"

namespace moesaic::nn {
namespace {

// mix(x [T, d], gates [T, K]): what an expert did not select is 0, so that behind ReLU it has one
// value everywhere; selected patches add windows of side {window} to the convolution of that.
constexpr char kMix[] = R"(
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

/// Returns numbers of experts' channels [K, C] beside rows [K, R, C, p p].
at::Tensor over_rows(const at::Tensor& x_KC) {
  return x_KC.unsqueeze(1).unsqueeze(3);
}

/// Returns where windows begin in flat maps [B, K, side, side] that have a border: [K, R] int64.
at::Tensor window_begins(const Routing& routing, const MapExpertsOptions& options,
                         int64_t side_with_border) {
  const int64_t experts = routing.num_experts(), each = options.side / options.patch;
  const at::Tensor token_KR = routing.token.to(at::kLong).view({experts, -1});
  const at::Tensor image = token_KR.div(options.num_patches(), "floor");
  const at::Tensor place = token_KR.remainder(options.num_patches());
  const at::Tensor top = place.div(each, "floor") * options.patch;
  const at::Tensor left = place.remainder(each) * options.patch;
  const at::Tensor expert_K1 = at::arange(experts, token_KR.options()).unsqueeze(1);
  return ((image * experts + expert_K1) * side_with_border + top) * side_with_border + left;
}

/// Adds windows_KRqqo to maps of zeros where their patches lie, -> [B, K, S, S, o]; what sticks out
/// of a map is cut off.
at::Tensor add_windows(const at::Tensor& windows_KRqqo, const Routing& routing, int64_t images,
                       const MapExpertsOptions& options) {
  const int64_t border = options.kernel / 2, side = options.side + 2 * border;
  const int64_t window = windows_KRqqo.size(2), outputs = windows_KRqqo.size(4);
  const at::Tensor begin_KR = window_begins(routing, options, side);
  const at::Tensor step = at::arange(window, begin_KR.options());
  const at::Tensor index_KRqq =
      begin_KR.unsqueeze(2).unsqueeze(3) + step.unsqueeze(1) * side + step;
  at::Tensor maps =
      at::zeros({images * routing.num_experts() * side * side, outputs}, windows_KRqqo.options())
          .index_add(0, index_KRqq.flatten(), windows_KRqqo.reshape({-1, outputs}));
  maps = maps.view({images, routing.num_experts(), side, side, outputs});
  return maps.narrow(2, border, options.side).narrow(3, border, options.side);
}

/// Convolves maps that have one value rest_KC everywhere -> [1, K, o, S, S]. Borders of zeros tell
/// only the positions near them apart, so a map as small as the kernel has all that there are.
at::Tensor convolve_rest(const at::Tensor& rest_KC, const at::Tensor& w_KoCkk,
                         const at::Tensor& b_Ko, const MapExpertsOptions& options) {
  const int64_t experts = w_KoCkk.size(0), border = options.kernel / 2;
  const int64_t side = options.side, small = std::min(side, options.kernel);
  at::Tensor map =
      at::conv2d(rest_KC.view({1, -1, 1, 1}).expand({1, -1, small, small}), w_KoCkk.flatten(0, 1),
                 b_Ko.flatten(), /*stride=*/1, border, /*dilation=*/1, experts);
  if (small < side) {
    const at::Tensor place = at::arange(side, map.options().dtype(at::kLong));
    const at::Tensor from = place.clamp_max(border) + (place - (side - 1 - border)).clamp_min(0);
    map = map.index_select(2, from).index_select(3, from);
  }
  return map.view({1, experts, options.num_outputs, side, side});
}

at::Tensor weights_by_class(at::Tensor a_Kho) {
  const int64_t experts = a_Kho.size(0), outputs = a_Kho.size(2);
  if (outputs == 1) {
    a_Kho.fill_(1.0);
    a_Kho.narrow(0, (experts + 1) / 2, experts / 2).fill_(-1.0);
    return a_Kho;
  }
  const int64_t each = experts / outputs;
  for (int64_t c = 0; c < outputs; ++c) a_Kho.narrow(0, c * each, each).select(2, c).fill_(1.0);
  return a_Kho;
}

}  // namespace

MapExpertsImpl::MapExpertsImpl(const MapExpertsOptions& options, const at::Generator& generator)
    : options_(options) {
  const int64_t experts = options.num_experts, channels = options.channels, kernel = options.kernel;
  weight = register_parameter("weight", at::ones({experts, channels}));
  bias = register_parameter("bias", at::zeros({experts, channels}));
  w = register_parameter("w", at::empty({experts, options.num_outputs, channels, kernel, kernel}));
  xavier_uniform(w, (channels + options.num_outputs) * kernel * kernel, generator);
  b = register_parameter("b", at::zeros({experts, options.num_outputs}));
  running_mean = register_buffer("running_mean", at::zeros({experts, channels}));
  running_var = register_buffer("running_var", at::ones({experts, channels}));
}

at::Tensor MapExpertsImpl::gated_rows(const at::Tensor& rows_Ad, const Routing& routing) const {
  if (routing.max_rows() % routing.num_experts() != 0 ||
      routing.num_tokens() % options_.num_patches() != 0) {
    fail(
        "MapExperts: a routing by images of {} patches with as many rows for every expert is "
        "needed",
        options_.num_patches());
  }
  return (rows_Ad * routing.gate.unsqueeze(1))
      .view({routing.num_experts(), -1, options_.channels, options_.patch * options_.patch});
}

MapExpertsImpl::Statistics MapExpertsImpl::statistics(const at::Tensor& rows_KRCp, int64_t images) {
  if (!is_training()) return {running_mean, running_var};
  // Every rank has as many images, and as many rows of each.
  const auto process_group = batch_shard().process_group();
  const int64_t count = process_group ? process_group->size() : 1;
  const auto sum = [&](const at::Tensor& x_KC) {
    return process_group ? all_reduce_sum(x_KC, process_group, Traffic::batch_norm) : x_KC;
  };
  const auto all = static_cast<double>(count * images * options_.side * options_.side);
  const double zeros = all - static_cast<double>(count * rows_KRCp.size(1) * rows_KRCp.size(3));
  const at::Tensor mean = sum(rows_KRCp.sum({1, 3})) / all;
  const at::Tensor from_mean = rows_KRCp - mean.unsqueeze(1).unsqueeze(3);
  const at::Tensor var = (sum(from_mean.square().sum({1, 3})) + zeros * mean.square()) / all;
  const torch::NoGradGuard no_grad;
  running_mean.lerp_(mean.to(running_mean), options_.momentum);
  running_var.lerp_((var * (all / std::max(1.0, all - 1.0))).to(running_var), options_.momentum);
  return {mean, var};
}

MapExpertsImpl::Activations MapExpertsImpl::activate(const at::Tensor& rows_KRCp,
                                                     const Statistics& statistics) const {
  const at::Tensor scale = weight * (statistics.var + options_.epsilon).rsqrt();
  const at::Tensor shift = bias - statistics.mean * scale;
  Activations active;
  active.rest_KC = shift.clone().relu_();  // relu() has no meta kernel.
  active.more_KRCp =
      (rows_KRCp * over_rows(scale) + over_rows(shift)).relu_() - over_rows(active.rest_KC);
  return active;
}

at::Tensor MapExpertsImpl::convolve(const at::Tensor& rows_KRCp) const {
  const int64_t experts = num_experts(), rows = rows_KRCp.size(1), patch = options_.patch;
  const int64_t kernel = options_.kernel, window = options_.window();
  if (kernel == 1) {
    const at::Tensor x_KnC = rows_KRCp.transpose(2, 3).reshape({experts, -1, options_.channels});
    return at::bmm(x_KnC, w.view({experts, -1, options_.channels}).transpose(1, 2))
        .view({experts, rows, patch, patch, options_.num_outputs});
  }
  const at::Tensor x_RKCpp =
      rows_KRCp.transpose(0, 1).reshape({rows, experts * options_.channels, patch, patch});
  return at::conv2d(x_RKCpp, w.flatten(0, 1), {}, /*stride=*/1, /*padding=*/kernel - 1,
                    /*dilation=*/1, /*groups=*/experts)
      .view({rows, experts, options_.num_outputs, window, window})
      .permute({1, 0, 3, 4, 2});
}

std::optional<ExpertsOutput> MapExpertsImpl::fused(const at::Tensor& x_Td, const Routing& routing,
                                                   const at::Generator&) {
  const int64_t images = routing.num_tokens() / options_.num_patches(), experts = num_experts();
  const int64_t side = options_.side, patch = options_.patch, each = side / patch;
  const at::Tensor rows_KRCp = gated_rows(dispatch(x_Td, routing), routing);
  const Activations active = activate(rows_KRCp, statistics(rows_KRCp, images));
  const at::Tensor rest_map = convolve_rest(active.rest_KC, w, b, options_);
  const at::Tensor maps_BKSSo = add_windows(convolve(active.more_KRCp), routing, images, options_) +
                                rest_map.permute({0, 1, 3, 4, 2});
  return ExpertsOutput{
      maps_BKSSo.reshape({images, experts, each, patch, each, patch, options_.num_outputs})
          .permute({0, 2, 4, 1, 6, 3, 5})
          .reshape({routing.num_tokens(), experts * options_.num_outputs * patch * patch}),
      {}};
}

ExpertRows MapExpertsImpl::compute(const at::Tensor& rows_Ad, const Routing& routing,
                                   const at::Generator&) {
  const Activations active = activate(gated_rows(rows_Ad, routing), {running_mean, running_var});
  const at::Tensor windows_KRqqo = convolve(active.more_KRCp);
  return {.outputs =
              windows_KRqqo.permute({0, 1, 4, 2, 3}).reshape({routing.max_rows(), num_outputs()}),
          .is_gated = true};
}

ExpertsScript MapExpertsImpl::script_source() const {
  const int64_t side = options_.side, kernel = options_.kernel, border = kernel / 2;
  const bool whole = side <= kernel;
  const std::string source = fmt::format(
      kMix, fmt::arg("patches", options_.num_patches()),
      fmt::arg("epsilon", script::literal(options_.epsilon)),
      fmt::arg("channels", options_.channels), fmt::arg("patch", options_.patch),
      fmt::arg("kernel", kernel), fmt::arg("border", border),
      fmt::arg("each", side / options_.patch), fmt::arg("map", side),
      fmt::arg("small", std::min(side, kernel)), fmt::arg("border_of_small", whole ? side : border),
      fmt::arg("last_middle", whole ? side : side - 1 - border),
      fmt::arg("side", side + kernel - 1), fmt::arg("window", options_.window()));
  return {.source = source, .has_mix = true};
}

PatchExpertsImpl::PatchExpertsImpl(const PMoEConfig& config, const at::Generator& generator) {
  const int64_t experts = config.num_experts, hidden = config.num_neurons;
  w = register_parameter(
      "w",
      torch::empty({experts, config.width(), hidden}).normal_(0.0, config.init_std, generator));
  a = torch::zeros({experts, hidden, config.num_classes == 2 ? 1 : config.num_classes});
  register_buffer(
      "a", config.is_output_by_class() ? weights_by_class(a) : a.normal_(0.0, 1.0, generator));
}

ExpertRows PatchExpertsImpl::rows_of(const at::Tensor& x_Td, const Routing& routing) const {
  const NoAutocastGuard no_autocast;
  const int64_t hidden = w.size(2);
  const at::Tensor no_bias = at::zeros({num_experts(), hidden}, w.options().requires_grad(false));
  // Filters with an output each: the hidden layer.
  const at::Tensor hidden_Ah =
      filter_experts(x_Td.unsqueeze(1), routing, {w, no_bias}, hidden, Activation::relu);
  // Rows without an expert are 0, so that any expert's weights will do for them.
  const at::Tensor slot_A = row_experts(routing).clamp_max(num_experts() - 1);
  return {(hidden_Ah.unsqueeze(2) * a.index_select(0, slot_A)).sum(1), {}};
}

ExpertsScript PatchExpertsImpl::script_source() const {
  return {script::expert_loop_source(num_outputs(), {"w", "a"},
                                     "hidden = torch.relu(torch.mm(x, w))", "torch.mm(hidden, a)")};
}

}  // namespace moesaic::nn
