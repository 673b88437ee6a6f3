// SPDX-License-Identifier: Apache-2.0
// Rows are short, so a block of them is transposed and every loop runs across its rows.
#include "moesaic/ops/cross_entropy.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "../check.h"
#include "../route_math.h"
#include "../widened.h"
#include "moesaic/base/error.h"
#include "vector_clones.h"

namespace moesaic::ops {
namespace {

constexpr int64_t kEntropyRows = 64;  // Number of rows of a block.
constexpr int64_t kEntropyRowsOfTask = 2048;

/// A transposed block of rows: [C, kEntropyRows].
template <class Scalar>
struct EntropyBlock {
  int64_t classes;
  std::vector<Scalar> p;  // Logits, then their probabilities p.
  std::vector<Scalar> q;  // Softmax of p, where `twice`.
  Scalar log_sum[kEntropyRows];

  explicit EntropyBlock(int64_t c) : classes(c), p(c * kEntropyRows), q(c * kEntropyRows) {}
};

/// Replaces values by their softmax over classes; log_sum[i] satisfies log p = v - log_sum. Rows
/// that hold a NaN or no finite largest value become NaN.
template <class Scalar>
MOESAIC_IN_CLONE void softmax_of_block(Scalar* __restrict values, int64_t classes,
                                       Scalar* __restrict log_sum) {
  constexpr int64_t n = kEntropyRows;
  constexpr Scalar kNan = std::numeric_limits<Scalar>::quiet_NaN();
  constexpr Scalar kLargest = std::numeric_limits<Scalar>::max();
  Scalar top[n], sum[n], spoilt[n];
  for (int64_t i = 0; i < n; ++i) {
    top[i] = values[i];
    sum[i] = 0;
    spoilt[i] = 0;
  }
  for (int64_t c = 0; c < classes; ++c) {
    const Scalar* v = values + c * n;
    for (int64_t i = 0; i < n; ++i) {
      spoilt[i] = v[i] != v[i] ? kNan : spoilt[i];
      top[i] = v[i] > top[i] ? v[i] : top[i];
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    spoilt[i] = top[i] >= -kLargest && top[i] <= kLargest ? spoilt[i] : kNan;
  }
  for (int64_t c = 0; c < classes; ++c) {
    Scalar* v = values + c * n;
    for (int64_t i = 0; i < n; ++i) {
      v[i] = softmax_exp(v[i] - top[i]) + spoilt[i];
      sum[i] += v[i];
    }
  }
  for (int64_t c = 0; c < classes; ++c) {
    Scalar* v = values + c * n;
    for (int64_t i = 0; i < n; ++i) v[i] /= sum[i];
  }
  for (int64_t i = 0; i < n; ++i) log_sum[i] = top[i];
  for (int64_t i = 0; i < n; ++i) log_sum[i] += std::log(sum[i]);
}

/// Writes the transposed logit gradients to q: g (q - 1[label]), passed through the first softmax
/// where `twice`.
template <class Scalar>
MOESAIC_IN_CLONE void gradients_of_block(Scalar* __restrict p, Scalar* __restrict q,
                                         int64_t classes, const int64_t* labels,
                                         const Scalar* __restrict grad, bool twice) {
  constexpr int64_t n = kEntropyRows;
  for (int64_t i = 0; i < n; ++i) q[labels[i] * n + i] -= Scalar(1);
  Scalar mean[n] = {};
  for (int64_t c = 0; c < classes; ++c) {
    Scalar *from = p + c * n, *to = q + c * n;
    for (int64_t i = 0; i < n; ++i) {
      to[i] *= grad[i];
      mean[i] += to[i] * from[i];
    }
  }
  if (!twice) return;
  for (int64_t c = 0; c < classes; ++c) {
    Scalar *from = p + c * n, *to = q + c * n;
    for (int64_t i = 0; i < n; ++i) to[i] = from[i] * (to[i] - mean[i]);
  }
}

// The float32 version has a clone for each instruction set.
MOESAIC_VECTOR_CLONES void block_softmax(float* values, int64_t classes, float* log_sum) {
  softmax_of_block(values, classes, log_sum);
}
void block_softmax(double* values, int64_t classes, double* log_sum) {
  softmax_of_block(values, classes, log_sum);
}
MOESAIC_VECTOR_CLONES void block_gradients(float* p, float* q, int64_t classes,
                                           const int64_t* labels, const float* grad, bool twice) {
  gradients_of_block(p, q, classes, labels, grad, twice);
}
void block_gradients(double* p, double* q, int64_t classes, const int64_t* labels,
                     const double* grad, bool twice) {
  gradients_of_block(p, q, classes, labels, grad, twice);
}

/// Fills the block with rows [begin, end) and zeros: p and q become the probabilities of the first
/// and the last softmax, the same unless `twice`. Returns each row's loss.
template <class Scalar>
void entropy_of_rows(const Scalar* logits, const int64_t* labels, int64_t rows, bool twice,
                     EntropyBlock<Scalar>& block, Scalar* losses) {
  constexpr int64_t n = kEntropyRows;
  const int64_t classes = block.classes;
  std::fill(block.p.begin(), block.p.end(), Scalar(0));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < classes; ++c) block.p[c * n + i] = logits[i * classes + c];
  }
  block_softmax(block.p.data(), classes, block.log_sum);
  block.q = block.p;
  if (twice) block_softmax(block.q.data(), classes, block.log_sum);
  for (int64_t i = 0; i < rows; ++i) {
    const Scalar own = twice ? block.p[labels[i] * n + i] : logits[i * classes + labels[i]];
    losses[i] = block.log_sum[i] - own;
  }
}

void check_labels(const at::Tensor& labels, int64_t classes) {
  const auto* label = labels.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < labels.size(0); ++i) {
    if (label[i] < 0 || label[i] >= classes) {
      fail("cross_entropy: labels must be between 0 and {}, found {}", classes - 1, label[i]);
    }
  }
}

/// Calls use(first row, rows, block) for blocks of rows, on all threads.
template <class Scalar, class Use>
void for_entropy_blocks(int64_t rows, int64_t classes, Use use) {
  at::parallel_for(0, rows, kEntropyRowsOfTask, [&](int64_t begin, int64_t end) {
    EntropyBlock<Scalar> block(classes);
    for (int64_t r = begin; r < end; r += kEntropyRows) {
      use(r, std::min(kEntropyRows, end - r), block);
    }
  });
}

at::Tensor cross_entropy_cpu(const at::Tensor& logits_in, const at::Tensor& labels_in, bool twice) {
  const at::Tensor logits = widened(logits_in).contiguous(), labels = labels_in.contiguous();
  check_cross_entropy(logits, labels);
  const int64_t classes = logits.size(1);
  check_labels(labels, classes);
  at::Tensor losses = at::empty({logits.size(0)}, logits.options());
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "cross_entropy", [&] {
    const auto* from = logits.const_data_ptr<scalar_t>();
    const auto* label = labels.const_data_ptr<int64_t>();
    auto* to = losses.mutable_data_ptr<scalar_t>();
    for_entropy_blocks<scalar_t>(
        logits.size(0), classes, [&](int64_t first, int64_t rows, EntropyBlock<scalar_t>& block) {
          entropy_of_rows(from + first * classes, label + first, rows, twice, block, to + first);
        });
  });
  return losses;
}

at::Tensor cross_entropy_backward_cpu(const at::Tensor& grad_in, const at::Tensor& logits_in,
                                      const at::Tensor& labels_in, bool twice) {
  check_cross_entropy(logits_in, labels_in);
  check_shape("cross_entropy_backward", "grad", grad_in, {logits_in.size(0)});
  check_same_dtype("cross_entropy_backward", "grad", grad_in, logits_in);
  const at::Tensor logits = logits_in.contiguous(), labels = labels_in.contiguous();
  const at::Tensor grad = grad_in.contiguous();
  const int64_t classes = logits.size(1);
  check_labels(labels, classes);
  at::Tensor found = at::empty(logits.sizes(), logits.options());
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "cross_entropy_backward", [&] {
    const auto* from = logits.const_data_ptr<scalar_t>();
    const auto* label = labels.const_data_ptr<int64_t>();
    const auto* arriving = grad.const_data_ptr<scalar_t>();
    auto* to = found.mutable_data_ptr<scalar_t>();
    for_entropy_blocks<scalar_t>(
        logits.size(0), classes, [&](int64_t first, int64_t rows, EntropyBlock<scalar_t>& block) {
          scalar_t losses[kEntropyRows], g[kEntropyRows] = {};
          int64_t own[kEntropyRows] = {};
          std::copy_n(arriving + first, rows, g);
          std::copy_n(label + first, rows, own);
          entropy_of_rows(from + first * classes, own, rows, twice, block, losses);
          block_gradients(block.p.data(), block.q.data(), classes, own, g, twice);
          for (int64_t i = 0; i < rows; ++i) {
            for (int64_t c = 0; c < classes; ++c) {
              to[(first + i) * classes + c] = block.q[c * kEntropyRows + i];
            }
          }
        });
  });
  return found;
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("cross_entropy", cross_entropy_cpu);
  m.impl("cross_entropy_backward", cross_entropy_backward_cpu);
}

}  // namespace
}  // namespace moesaic::ops
