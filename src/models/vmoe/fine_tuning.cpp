// SPDX-License-Identifier: Apache-2.0
// V-MoE that begins with the values of another network, or as a mixture of a dense one.
#include "moesaic/models/vmoe/vmoe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <array>

#include "moesaic/base/error.h"
#include "moesaic/base/random.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/nn/init.h"

namespace moesaic {
namespace {

struct TokenGrid {
  int64_t side = 0;
  bool token = false;
};

std::optional<TokenGrid> token_grid(int64_t tokens) {
  int64_t side = 0;
  while ((side + 1) * (side + 1) <= tokens) ++side;
  if (side > 0 && side * side == tokens) return TokenGrid{side, false};
  if (side > 0 && side * side + 1 == tokens) return TokenGrid{side, true};
  return std::nullopt;
}

/// Interpolates source [s, s, d] -> [n, n, d] in float64.
at::Tensor zoom_grid(const at::Tensor& source_ssd, int64_t to) {
  const int64_t last = source_ssd.size(0) - 1;
  const double step = to > 1 ? static_cast<double>(last) / static_cast<double>(to - 1) : 1.0;
  const at::Tensor place = at::arange(to, at::kDouble) * step;
  const at::Tensor row = place.to(at::kLong), rest = place - row;
  const at::Tensor inside = place.le(static_cast<double>(last)).to(at::kDouble);
  const std::array weights = {(1.0 - rest) * inside, rest * inside};  // Of a row and the next.
  // A row past the last one has no weight.
  const std::array rows = {row.clamp_max(last), (row + 1).clamp_max(last)};
  at::Tensor sum = at::zeros({to, to, source_ssd.size(2)}, at::kDouble);
  for (const size_t down : {0, 1}) {
    for (const size_t right : {0, 1}) {
      const at::Tensor weight = (weights[down].unsqueeze(1) * weights[right]).unsqueeze(2);
      const at::Tensor values = source_ssd.index_select(0, rows[down]).index_select(1, rows[right]);
      sum += at::where(weight.eq(0.0), 0.0, weight * values.to(at::kDouble));
    }
  }
  return sum.to(at::kFloat);
}

/// Returns whether the networks differ in image size, members, or the layer before the head.
bool differ_as_in_fine_tuning(const VMoE& a, const VMoE& b) {
  return a.input_shape() != b.input_shape() || a.num_members() != b.num_members() ||
         a.settings().representation_size != b.settings().representation_size ||
         a.settings().name != b.settings().name;
}

}  // namespace

std::string vit_zoom_problem(const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  if (from.size() != 3 || to.size() != 3 || from[0] != 1 || from[2] != to[2]) {
    return "vit_zoom takes [1, tokens, width] to other tokens of the same width";
  }
  if (from == to) return "";
  const auto source = token_grid(from[1]), target = token_grid(to[1]);
  if (!source || !target) {
    return fmt::format(
        "vit_zoom: {} tokens do not form a square grid, with a class token or without",
        source ? to[1] : from[1]);
  }
  if (target->token && !source->token) {
    return fmt::format("vit_zoom: {} tokens have no class token, {} have one", from[1], to[1]);
  }
  return "";
}

at::Tensor vit_zoom(const at::Tensor& embedding_1Td, int64_t tokens) {
  const std::vector<int64_t> from = embedding_1Td.sizes().vec();
  const std::vector<int64_t> to = {1, tokens, from.back()};
  const std::string problem = vit_zoom_problem(from, to);
  if (!problem.empty()) fail_usage("{}", problem);
  const at::Tensor rows = embedding_1Td.to(at::kFloat).contiguous();
  if (from == to) return rows;
  const TokenGrid source = *token_grid(from[1]), target = *token_grid(tokens);
  const int64_t grid_start = source.token ? 1 : 0;
  if (source.side == target.side) return rows.narrow(1, from[1] - tokens, tokens).contiguous();
  const at::Tensor grid = rows.narrow(1, grid_start, source.side * source.side)
                              .view({source.side, source.side, from[2]});
  const at::Tensor zoomed = zoom_grid(grid, target.side).view({1, -1, from[2]});
  return target.token ? at::cat({rows.narrow(1, 0, 1), zoomed}, 1) : zoomed;
}

const std::vector<int64_t>* kept_experts_of(const VMoEConfig& config, const std::string& name) {
  for (const auto& [block, kept] : config.encoder.moe.kept_experts) {
    if (name.starts_with("blocks." + block + ".moe.experts.")) return &kept;
  }
  return nullptr;
}

at::Tensor with_removed_experts(const VMoEConfig& config, const std::string& name,
                                const at::Tensor& values) {
  const at::Tensor held = values.to(at::kCPU, at::kFloat);
  const std::vector<int64_t>* const kept = kept_experts_of(config, name);
  if (kept == nullptr) return held;
  std::vector<int64_t> shape = held.sizes().vec();
  shape.front() = config.encoder.moe.num_experts;
  return at::zeros(shape, at::kFloat).index_copy(0, torch::tensor(*kept, at::kLong), held);
}

void VMoE::initialise_from(const Model& source, const TensorMap& values, bool new_head,
                           const std::string& from) {
  const auto* const other = dynamic_cast<const VMoE*>(&source);
  if (other != nullptr &&
      other->settings().encoder.moe.merged_into != settings().encoder.moe.merged_into) {
    fail_usage("{}: the network has other merged experts; leave 'model' out to take its own", from);
  }
  if (other == nullptr || !differ_as_in_fine_tuning(*other, *this)) {
    Model::initialise_from(source, values, new_head, from);
    return;
  }
  const auto given = parse<VMoEConfig>(Value::from_json(other->config(), "model"), "model");
  if (given.encoder.moe.mean_replacement && !config_.encoder.moe.mean_replacement) {
    fail_usage("{}: the network cannot store mean outputs of removed experts", from);
  }
  const bool drops_layer = given.representation_size != config_.representation_size;
  const bool drops_head = new_head && (given.num_classes != config_.num_classes ||
                                       given.pre_logits_size() != config_.pre_logits_size());
  for (const auto& [name, unused] : state_of(source)) {
    if (!values.contains(name)) fail("{}: '{}' is missing", from, name);
  }
  const torch::NoGradGuard no_grad;
  const TensorMap own = state_of(*this);
  TensorMap moved;
  for (const auto& [name, value] : values) {
    if (drops_head && name.starts_with("head.")) continue;
    if (drops_layer && name.starts_with("pre_logits.")) continue;
    const auto place = own.find(name);
    if (place == own.end()) fail("{}: '{}' has no place in the network", from, name);
    const std::vector<int64_t> to = place->second.sizes().vec();
    std::vector<int64_t> shape = value.sizes().vec();
    const bool resized = name == "position_embedding";
    const bool pruned = shape != to && kept_experts_of(given, name) != nullptr;
    if (pruned) shape.front() = given.encoder.moe.num_experts;
    const std::string problem = resized       ? vit_zoom_problem(shape, to)
                                : shape == to ? ""
                                              : "the shapes differ";
    if (!problem.empty()) {
      fail("{}: '{}' is [{}], the network's is [{}]: {}", from, name, fmt::join(shape, ", "),
           fmt::join(to, ", "), problem);
    }
    if (value.is_meta()) continue;
    moved[name] = resized  ? vit_zoom(value.to(at::kCPU), to[1])
                  : pruned ? with_removed_experts(given, name, value)
                           : value;
  }
  for (const auto& [name, value] : moved) own.at(name).copy_(value);
}

VMoEConfig upcycled_config(VMoEConfig dense, const Upcycling& upcycling) {
  VMoEMoeConfig& moe = dense.encoder.moe;
  moe.layers = upcycling.layers;
  moe.num_experts = upcycling.num_experts;
  moe.mlp_dim.reset();
  moe.router.k = upcycling.num_selected_experts;
  moe.router.gate = upcycling.gate;
  return dense;
}

std::string dense_name(const std::string& name) {
  constexpr std::string_view kExperts = ".moe.experts.";
  const size_t at = name.find(kExperts);
  if (at == std::string::npos) return "";
  const std::string part = name.substr(at + kExperts.size());
  return fmt::format("{}.mlp.fc{}.{}", name.substr(0, at), part.back(),
                     part.front() == 'w' ? "weight" : "bias");
}

at::Tensor expert_copies(const at::Tensor& dense, const std::string& name, at::IntArrayRef shape,
                         double noise, uint64_t seed) {
  const at::Tensor expert = dense.dim() == 2 ? dense.t() : dense;
  const at::Tensor all = expert.unsqueeze(0).expand(shape).contiguous();
  if (noise == 0.0 || dense.dim() < 2 || dense.is_meta()) return all;
  const double scale = noise * dense.std().item<double>();
  const at::Generator random = nn::make_generator(mix64(seed + stream_id(name)));
  return all + at::empty_like(all).normal_(0.0, scale, random);
}

std::shared_ptr<Model> VMoE::upcycled(const Upcycling& upcycling, uint64_t seed) const {
  if (!config_.encoder.moe.layers.empty())
    fail_usage("the network has experts already; leave upcycle out");
  if (!config_.encoder.moe.router.is_token_choice()) {
    fail_usage(
        "upcycle: tokens choose among the copies, but encoder.moe.router.name is {}; leave the "
        "router out of the dense network",
        routing_kind_name(config_.encoder.moe.router.kind));
  }
  std::optional<MetaDeviceGuard> on_meta;
  if (device().is_meta()) on_meta.emplace();
  auto mixture = std::make_shared<VMoE>(upcycled_config(config_, upcycling), seed);
  const torch::NoGradGuard no_grad;
  const TensorMap dense = state_of(*this);
  for (const auto& [name, tensor] : state_of(*mixture)) {
    if (const auto found = dense.find(name); found != dense.end()) tensor.copy_(found->second);
    if (const auto found = dense.find(dense_name(name)); found != dense.end()) {
      tensor.copy_(expert_copies(found->second, name, tensor.sizes(), upcycling.noise, seed));
    }
  }
  return mixture;
}

}  // namespace moesaic
