// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/mlp_experts.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/script.h"
#include "moesaic/parallel/process_mesh.h"

namespace moesaic::nn {
namespace {

constexpr char kAllAtOnce[] = R"(
def all_at_once(self, rows: Tensor) -> Tensor:
    hidden = torch.baddbmm(self.b1.unsqueeze(1), rows, self.w1)
    return torch.baddbmm(self.b2.unsqueeze(1), {}, self.w2)
)";

// Rows are rounded as quantise_experts() says. TorchScript names a dtype only by its number.
constexpr char kInt8[] = R"(
def int8_mm(self, x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    most = x.abs().amax([1], keepdim=True)
    inverse = torch.where(most >= 1e-35, torch.full_like(most, 127.0) / most, torch.zeros_like(most))
    levels = torch.floor((x * inverse).clamp(-127.0, 127.0) + 128.5) - 128.0
    return torch._int_mm(levels.to({}), w).to(x.dtype) * scale * (most / 127.0)
)";

ExpertsScript int8_script(const MlpExpertsOptions& options, const ExpertWeights& rounded) {
  std::string second = "b2";
  for (int64_t from = 0; from < options.hidden; from += kInt8BlockSize) {
    const std::string piece =
        fmt::format("{}:{}", from, std::min(from + kInt8BlockSize, options.hidden));
    second += fmt::format(" + self.int8_mm(hidden[:, {0}], w2[{0}], w2_scale)", piece);
  }
  const std::string lines =
      fmt::format("hidden = b1 + self.int8_mm(x, w1, w1_scale)\n        hidden = {}",
                  script::activation_source(options.activation));
  const std::string loop = script::expert_loop_source(
      rounded.w2.size(2), {"w1", "w1_scale", "b1", "w2", "w2_scale", "b2"}, lines, second);
  return {.source = loop + fmt::format(kInt8, static_cast<int>(at::kChar)),
          .tensors = {{"w1", rounded.w1},
                      {"w1_scale", rounded.w1_scale},
                      {"b1", rounded.b1},
                      {"w2", rounded.w2},
                      {"w2_scale", rounded.w2_scale},
                      {"b2", rounded.b2}}};
}

}  // namespace

ExpertWeights PackedExperts::get(const ExpertWeights& weights, at::ScalarType type) {
  const std::array<at::Tensor, 4> given = {weights.w1, weights.b1, weights.w2, weights.b2};
  const auto in_type = [&] {
    if (type == at::kChar) return quantise_experts(weights);
    return ExpertWeights{weights.w1.to(type), weights.b1.to(type), weights.w2.to(type),
                         weights.b2.to(type)};
  };
  const bool have_versions = std::none_of(
      given.begin(), given.end(), [](const at::Tensor& tensor) { return tensor.is_inference(); });
  if (!have_versions) return in_type();
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  bool same = true;  // The same memories, seen in the same way.
  for (size_t i = 0; i < given.size(); ++i) {
    const auto version = static_cast<int64_t>(given[i]._version());
    same = same && seen_[i].defined() && seen_[i].is_set_to(given[i]) && versions_[i] == version;
    if (same) continue;
    seen_[i] = given[i].detach();
    versions_[i] = version;
    packed_ = {};
  }
  if (!same && type != at::kChar) return in_type();
  if (!packed_.w1.defined() || packed_.w1.scalar_type() != type) packed_ = pack_experts(in_type());
  return packed_;
}

void PackedExperts::clear() {
  const std::lock_guard lock(mutex_);
  seen_ = {};
  packed_ = {};
}

MlpExpertsImpl::MlpExpertsImpl(MlpExpertsOptions options, at::Generator generator)
    : options_(options) {
  const int64_t experts = options.num_experts, width = options.width, hidden = options.hidden;
  w1 = register_parameter("w1", torch::empty({experts, width, hidden}));
  b1 = register_parameter("b1", torch::empty({experts, hidden}));
  w2 = register_parameter("w2", torch::empty({experts, hidden, width}));
  b2 = register_parameter("b2", torch::empty({experts, width}));
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& stack : {w1, w2, b1, b2}) {
    const at::Tensor drawn = options.shared_init ? stack.narrow(0, 0, 1) : stack;
    stack.dim() == 3 ? xavier_uniform(drawn, generator) : mlp_bias_normal(drawn, generator);
    if (options.shared_init) stack.copy_(drawn.clone().expand_as(stack));
  }
}

// A generator of their own, which moves `random` on by one step whatever the rows: what is drawn
// later in the step does not depend on how processes share the rows.
at::Generator MlpExpertsImpl::drops(const at::Generator& random) const {
  if (!is_training() || options_.dropout <= 0.0 || !random.defined()) return {};
  const bool is_sharded = batch_shard().processes && batch_shard().is_sharded;
  const auto rank = static_cast<uint64_t>(is_sharded ? batch_shard().processes->rank() : 0);
  return make_generator(next_seed(random) + rank, random.device());
}

std::optional<ExpertsOutput> MlpExpertsImpl::fused(const at::Tensor& x_Td, const Routing& routing,
                                                   const at::Generator& random) {
  const bool drops = is_training() && options_.dropout > 0.0 && random.defined();
  if (!is_int8_ && (options_.bfloat16 || drops)) return std::nullopt;
  return ExpertsOutput{routed_mlp(x_Td, routing, weights_for(), options_.activation), {}};
}

ExpertWeights MlpExpertsImpl::weights_for() {
  const ExpertWeights weights{w1, b1, w2, b2};
  if (is_int8_) {
    if (at::GradMode::is_enabled()) fail("MlpExperts: int8 experts compute without gradients");
    return packed_.get(weights, at::kChar);
  }
  if (at::GradMode::is_enabled()) {
    packed_.clear();
    return weights;
  }
  const bool rounds = at::autocast::is_autocast_enabled(at::kCPU);
  const at::ScalarType type =
      rounds ? at::autocast::get_autocast_dtype(at::kCPU) : w1.scalar_type();
  const bool packs = w1.is_cpu() && w1.scalar_type() != at::kDouble;
  return packs ? packed_.get(weights, type) : weights;
}

void MlpExpertsImpl::use_int8() {
  packed_.get({w1, b1, w2, b2}, at::kChar);
  is_int8_ = true;
}

ExpertRows MlpExpertsImpl::compute(const at::Tensor& rows_Ad, const Routing& routing,
                                   const at::Generator& random) {
  if (is_int8_) fail("MlpExperts: int8 experts compute whole layers, on one process");
  const at::Generator random_drops = drops(random);
  if (!random_drops.defined()) {
    return {grouped_mlp(rows_Ad, routing.offsets, {w1, b1, w2, b2}, options_.activation), {}};
  }
  const at::Tensor hidden_Am =  // No kernel drops hidden units.
      apply_activation(grouped_linear(rows_Ad, routing.offsets, w1, b1), options_.activation);
  const at::Tensor y_Ad =
      grouped_linear(dropout(hidden_Am, options_.dropout, random_drops), routing.offsets, w2, b2);
  return {dropout(y_Ad, options_.dropout, random_drops), {}};
}

ExpertsScript MlpExpertsImpl::script_source() const {
  if (is_int8_) return int8_script(options_, round_experts_to_int8({w1, b1, w2, b2}));
  const std::string activation = script::activation_source(options_.activation);
  const std::string loop = script::expert_loop_source(
      num_outputs(), {"w1", "b1", "w2", "b2"}, "hidden = torch.addmm(b1, x, w1)",
      fmt::format("torch.addmm(b2, {}, w2)", activation));
  return {.source = loop + fmt::format(kAllAtOnce, activation), .mlp = options_.activation};
}

}  // namespace moesaic::nn
