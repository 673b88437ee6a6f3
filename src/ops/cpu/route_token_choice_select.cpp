// SPDX-License-Identifier: Apache-2.0
#include "route_token_choice_select.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "moesaic/ops/softmax_exp.h"

namespace moesaic::ops {
namespace {

/// Number of tokens that are processed at once, one per vector lane.
constexpr int64_t kSelectLanes = 32;

/// Scratch for one tile of tokens; lanes are the innermost dimension.
template <class Scalar>
struct LaneTile {
  std::vector<Scalar> logits;  ///< Logits [columns][lanes].
  std::vector<Scalar> best;    ///< Largest logits [k][lanes], in order.
  std::vector<int32_t> at;     ///< Positions [k][lanes] of their columns.
  std::vector<Scalar> gate;    ///< Gates [k][lanes].
  int32_t nan[kSelectLanes];   ///< Nonzero where a logit is NaN.

  LaneTile(int64_t columns, int64_t k)
      : logits(columns * kSelectLanes),
        best(k * kSelectLanes),
        at(k * kSelectLanes),
        gate(k * kSelectLanes) {}
};

template <class Scalar>
MOESAIC_IN_CLONE void load_lanes(const Scalar* __restrict from, int64_t stride,
                                 const int32_t* __restrict columns, int64_t count, int64_t tokens,
                                 Scalar* __restrict to) {
  if (count < stride) {
    for (int64_t lane = 0; lane < tokens; ++lane) {
      for (int64_t c = 0; c < count; ++c) {
        to[c * kSelectLanes + lane] = from[lane * stride + columns[c]];
      }
    }
    return;
  }
  // All columns are transposed in strips that the compiler unrolls.
  constexpr int64_t kStrip = 8;
  int64_t c = 0;
  for (; c + kStrip <= count; c += kStrip) {
    for (int64_t lane = 0; lane < tokens; ++lane) {
      for (int64_t i = 0; i < kStrip; ++i) {
        to[(c + i) * kSelectLanes + lane] = from[lane * stride + c + i];
      }
    }
  }
  for (int64_t lane = 0; lane < tokens; ++lane) {
    for (int64_t i = c; i < count; ++i) to[i * kSelectLanes + lane] = from[lane * stride + i];
  }
}

template <class Scalar>
MOESAIC_IN_CLONE void rank_first(const Scalar* __restrict logits, int64_t count,
                                 Scalar* __restrict best, int32_t* __restrict at,
                                 int32_t* __restrict nan) {
  for (int64_t lane = 0; lane < kSelectLanes; ++lane) {
    best[lane] = logits[lane];
    at[lane] = 0;
    nan[lane] = logits[lane] != logits[lane] ? 1 : 0;
  }
  for (int64_t c = 1; c < count; ++c) {
    const Scalar* __restrict v = logits + c * kSelectLanes;
    for (int64_t lane = 0; lane < kSelectLanes; ++lane) {
      const bool better = v[lane] > best[lane];
      best[lane] = better ? v[lane] : best[lane];
      at[lane] = better ? static_cast<int32_t>(c) : at[lane];
      nan[lane] |= v[lane] != v[lane] ? 1 : 0;
    }
  }
}

/// Finds the best candidate that ranks after (before, before_at).
template <class Scalar>
MOESAIC_IN_CLONE void rank_next(const Scalar* __restrict logits, int64_t count,
                                const Scalar* __restrict before,
                                const int32_t* __restrict before_at, Scalar* __restrict best,
                                int32_t* __restrict at) {
  for (int64_t lane = 0; lane < kSelectLanes; ++lane) {
    best[lane] = -std::numeric_limits<Scalar>::infinity();
    at[lane] = -1;
  }
  for (int64_t c = 0; c < count; ++c) {
    const Scalar* __restrict v = logits + c * kSelectLanes;
    const auto place = static_cast<int32_t>(c);
    for (int64_t lane = 0; lane < kSelectLanes; ++lane) {
      const bool after =
          (v[lane] < before[lane]) | ((v[lane] == before[lane]) & (place > before_at[lane]));
      // A first candidate of -infinity is better than none.
      const bool better = after & ((v[lane] > best[lane]) | (at[lane] < 0));
      best[lane] = better ? v[lane] : best[lane];
      at[lane] = better ? place : at[lane];
    }
  }
}

/// Computes gate = exp(best - top) / sum of exp(logit - top) over `terms` logits, in order.
template <class Scalar>
MOESAIC_IN_CLONE void softmax_lanes(const Scalar* __restrict summed, int64_t terms,
                                    const Scalar* __restrict best, int64_t k,
                                    Scalar* __restrict gate) {
  Scalar sum[kSelectLanes] = {};
  for (int64_t i = 0; i < terms; ++i) {
    const Scalar* __restrict v = summed + i * kSelectLanes;
    for (int64_t lane = 0; lane < kSelectLanes; ++lane) {
      sum[lane] += softmax_exp(v[lane] - best[lane]);
    }
  }
  for (int64_t rank = 0; rank < k; ++rank) {
    const int64_t row = rank * kSelectLanes;
    for (int64_t lane = 0; lane < kSelectLanes; ++lane) {
      gate[row + lane] = softmax_exp(best[row + lane] - best[lane]) / sum[lane];
    }
  }
}

template <class Scalar>
MOESAIC_IN_CLONE void gate_lanes(LaneTile<Scalar>& tile, int64_t count, int64_t k, Gate gate) {
  if (gate == Gate::softmax_all) {
    softmax_lanes(tile.logits.data(), count, tile.best.data(), k, tile.gate.data());
  } else if (gate == Gate::softmax_selected) {
    softmax_lanes(tile.best.data(), k, tile.best.data(), k, tile.gate.data());
  } else if (gate == Gate::logit) {
    tile.gate = tile.best;
  } else {
    std::fill(tile.gate.begin(), tile.gate.end(), Scalar(1));
  }
}

/// Returns the first lane with a NaN or without a finite best logit, or -1. Where the logit is the
/// gate, every choice has to be finite.
template <class Scalar>
MOESAIC_IN_CLONE int64_t first_bad_lane(const LaneTile<Scalar>& tile, int64_t tokens, int64_t k,
                                        Gate gate) {
  const int64_t needed = gate == Gate::logit ? k : 1;
  constexpr Scalar kInfinity = std::numeric_limits<Scalar>::infinity();
  for (int64_t lane = 0; lane < tokens; ++lane) {
    bool bad = tile.nan[lane] != 0;
    for (int64_t rank = 0; rank < needed; ++rank) {
      bad |= !(std::abs(tile.best[rank * kSelectLanes + lane]) < kInfinity);
    }
    if (bad) return lane;
  }
  return -1;
}

template <class Scalar>
MOESAIC_IN_CLONE void store_lanes(const LaneTile<Scalar>& tile, const int32_t* columns, int64_t k,
                                  int64_t tokens, int32_t* __restrict choice,
                                  Scalar* __restrict gate) {
  for (int64_t lane = 0; lane < tokens; ++lane) {
    for (int64_t rank = 0; rank < k; ++rank) {
      choice[lane * k + rank] = columns[tile.at[rank * kSelectLanes + lane]];
      gate[lane * k + rank] = tile.gate[rank * kSelectLanes + lane];
    }
  }
}

template <class Scalar>
MOESAIC_IN_CLONE int64_t select_tiles(const RouterLogits<Scalar>& router, int64_t begin,
                                      int64_t end, int32_t* choice_Tk, Scalar* gate_Tk) {
  const auto count = static_cast<int64_t>(router.columns.size());
  const int32_t* columns = router.columns.data();
  const int64_t k = router.k;
  LaneTile<Scalar> tile(count, k);
  for (int64_t t = begin; t < end; t += kSelectLanes) {
    const int64_t tokens = std::min(kSelectLanes, end - t);
    load_lanes(router.logits + t * router.stride, router.stride, columns, count, tokens,
               tile.logits.data());
    rank_first(tile.logits.data(), count, tile.best.data(), tile.at.data(), tile.nan);
    for (int64_t rank = 1; rank < k; ++rank) {
      const int64_t row = rank * kSelectLanes, before = row - kSelectLanes;
      rank_next(tile.logits.data(), count, tile.best.data() + before, tile.at.data() + before,
                tile.best.data() + row, tile.at.data() + row);
    }
    const int64_t bad = first_bad_lane(tile, tokens, k, router.gate);
    if (bad >= 0) return t + bad;
    gate_lanes(tile, count, k, router.gate);
    store_lanes(tile, columns, k, tokens, choice_Tk + t * k, gate_Tk + t * k);
  }
  return -1;
}

/// Computes gate_gradients() of one token for gates by a softmax. `probability`: scratch of one
/// number for each term of the softmax.
template <class Scalar>
MOESAIC_IN_CLONE void softmax_gradient(const RouterLogits<Scalar>& router,
                                       const Scalar* __restrict logits,
                                       const int32_t* __restrict choice,
                                       const int32_t* __restrict row,
                                       const Scalar* __restrict grad_gate,
                                       Scalar* __restrict probability,
                                       Scalar* __restrict grad_logits) {
  const bool all = router.gate == Gate::softmax_all;
  const int32_t* terms = all ? router.columns.data() : choice;
  const int64_t count = all ? static_cast<int64_t>(router.columns.size()) : router.k;
  const Scalar top = logits[choice[0]];
  for (int64_t i = 0; i < count; ++i) probability[i] = softmax_exp(logits[terms[i]] - top);
  Scalar sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += probability[i];
  Scalar inner = 0;
  for (int64_t rank = 0; rank < router.k; ++rank) {
    if (row[rank] < 0) continue;
    const Scalar gate = softmax_exp(logits[choice[rank]] - top) / sum;
    const Scalar arriving = gate * grad_gate[row[rank]];
    grad_logits[choice[rank]] = arriving;
    inner += arriving;
  }
  for (int64_t i = 0; i < count; ++i) {
    const Scalar product = probability[i] / sum * inner;
    grad_logits[terms[i]] -= product;
  }
}

template <class Scalar>
MOESAIC_IN_CLONE void gradient_tokens(const RouterLogits<Scalar>& router, int64_t begin,
                                      int64_t end, const int32_t* choice_Tk, const int32_t* row_Tk,
                                      const Scalar* grad_gate, Scalar* grad_logits) {
  const int64_t k = router.k;
  std::vector<Scalar> probability(std::max(static_cast<int64_t>(router.columns.size()), k));
  std::fill(grad_logits + begin * router.stride, grad_logits + end * router.stride, Scalar(0));
  if (router.gate == Gate::one) return;
  for (int64_t t = begin; t < end; ++t) {
    const int32_t* choice = choice_Tk + t * k;
    const int32_t* row = row_Tk + t * k;
    Scalar* grad = grad_logits + t * router.stride;
    if (router.gate == Gate::logit) {
      for (int64_t rank = 0; rank < k; ++rank) {
        if (row[rank] >= 0) grad[choice[rank]] = grad_gate[row[rank]];
      }
    } else {
      softmax_gradient(router, router.logits + t * router.stride, choice, row, grad_gate,
                       probability.data(), grad);
    }
  }
}

}  // namespace

MOESAIC_VECTOR_CLONES int64_t select_experts(const RouterLogits<float>& router, int64_t begin,
                                             int64_t end, int32_t* choice_Tk, float* gate_Tk) {
  return select_tiles(router, begin, end, choice_Tk, gate_Tk);
}
int64_t select_experts(const RouterLogits<double>& router, int64_t begin, int64_t end,
                       int32_t* choice_Tk, double* gate_Tk) {
  return select_tiles(router, begin, end, choice_Tk, gate_Tk);
}

MOESAIC_VECTOR_CLONES void gate_gradients(const RouterLogits<float>& router, int64_t begin,
                                          int64_t end, const int32_t* choice_Tk,
                                          const int32_t* row_Tk, const float* grad_gate,
                                          float* grad_logits) {
  gradient_tokens(router, begin, end, choice_Tk, row_Tk, grad_gate, grad_logits);
}
void gate_gradients(const RouterLogits<double>& router, int64_t begin, int64_t end,
                    const int32_t* choice_Tk, const int32_t* row_Tk, const double* grad_gate,
                    double* grad_logits) {
  gradient_tokens(router, begin, end, choice_Tk, row_Tk, grad_gate, grad_logits);
}

}  // namespace moesaic::ops
