// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/gated_losses.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "gated_lots.h"

namespace moesaic {
namespace {

using at::Tensor;
using ops::dot, ops::kLot, ops::Lot, ops::project, ops::Rows, ops::Sums, ops::zeros;

/// Moments of a batch from which L4 and its gradient follow.
struct L4Sums {
  int64_t k, d;
  Sums quartic_x, quadratic_x;  // [k, d] of the gradients' coefficients times x
  Sums pairs, squares;          // [k, k] of q4 p_i p_j and of q4 p_i^2 p_j^2
  Sums q2_squares;              // [k] of q2 p_i^2
  double q4 = 0.0, q2 = 0.0;

  L4Sums(int64_t experts, int64_t width)
      : k(experts),
        d(width),
        quartic_x(zeros(k * d)),
        quadratic_x(zeros(k * d)),
        pairs(zeros(k * k)),
        squares(zeros(k * k)),
        q2_squares(zeros(k)) {}
};

/// What L4 takes of one lot.
template <class T>
struct L4Lot {
  Lot<T> samples;
  Rows<T> p, p2, c, q4, q2, work;
  std::vector<T> inner;  // [k, k] of <a_i, a_j>

  L4Lot(int64_t k, int64_t d)
      : samples(d), p(k), p2(k), c(k), q4(1), q2(1), work(2), inner(static_cast<size_t>(k * k)) {}
};

template <class T>
MOESAIC_IN_CLONE void transform_outputs(const OutputTransforms& by, L4Lot<T>& lot) {
  const auto alpha = static_cast<T>(by.alpha), beta = static_cast<T>(by.beta),
             gamma = static_cast<T>(by.gamma), e4 = static_cast<T>(by.e4),
             delta = static_cast<T>(by.delta), e2 = static_cast<T>(by.e2);
  const T of_c4 = static_cast<T>(1.0 / by.c4), of_c2 = static_cast<T>(1.0 / by.c2);
  const T* const y = lot.samples.y[0];
  T *const q4 = lot.q4[0], *const q2 = lot.q2[0];
  for (int s = 0; s < kLot; ++s) {
    const T v = y[s];
    q4[s] = (((((v + alpha) * v + beta) * v + gamma) * v) + e4) * of_c4;
    q2[s] = ((v + delta) * v + e2) * of_c2;
  }
  for (int s = lot.samples.count; s < kLot; ++s) q4[s] = q2[s] = 0;
}

/// Coefficient of x in the gradient of expert i by the terms of Q4:
///     q4 (2 sum over j != i of (2 p_i p_j^2 - 4 <a_i, a_j> p_j - 2 |a_j|^2 p_i)
///         - mu (4 p_i^3 - 12 |a_i|^2 p_i)).
template <class T>
MOESAIC_IN_CLONE void quartic_coefficients(int64_t k, int64_t i, T mu, L4Lot<T>& lot) {
  T *const squares = lot.work[0], *const crosses = lot.work[1];
  for (int s = 0; s < kLot; ++s) squares[s] = crosses[s] = 0;
  T norms = 0;
  for (int64_t j = 0; j < k; ++j) {
    if (j == i) continue;
    const T inner = lot.inner[static_cast<size_t>(i * k + j)];
    norms += lot.inner[static_cast<size_t>(j * k + j)];
    const T *const p = lot.p[j], *const p2 = lot.p2[j];
    for (int s = 0; s < kLot; ++s) {
      squares[s] += p2[s];
      crosses[s] += inner * p[s];
    }
  }
  const T norm = lot.inner[static_cast<size_t>(i * k + i)];
  const T *const p = lot.p[i], *const p2 = lot.p2[i], *const q4 = lot.q4[0];
  T* const c = lot.c[i];
  for (int s = 0; s < kLot; ++s) {
    const T others = 4 * (p[s] * (squares[s] - norms) - 2 * crosses[s]);
    c[s] = q4[s] * (others - mu * 4 * p[s] * (p2[s] - 3 * norm));
  }
}

template <class T>
MOESAIC_IN_CLONE void add_l4_lot(const T* a, double mu, const OutputTransforms& by, L4Lot<T>& lot,
                                 L4Sums& sums) {
  const int64_t k = sums.k;
  project(lot.samples, a, k, lot.p);
  transform_outputs(by, lot);
  for (int64_t i = 0; i < k; ++i) {
    for (int s = 0; s < kLot; ++s) lot.p2[i][s] = lot.p[i][s] * lot.p[i][s];
  }
  for (int64_t i = 0; i < k; ++i) quartic_coefficients(k, i, static_cast<T>(mu), lot);
  add_weighted(lot.samples, lot.c, k, sums.quartic_x.data());
  T *const weighted = lot.work[0], *const weighted2 = lot.work[1];
  for (int64_t i = 0; i < k; ++i) {
    for (int s = 0; s < kLot; ++s) {
      weighted[s] = lot.q4[0][s] * lot.p[i][s];
      weighted2[s] = lot.q4[0][s] * lot.p2[i][s];
      lot.c[i][s] = lot.q2[0][s] * lot.p[i][s];
    }
    for (int64_t j = 0; j < k; ++j) {
      sums.pairs[static_cast<size_t>(i * k + j)] += static_cast<double>(dot(weighted, lot.p[j]));
      sums.squares[static_cast<size_t>(i * k + j)] +=
          static_cast<double>(dot(weighted2, lot.p2[j]));
    }
    sums.q2_squares[static_cast<size_t>(i)] += static_cast<double>(dot(lot.c[i], lot.p[i]));
  }
  add_weighted(lot.samples, lot.c, k, sums.quadratic_x.data());
  for (int s = 0; s < kLot; ++s) {
    sums.q4 += static_cast<double>(lot.q4[0][s]);
    sums.q2 += static_cast<double>(lot.q2[0][s]);
  }
}

#define MOESAIC_L4_OF(T)                                                                       \
  MOESAIC_VECTOR_CLONES void add_l4(const ops::Batch<T>& batch, const T* a, double mu,         \
                                    const OutputTransforms& by, L4Lot<T>& lot, L4Sums& sums) { \
    for (int64_t begin = 0; begin < batch.samples; begin += kLot) {                            \
      lot.samples.load(batch, begin);                                                          \
      add_l4_lot(a, mu, by, lot, sums);                                                        \
    }                                                                                          \
  }
MOESAIC_L4_OF(float)
MOESAIC_L4_OF(double)
#undef MOESAIC_L4_OF

/// Returns the loss and writes its gradient to `to` [k, d], both from the sums over a batch.
template <class T>
double finish_l4(L4Sums sums, const T* a, const std::vector<T>& inner, int64_t samples,
                 const L4Weights& weights, T* to) {
  const int64_t k = sums.k, d = sums.d;
  const double each = 1.0 / static_cast<double>(samples);
  for (Sums* part :
       {&sums.quartic_x, &sums.quadratic_x, &sums.pairs, &sums.squares, &sums.q2_squares}) {
    for (double& sum : *part) sum *= each;
  }
  const double q4 = sums.q4 * each, q2 = sums.q2 * each;
  const auto m = [&](int64_t i, int64_t j) {
    return static_cast<double>(inner[static_cast<size_t>(i * k + j)]);
  };
  const auto pair = [&](int64_t i, int64_t j) {
    return sums.pairs[static_cast<size_t>(i * k + j)];
  };
  double loss = 0.0;
  for (int64_t i = 0; i < k; ++i) {
    const double norm = m(i, i), fit = sums.q2_squares[static_cast<size_t>(i)] - norm * q2 - 1.0;
    std::vector<double> of_a(static_cast<size_t>(k), 0.0);  // Coefficients of a_j in the gradient.
    double& of_own = of_a[static_cast<size_t>(i)];
    loss += weights.lambda * fit * fit + weights.delta / 2.0 * norm;
    loss -= weights.mu * (sums.squares[static_cast<size_t>(i * k + i)] - 6.0 * norm * pair(i, i) +
                          3.0 * norm * norm * q4);
    of_own += weights.delta - 4.0 * weights.lambda * fit * q2;
    of_own += 12.0 * weights.mu * (pair(i, i) - norm * q4);
    for (int64_t j = 0; j < k; ++j) {
      if (j == i) continue;
      loss += sums.squares[static_cast<size_t>(i * k + j)] - norm * pair(j, j) -
              4.0 * m(i, j) * pair(i, j) - m(j, j) * pair(i, i) +
              (norm * m(j, j) + 2.0 * m(i, j) * m(i, j)) * q4;
      of_own += 4.0 * (m(j, j) * q4 - pair(j, j));
      of_a[static_cast<size_t>(j)] += 8.0 * (m(i, j) * q4 - pair(i, j));
    }
    for (int64_t c = 0; c < d; ++c) {
      double sum = sums.quartic_x[static_cast<size_t>(i * d + c)] +
                   4.0 * weights.lambda * fit * sums.quadratic_x[static_cast<size_t>(i * d + c)];
      for (int64_t j = 0; j < k; ++j) {
        sum += of_a[static_cast<size_t>(j)] * static_cast<double>(a[j * d + c]);
      }
      to[i * d + c] = static_cast<T>(sum);
    }
  }
  return loss;
}

}  // namespace

GatedLoss l4_loss(const Tensor& x_in, const Tensor& y_in, const Tensor& a_in,
                  const OutputTransforms& transforms, const L4Weights& weights) {
  ops::check_samples("l4_loss", x_in, y_in, a_in);
  const Tensor &x = x_in, y = y_in.contiguous(), a = a_in.contiguous();
  const int64_t k = a.size(0), d = a.size(1);
  GatedLoss out;
  out.regressors = at::empty({k, d}, a.options().requires_grad(false));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "l4_loss", [&] {
    L4Lot<scalar_t> lot(k, d);
    L4Sums sums(k, d);
    const auto* rows = a.const_data_ptr<scalar_t>();
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        double product = 0.0;
        for (int64_t c = 0; c < d; ++c) product += double(rows[i * d + c]) * rows[j * d + c];
        lot.inner[static_cast<size_t>(i * k + j)] = static_cast<scalar_t>(product);
      }
    }
    add_l4(ops::Batch<scalar_t>(x, y), rows, weights.mu, transforms, lot, sums);
    out.loss = finish_l4(std::move(sums), rows, lot.inner, x.size(0), weights,
                         out.regressors.mutable_data_ptr<scalar_t>());
  });
  return out;
}

}  // namespace moesaic
