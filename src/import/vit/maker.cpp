// SPDX-License-Identifier: Apache-2.0
// The tensors of a network, made of those of a file.
#include <ATen/ATen.h>

#include <array>
#include <set>

#include "moesaic/base/error.h"
#include "moesaic/base/pattern.h"
#include "moesaic/base/random.h"
#include "moesaic/base/text.h"
#include "moesaic/models/registry.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "moesaic/nn/init.h"
#include "vit.h"

namespace moesaic::vit {
namespace {

constexpr const char* kRouter = ".moe.router.weight";

/// Returns the shape that a tensor of the dense network has for one of ours.
std::vector<int64_t> dense_shape(const std::string& name, std::vector<int64_t> shape) {
  if (dense_name(name).empty()) return shape;
  shape.erase(shape.begin());  // The experts.
  if (shape.size() == 2) std::swap(shape[0], shape[1]);
  return shape;
}

std::vector<int64_t> without_leading_ones(std::vector<int64_t> shape) {
  while (shape.size() > 1 && shape.front() == 1) shape.erase(shape.begin());
  return shape;
}

bool is_qkv_bias(const std::string& name) {
  return name.ends_with(".attention.qkv.bias");
}

}  // namespace

Maker::Maker(const Tensors& tensors, const Network& network, const ImportVitOptions& options)
    : tensors_(tensors),
      network_(network),
      options_(options),
      shapes_(state_of(*build_meta_model(Value::from_json(to_json(network.config), "model")))) {
  check();
}

void Maker::check() const {
  std::vector<std::string> missing, unused;
  std::set<std::string> used;
  const bool has_biases = tensors_.has("blocks.0.attention.qkv.bias");
  for (const auto& [name, tensor] : shapes_) {
    const std::string dense = dense_name(name), &place = dense.empty() ? name : dense;
    const bool fresh = name.ends_with(kRouter) ||
                       (options_.num_classes && name.starts_with("head.")) ||
                       (is_qkv_bias(name) && !has_biases);
    used.insert(place);
    if (!tensors_.has(place)) {
      if (!fresh) missing.push_back(tensors_.source(place));
      continue;
    }
    const std::vector<std::string> parts = tensors_.missing_parts(place);
    missing.insert(missing.end(), parts.begin(), parts.end());
    if (!parts.empty()) continue;
    std::vector<int64_t> wanted = dense_shape(name, tensor.sizes().vec());
    if (name == "position_embedding") {
      wanted[1] =
          network_.embedded_prefix + network_.stored_grid.height * network_.stored_grid.width;
    }
    const std::vector<int64_t> found = tensors_.shape(place);
    if (without_leading_ones(found) == without_leading_ones(wanted)) continue;
    fail("{}: tensor '{}' is {}, a network of its other tensors' sizes has {}", tensors_.from,
         tensors_.source(place), shape_text(found), shape_text(wanted));
  }
  if (!missing.empty()) {
    fail("{}: {} missing: {}", tensors_.from, count_text(std::ssize(missing), "tensor"),
         quoted_names(missing));
  }
  for (const std::string& name : tensors_.names()) {
    if (!used.contains(name)) unused.push_back(tensors_.source(name));
  }
  if (unused.empty()) return;
  fail("{}: {} without a place in the network: {}", tensors_.from,
       count_text(std::ssize(unused), "tensor"), quoted_names(unused));
}

at::Tensor Maker::stored(const std::string& name) const {
  at::Tensor values = tensors_.values(name);
  if (all_finite(values)) return values;
  fail("{}: tensor '{}' holds NaN or infinity", tensors_.from, tensors_.source(name));
}

at::Tensor Maker::make(const std::string& name) const {
  const at::NoGradGuard no_grad;
  const at::IntArrayRef shape = shapes_.at(name).sizes();
  const std::string dense = dense_name(name);
  if (!dense.empty()) {
    return expert_copies(stored(dense), name, shape, options_.upcycling.noise, options_.seed);
  }
  if (name.ends_with(kRouter)) {
    const at::Tensor weight = at::empty(shape, at::kFloat);
    nn::lecun_normal(weight, shape[1], nn::make_generator(mix64(options_.seed + stream_id(name))));
    return weight;
  }
  if (!tensors_.has(name)) return at::zeros(shape, at::kFloat);  // Biases, or a new head.
  if (name == "position_embedding") return positions();
  const at::Tensor values = stored(name).reshape(shape);
  // The rows of tokens that have no position in the network are added to the tokens themselves.
  const bool folded =
      network_.embedded_prefix > 0 && !network_.config.encoder.position_emb.class_token;
  const int64_t tokens = network_.config.has_class_token() ? 1 : 0;
  if (folded && name == "cls") return values + prefix_row(0, 1);
  const bool all = network_.embedded_prefix == network_.config.num_prefix_tokens();
  if (name == "registers" && all && network_.embedded_prefix > 0) {
    return values + prefix_row(tokens, network_.config.num_registers);
  }
  return values;
}

at::Tensor Maker::prefix_row(int64_t first, int64_t count) const {
  const int64_t width = network_.config.hidden_size;
  return stored("position_embedding").reshape({1, -1, width}).narrow(1, first, count);
}

/// Resizes the patches' rows as timm's resample_abs_pos_embed() does: bicubic, antialiased, without
/// aligned corners. Rows of other tokens stay.
at::Tensor Maker::positions() const {
  const VMoEConfig& config = network_.config;
  const Size2d &from = network_.stored_grid, to = config.grid();
  const int64_t prefix = network_.embedded_prefix, width = config.hidden_size;
  const at::Tensor all_1Td = stored("position_embedding").reshape({1, -1, width});
  at::Tensor patches_1Pd = all_1Td.slice(1, prefix);
  if (from != to) {
    const at::Tensor grid_1dhw =
        patches_1Pd.reshape({1, from.height, from.width, width}).permute({0, 3, 1, 2});
    const std::array<int64_t, 2> size = {to.height, to.width};
    patches_1Pd = at::_upsample_bicubic2d_aa(grid_1dhw, size, /*align_corners=*/false)
                      .permute({0, 2, 3, 1})
                      .reshape({1, -1, width});
  }
  const int64_t kept = config.num_embedded_tokens() - config.num_patches();
  return kept == 0 ? patches_1Pd : at::cat({all_1Td.slice(1, 0, kept), patches_1Pd}, 1);
}

}  // namespace moesaic::vit
