// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/module_state.h"

#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/ranges.h>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

constexpr size_t kNamed = 3;  // Max number of names in a message.

std::string state_shape(const at::Tensor& tensor) {
  return fmt::format("{}{}", c10::toString(tensor.scalar_type()), tensor.sizes().vec());
}

void add_problem(std::vector<std::string>& problems, const char* kind,
                 const std::vector<std::string>& names) {
  if (names.empty()) return;
  const size_t shown = std::min(names.size(), kNamed);
  const std::vector<std::string> first(names.begin(), names.begin() + static_cast<long>(shown));
  const char* more = names.size() > shown ? ", ..." : "";
  problems.push_back(fmt::format("{} {} ({}{})", names.size(), kind, fmt::join(first, ", "), more));
}

/// Returns whether stacked experts differ only in their number.
bool other_expert_count(const std::string& name, const at::Tensor& given, const at::Tensor& own) {
  return name.find("experts.") != std::string::npos && given.dim() == own.dim() && own.dim() > 0 &&
         given.size(0) != own.size(0) && given.sizes().slice(1) == own.sizes().slice(1);
}

/// Returns all differences in one line; "" if the tensors fit.
std::string compare(const TensorMap& own, const TensorMap& given, std::string_view kept_experts) {
  std::vector<std::string> missing, unexpected, different;
  bool other_experts = false;
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    if (found == given.end()) {
      missing.push_back(name);
    } else if (found->second.sizes() != tensor.sizes() ||
               found->second.scalar_type() != tensor.scalar_type()) {
      different.push_back(fmt::format("{} is {}, the model has {}", name,
                                      state_shape(found->second), state_shape(tensor)));
      other_experts = other_experts || other_expert_count(name, found->second, tensor);
    }
  }
  for (const auto& [name, tensor] : given) {
    if (own.find(name) == own.end()) unexpected.push_back(name);
  }
  std::vector<std::string> problems;
  add_problem(problems, "missing", missing);
  add_problem(problems, "unexpected", unexpected);
  add_problem(problems, "different", different);
  if (other_experts) {
    problems.push_back(fmt::format(
        "the number of experts differs: {}the model's config has to name the experts that pruning "
        "left, and only those",
        kept_experts.empty() ? "" : fmt::format("{} in ", kept_experts)));
  }
  return fmt::format("{}", fmt::join(problems, "; "));
}

bool finite_at_once(const at::Tensor& tensor) {
  const bool narrow = tensor.element_size() < 4;
  const at::Tensor sum = narrow ? tensor.sum(at::kFloat) : tensor.sum();
  if (std::isfinite(sum.item<double>())) return true;  // A sum keeps NaN and infinity.
  return tensor.isfinite().all().item<bool>();         // That of finite numbers may overflow.
}

}  // namespace

TensorMap state_of(const torch::nn::Module& module) {
  TensorMap state;
  for (const auto& named : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : named) {
      if (item.value().defined()) state[item.key()] = item.value().detach();
    }
  }
  return state;
}

double bytes_of(const TensorMap& tensors) {
  double bytes = 0.0;
  for (const auto& [unused, tensor] : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

bool all_finite(const at::Tensor& tensor) {
  if (!tensor.is_floating_point() || tensor.is_meta()) return true;
  const at::NoGradGuard no_grad;
  if (!tensor.is_cpu()) return finite_at_once(tensor);
  constexpr int64_t kSlice = 1 << 20;  // A sum in another dtype and isfinite() make copies.
  const at::Tensor flat = tensor.reshape({-1});
  for (int64_t first = 0; first < flat.numel(); first += kSlice) {
    if (!finite_at_once(flat.slice(0, first, first + kSlice))) return false;
  }
  return true;
}

void load_state(torch::nn::Module& module, const TensorMap& tensors, std::string_view from,
                std::string_view kept_experts) {
  TensorMap own = state_of(module);
  const std::string problems = compare(own, tensors, kept_experts);
  if (!problems.empty()) fail("{}: the tensors do not fit the model: {}", from, problems);
  const torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : own) tensor.copy_(tensors.at(name));
}

}  // namespace moesaic
