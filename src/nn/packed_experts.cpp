// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/packed_experts.h"

#include <array>

#include "moesaic/ops/routed_mlp.h"

namespace moesaic::nn {
namespace {

std::array<const at::Tensor*, 4> tensors(const ExpertWeights& weights) {
  return {&weights.w1, &weights.b1, &weights.w2, &weights.b2};
}

ExpertWeights in(const ExpertWeights& weights, at::ScalarType type) {
  return {weights.w1.to(type), weights.b1.to(type), weights.w2.to(type), weights.b2.to(type)};
}

bool have_versions(const ExpertWeights& weights) {
  for (const at::Tensor* tensor : tensors(weights)) {
    if (tensor->is_inference()) return false;
  }
  return true;
}

std::vector<int64_t> versions_of(const ExpertWeights& weights) {
  std::vector<int64_t> versions;
  for (const at::Tensor* tensor : tensors(weights)) {
    versions.push_back(static_cast<int64_t>(tensor->_version()));
  }
  return versions;
}

/// Returns whether these are the same memories, seen in the same way.
bool are_same(const ExpertWeights& a, const ExpertWeights& b) {
  for (size_t i = 0; i < tensors(a).size(); ++i) {
    if (!tensors(a)[i]->defined() || !tensors(a)[i]->is_set_to(*tensors(b)[i])) return false;
  }
  return true;
}

}  // namespace

ExpertWeights PackedExperts::get(const ExpertWeights& weights, at::ScalarType type) {
  if (!have_versions(weights)) return in(weights, type);
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  const std::vector<int64_t> versions = versions_of(weights);
  if (!are_same(seen_, weights) || versions_ != versions) {
    seen_ = {weights.w1.detach(), weights.b1.detach(), weights.w2.detach(), weights.b2.detach()};
    versions_ = versions;
    packed_ = {};
    return in(weights, type);
  }
  if (!packed_.w1.defined() || packed_.w1.scalar_type() != type) {
    packed_ = pack_experts(in(weights, type));
  }
  return packed_;
}

void PackedExperts::clear() {
  const std::lock_guard lock(mutex_);
  seen_ = packed_ = {};
  versions_.clear();
}

}  // namespace moesaic::nn
