// SPDX-License-Identifier: Apache-2.0
// A mixture-of-experts layer as a PyTorch user would write it, with nothing but ATen: the baseline
// of the benchmarks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace moesaic::bench {

struct EagerLayer {
  at::Tensor router;          // [d, E]
  at::Tensor w1, b1, w2, b2;  // [E, d, m], [E, m], [E, m, d], [E, d]
  int64_t k = 2;

  int64_t experts() const { return w1.size(0); }
  std::vector<at::Tensor> parameters() const { return {router, w1, b1, w2, b2}; }

  /// The same layer with experts of a type; with the weights' memory in the order of [E, m, d] and
  /// [E, d, m], as at::linear has them; with leaves that require gradients; with these experts
  /// only.
  EagerLayer to(at::ScalarType type) const;
  EagerLayer turned_over() const;
  EagerLayer trainable() const;
  EagerLayer pruned(const std::vector<int64_t>& kept) const;
};

EagerLayer make_layer(int64_t width, int64_t hidden, int64_t experts, int64_t k);

/// Returns weights [E, m, d] with their memory in the order of [E, d, m].
at::Tensor turned_over(const at::Tensor& w);

/// For each expert, the tokens that chose it are found, computed and added where they belong.
at::Tensor masked_loop(const EagerLayer& layer, const at::Tensor& x_Td);

/// Choices are sorted by expert; each expert computes its slice.
at::Tensor sorted_loop(const EagerLayer& layer, const at::Tensor& x_Td);

/// One MLP with the first expert's weights over all rows.
at::Tensor dense_mlp(const EagerLayer& layer, const at::Tensor& rows_Ad);

/// Softmax, top-k, places in each expert's queue by a cumulative sum over one-hot rows, capacity, a
/// stable sort by expert, and counts. Returns the tokens by expert, their gates and the counts.
std::vector<at::Tensor> eager_routing(const at::Tensor& logits_TE, int64_t k, int64_t capacity);

}  // namespace moesaic::bench
