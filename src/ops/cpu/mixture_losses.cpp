// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/gated_losses.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "../route_math.h"
#include "gated_lots.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace {

using at::Tensor;
using ops::kLot, ops::Lot, ops::project, ops::Rows, ops::Sums, ops::zeros;

/// What the two other losses take of one lot.
template <class T>
struct MixtureLot {
  int64_t k;
  Lot<T> samples;
  Rows<T> p, logits, gates;  // Projections; logits and their softmax, the last one of gate 0.
  Rows<T> value, slope;      // Of the experts.
  Rows<T> c;                 // Coefficients of a gradient.
  Rows<T> work;              // Max of the logits, sums of exponentials, and two more.

  MixtureLot(int64_t experts, int64_t d)
      : k(experts), samples(d), p(k), logits(k), gates(k), value(k), slope(k), c(k), work(4) {}
};

/// Writes the softmax of `from` [k] to `to`, with its max and the sum of exponentials.
template <class T>
MOESAIC_IN_CLONE void softmax_of(const Rows<T>& from, int64_t k, Rows<T>& to, T* max, T* sum) {
  for (int s = 0; s < kLot; ++s) max[s] = from[0][s];
  for (int64_t i = 1; i < k; ++i) {
    for (int s = 0; s < kLot; ++s) max[s] = from[i][s] > max[s] ? from[i][s] : max[s];
  }
  for (int s = 0; s < kLot; ++s) sum[s] = 0;
  for (int64_t i = 0; i < k; ++i) {
    for (int s = 0; s < kLot; ++s) {
      to[i][s] = ops::softmax_exp(from[i][s] - max[s]);
      sum[s] += to[i][s];
    }
  }
  for (int64_t i = 0; i < k; ++i) {
    for (int s = 0; s < kLot; ++s) to[i][s] /= sum[s];
  }
}

template <class T>
MOESAIC_IN_CLONE void project_lot(const T* a, const T* w, MixtureLot<T>& lot) {
  project(lot.samples, a, lot.k, lot.p);
  project(lot.samples, w, lot.k - 1, lot.logits);
  for (int s = 0; s < kLot; ++s) lot.logits[lot.k - 1][s] = 0;
  softmax_of(lot.logits, lot.k, lot.gates, lot.work[0], lot.work[1]);
}

/// Applies the link, in no clone: some links call the mathematical library.
template <class T>
void apply_link_to(Link link, MixtureLot<T>& lot) {
  with_link(link, [&](auto kind) {
    for (int64_t i = 0; i < lot.k; ++i) {
      for (int s = 0; s < kLot; ++s) {
        const LinkPoint<T> point = link_at<decltype(kind)::value>(lot.p[i][s]);
        lot.value[i][s] = point.value;
        lot.slope[i][s] = point.slope;
      }
    }
  });
}

/// Adds the lot's part of minus the log-likelihood, without its constant, to `loss`.
template <class T>
MOESAIC_IN_CLONE void add_log_lot(double noise, MixtureLot<T>& lot, double* sums, double& loss) {
  const T scale = static_cast<T>(0.5 / (noise * noise));
  const T* const y = lot.samples.y[0];
  Rows<T>& joint = lot.value;  // logit - (y - g)^2 / (2 noise^2), in place of g.
  for (int64_t i = 0; i < lot.k; ++i) {
    for (int s = 0; s < kLot; ++s) {
      const T off = y[s] - joint[i][s];
      joint[i][s] = lot.logits[i][s] - off * off * scale;
    }
  }
  T *const max = lot.work[2], *const sum = lot.work[3];
  softmax_of(joint, lot.k, lot.c, max, sum);
  for (int64_t i = 0; i + 1 < lot.k; ++i) {
    for (int s = 0; s < kLot; ++s) lot.c[i][s] = lot.gates[i][s] - lot.c[i][s];
  }
  add_weighted(lot.samples, lot.c, lot.k - 1, sums);
  const T *const gate_max = lot.work[0], *const gate_sum = lot.work[1];
  for (int s = 0; s < lot.samples.count; ++s) {
    loss -= static_cast<double>(max[s] - gate_max[s]) +
            std::log(static_cast<double>(sum[s]) / static_cast<double>(gate_sum[s]));
  }
}

template <class T>
MOESAIC_IN_CLONE void add_squared_lot(MixtureLot<T>& lot, double* of_a, double* of_w,
                                      double& loss) {
  T *const mean = lot.work[2], *const off = lot.work[3];
  const T* const y = lot.samples.y[0];
  for (int s = 0; s < kLot; ++s) mean[s] = 0;
  for (int64_t i = 0; i < lot.k; ++i) {
    for (int s = 0; s < kLot; ++s) mean[s] += lot.gates[i][s] * lot.value[i][s];
  }
  for (int s = 0; s < kLot; ++s) off[s] = 2 * (mean[s] - y[s]);
  for (int64_t i = 0; i < lot.k; ++i) {
    for (int s = 0; s < kLot; ++s) lot.c[i][s] = off[s] * lot.gates[i][s] * lot.slope[i][s];
  }
  add_weighted(lot.samples, lot.c, lot.k, of_a);
  for (int64_t i = 0; i + 1 < lot.k; ++i) {
    for (int s = 0; s < kLot; ++s) {
      lot.c[i][s] = off[s] * lot.gates[i][s] * (lot.value[i][s] - mean[s]);
    }
  }
  add_weighted(lot.samples, lot.c, lot.k - 1, of_w);
  for (int s = 0; s < lot.samples.count; ++s) {
    loss += static_cast<double>(off[s]) * static_cast<double>(off[s]) / 4.0;
  }
}

#define MOESAIC_LOSSES_OF(T)                                                                       \
  MOESAIC_VECTOR_CLONES void project_all(const T* a, const T* w, MixtureLot<T>& lot) {             \
    project_lot(a, w, lot);                                                                        \
  }                                                                                                \
  MOESAIC_VECTOR_CLONES void add_log(double noise, MixtureLot<T>& lot, double* to, double& loss) { \
    add_log_lot(noise, lot, to, loss);                                                             \
  }                                                                                                \
  MOESAIC_VECTOR_CLONES void add_squared(MixtureLot<T>& lot, double* of_a, double* of_w,           \
                                         double& loss) {                                           \
    add_squared_lot(lot, of_a, of_w, loss);                                                        \
  }
MOESAIC_LOSSES_OF(float)
MOESAIC_LOSSES_OF(double)
#undef MOESAIC_LOSSES_OF

template <class T>
Tensor mean_of(const Sums& sums, int64_t rows, int64_t d, int64_t samples, const Tensor& like) {
  Tensor out = at::empty({rows, d}, like.options());
  T* const to = out.mutable_data_ptr<T>();
  for (size_t i = 0; i < sums.size(); ++i) {
    to[i] = static_cast<T>(sums[i] / static_cast<double>(samples));
  }
  return out;
}

/// Calls visit() for every lot of the batch, when its gates and experts' outputs are computed.
template <class T, class Visit>
void for_lots(const Tensor& x, const Tensor& y, const Tensor& a, const Tensor& w, Link link,
              MixtureLot<T>& lot, const Visit& visit) {
  const ops::Batch<T> batch(x, y);
  for (int64_t begin = 0; begin < batch.samples; begin += kLot) {
    lot.samples.load(batch, begin);
    project_all(a.const_data_ptr<T>(), w.const_data_ptr<T>(), lot);
    apply_link_to(link, lot);
    visit();
  }
}

}  // namespace

GatedLoss log_loss(const Tensor& x_in, const Tensor& y_in, const Tensor& a_in, const Tensor& w_in,
                   Link link, double noise) {
  ops::check_samples("log_loss", x_in, y_in, a_in);
  ops::check_gates("log_loss", w_in, a_in);
  if (!(noise > 0.0)) fail("log_loss: noise must be positive, found {}", noise);
  const Tensor &x = x_in, y = y_in.contiguous(), a = a_in.contiguous(), w = w_in.contiguous();
  const int64_t k = a.size(0), d = a.size(1);
  GatedLoss out;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "log_loss", [&] {
    MixtureLot<scalar_t> lot(k, d);
    Sums sums = zeros((k - 1) * d);
    for_lots(x, y, a, w, link, lot, [&] { add_log(noise, lot, sums.data(), out.loss); });
    out.gates = mean_of<scalar_t>(sums, k - 1, d, x.size(0), w);
  });
  out.loss = out.loss / static_cast<double>(x.size(0)) +
             std::log(noise * std::sqrt(2.0 * std::numbers::pi));
  return out;
}

GatedLoss squared_loss(const Tensor& x_in, const Tensor& y_in, const Tensor& a_in,
                       const Tensor& w_in, Link link) {
  ops::check_samples("squared_loss", x_in, y_in, a_in);
  ops::check_gates("squared_loss", w_in, a_in);
  const Tensor &x = x_in, y = y_in.contiguous(), a = a_in.contiguous(), w = w_in.contiguous();
  const int64_t k = a.size(0), d = a.size(1);
  GatedLoss out;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "squared_loss", [&] {
    MixtureLot<scalar_t> lot(k, d);
    Sums of_a = zeros(k * d), of_w = zeros((k - 1) * d);
    for_lots(x, y, a, w, link, lot, [&] { add_squared(lot, of_a.data(), of_w.data(), out.loss); });
    out.regressors = mean_of<scalar_t>(of_a, k, d, x.size(0), a);
    out.gates = mean_of<scalar_t>(of_w, k - 1, d, x.size(0), w);
  });
  out.loss /= static_cast<double>(x.size(0));
  return out;
}

}  // namespace moesaic
