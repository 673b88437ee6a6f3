// SPDX-License-Identifier: Apache-2.0
// Compares routings of the GPU's kernels, run on the host in several orders of threads and blocks,
// with those of the CPU's operators: indices equal to the letter, whatever the order.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/ops/routing.h"
#include "support/tensors.h"

namespace moesaic::testing {

/// Logits of few values, so that there are many ties.
inline at::Tensor coarse(const at::Tensor& logits) {
  return torch::round(logits * 2) / 2;
}

inline void expect_same_indices(const at::Tensor& found, const at::Tensor& wanted,
                                const char* name) {
  EXPECT_TRUE(torch::equal(found, wanted)) << name << "\n" << found << "\n" << wanted;
}

inline void expect_same_rows(const Routing& wanted, const at::Tensor& offsets,
                             const at::Tensor& token, const at::Tensor& gate,
                             const at::Tensor& token_offsets, const at::Tensor& token_row) {
  expect_same_indices(offsets, wanted.offsets, "offsets");
  expect_same_indices(token, wanted.token, "token");
  expect_same_indices(token_offsets, wanted.token_offsets, "token_offsets");
  expect_same_indices(token_row, wanted.token_row, "token_row");
  expect_close(gate, wanted.gate, gate.scalar_type() == torch::kFloat ? 1e-6 : 1e-13);
}

}  // namespace moesaic::testing
