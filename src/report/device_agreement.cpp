// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/device_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "moesaic/base/path.h"
#include "moesaic/config/document.h"
#include "moesaic/models/registry.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/device.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/route.h"

namespace moesaic {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double difference_of(const at::Tensor& found_in, const at::Tensor& wanted_in) {
  if (found_in.sizes() != wanted_in.sizes()) return kInfinity;
  if (wanted_in.numel() == 0) return 0;
  const at::Tensor found = found_in.detach().to(at::kCPU, at::kDouble);
  const at::Tensor wanted = wanted_in.detach().to(at::kCPU, at::kDouble);
  const double apart = (found - wanted).abs().max().item<double>();
  if (!(apart < kInfinity)) return kInfinity;  // NaN, too
  if (!wanted_in.is_floating_point() || apart == 0) return apart;
  return apart / std::max(wanted.abs().max().item<double>(), std::numeric_limits<double>::min());
}

void turn_off(const std::vector<std::string>& parts) {
  ::setenv("MOESAIC_CUDA_OFF", fmt::format("{}", fmt::join(parts, ",")).c_str(), 1);
}

/// Turns parts off until the case agrees.
Agreement disable_failing_features_of(const DeviceCase& item, at::Device device) {
  Agreement first = compare_devices(item, device);
  const std::vector<std::string> before = disabled_cuda_features();
  std::vector<std::string> off = before, added;
  for (const std::string& part : item.cuda_features) {
    if (first.agrees()) break;
    if (std::ranges::count(before, part) > 0) continue;
    off.push_back(part);
    added.push_back(part);
    turn_off(off);
    if (!compare_devices(item, device).agrees()) continue;
    first.disabled_features = added;
    return first;
  }
  turn_off(before);
  return first;
}

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// Seeded normal numbers that float16 and bfloat16 hold exactly.
Tensor numbers(at::IntArrayRef shape, uint64_t seed) {
  const at::Generator random = at::make_generator<at::CPUGeneratorImpl>(seed);
  return (torch::randn(shape, random) * 32).round() / 32;
}

Tensor leaf(const Tensor& from, at::Device device, at::ScalarType type) {
  return from.to(device, type).clone().set_requires_grad(true);
}

/// Indices, gates, and the gradient of the logits where gates have one.
Tensors with_gradient(const Routing& routing, const Tensor& logits) {
  Tensors out = {routing.offsets, routing.token, routing.token_offsets, routing.token_row,
                 routing.gate};
  if (!routing.gate.requires_grad()) return out;
  routing.gate.backward(numbers(routing.gate.sizes(), 2).to(logits.device()));
  out.push_back(logits.grad());
  return out;
}

/// A routing operator; it decides in float32 on every device.
DeviceCase routing_case(const std::string& part, const std::string& what, at::IntArrayRef shape,
                        const auto& route) {
  return {part + what, 1e-5, {part}, [shape = shape.vec(), route](at::Device device, bool) {
            const Tensor logits = leaf(numbers(shape, 1), device, at::kFloat);
            return with_gradient(route(logits), logits);
          }};
}

struct RowType {
  at::ScalarType type;
  const char* name;
  double tolerance;
};
constexpr RowType kRowTypes[] = {{at::kFloat, "float32", 1e-4},
                                 {at::kDouble, "float64", 1e-10},
                                 {at::kBFloat16, "bfloat16", 2e-2},
                                 {at::kHalf, "float16", 4e-3}};

/// A routing whose indices are the same on every device, with gates of a type.
Routing some_routing(at::Device device, at::ScalarType type) {
  Routing routing = route(numbers({200, 5}, 3), {.k = 2, .kept = {0, 2, 3}});
  for (Tensor* index :
       {&routing.offsets, &routing.token, &routing.token_offsets, &routing.token_row}) {
    *index = index->to(device);
  }
  const auto gates = type == at::kDouble ? at::kDouble : at::kFloat;
  routing.gate = leaf(routing.gate.detach(), device, gates);
  return routing;
}

/// The output and the gradients of the leaves.
Tensors backward(const Tensor& y, const Tensors& leaves) {
  y.backward(numbers(y.sizes(), 4).to(y.options()));
  Tensors out = {y};
  for (const Tensor& tensor : leaves) out.push_back(tensor.grad());
  return out;
}

DeviceCase rows_case(const std::string& part, const RowType& type, std::vector<std::string> parts,
                     const std::function<Tensors(at::Device, at::ScalarType)>& run) {
  return {fmt::format("{} {}", part, type.name), type.tolerance, std::move(parts),
          [type = type.type, run](at::Device device, bool uses_float64) {
            return run(device, uses_float64 ? at::kDouble : type);
          }};
}

Tensors run_dispatch(at::Device device, at::ScalarType type) {
  const Tensor x = leaf(numbers({200, 40}, 5), device, type);
  return backward(dispatch(x, some_routing(device, type)), {x});
}

Tensors run_combine(at::Device device, at::ScalarType type) {
  const Routing routing = some_routing(device, type);
  const Tensor rows = leaf(numbers({routing.max_rows(), 40}, 6), device, type);
  return backward(combine(rows, routing), {rows, routing.gate});
}

Tensors run_experts(at::Device device, at::ScalarType type) {
  const Routing routing = some_routing(device, type);
  const Tensor rows = leaf(numbers({routing.max_rows(), 40}, 6), device, type);
  const ExpertWeights w{
      leaf(numbers({3, 40, 64}, 7) / 8, device, type), leaf(numbers({3, 64}, 8), device, type),
      leaf(numbers({3, 64, 40}, 9) / 8, device, type), leaf(numbers({3, 40}, 10), device, type)};
  return backward(grouped_mlp(rows, routing.offsets, w, Activation::gelu_tanh),
                  {rows, w.w1, w.b1, w.w2, w.b2});
}

/// Loss, gradients and parameters of one step of a network.
Tensors training_step(const fs::path& recipe, at::Device device) {
  const BackendScope exact(device, {});  // Convolutions round to TF32 by default.
  const auto model = build_model(Document::from_file(recipe).root().at("model"), 1);
  model->to(device);
  std::vector<int64_t> shape = model->input_shape();
  shape.insert(shape.begin(), 4);
  const ModelOutput output = model->forward(numbers(shape, 11).to(device));
  const Tensor loss = output.logits.to(at::kFloat).log_softmax(-1).select(1, 0).neg().mean();
  loss.backward();
  Tensors out = {loss};
  const torch::NoGradGuard no_grad;
  for (const Tensor& parameter : model->parameters()) {
    if (!parameter.grad().defined()) continue;
    parameter.sub_(parameter.grad(), 0.1);
    out.insert(out.end(), {parameter.grad(), parameter});
  }
  return out;
}

}  // namespace

std::string Agreement::text() const {
  if (!error.empty()) return error;
  return fmt::format("differs by {:.2g}, at most {:.2g}", difference, tolerance);
}

Agreement compare_devices(const DeviceCase& item, at::Device device) {
  Agreement result{.name = item.name, .tolerance = item.tolerance};
  try {
    const auto wanted = item.run(at::kCPU, /*uses_float64=*/true);
    const auto found = item.run(device, /*uses_float64=*/false);
    if (found.size() != wanted.size()) result.difference = kInfinity;
    for (size_t i = 0; i < std::min(found.size(), wanted.size()); ++i) {
      result.difference = std::max(result.difference, difference_of(found[i], wanted[i]));
    }
  } catch (const std::exception& error) {
    const std::string message = error.what();
    result.error = message.substr(0, message.find('\n'));
  }
  return result;
}

std::vector<Agreement> disable_failing_features(const std::vector<DeviceCase>& cases,
                                                at::Device device) {
  std::vector<Agreement> results;
  for (const DeviceCase& item : cases) results.push_back(disable_failing_features_of(item, device));
  return results;
}

std::vector<DeviceCase> device_cases() {
  std::vector<DeviceCase> cases;
  // Long groups are shared out among blocks, see ops/cuda/route_expert_choice_on.h.
  for (const int64_t tokens : {300, 9000}) {
    const std::string what = fmt::format(" of {} tokens", tokens);
    for (const bool priority : {false, true}) {
      const RouteOptions options{.capacity = {.factor = 0.9, .batch_priority = priority}};
      cases.push_back(
          routing_case("route_token_choice", what + (priority ? " by priority" : ""), {tokens, 6},
                       [options](const Tensor& logits) { return route(logits, options); }));
    }
    const RouteOptions choice{.kind = RoutingKind::expert_choice,
                              .gate = Gate::softmax_tokens,
                              .capacity = {.factor = 1.5}};
    cases.push_back(routing_case("route_expert_choice", what, {tokens, 6},
                                 [choice](const Tensor& logits) { return route(logits, choice); }));
  }
  for (const RowType& type : kRowTypes) {
    std::vector<std::string> of_experts = {"grouped_mlp"};
    if (type.type == at::kBFloat16) of_experts.insert(of_experts.begin(), kGroupedMm);
    cases.push_back(rows_case("dispatch", type, {"dispatch"}, run_dispatch));
    cases.push_back(rows_case("grouped_mlp", type, of_experts, run_experts));
    cases.push_back(rows_case("combine", type, {"combine"}, run_combine));
  }
  for (const fs::path& recipe : model_files("recipes")) {
    if (recipe.filename() != "smoke.json") continue;
    const std::string family = recipe.parent_path().parent_path().filename().string();
    cases.push_back({"training step of " + family, 1e-3, {}, [recipe](at::Device device, bool) {
                       return training_step(recipe, device);
                     }});
  }
  return cases;
}

}  // namespace moesaic
