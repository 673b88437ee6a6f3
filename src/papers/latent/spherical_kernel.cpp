// SPDX-License-Identifier: Apache-2.0
#include "spherical_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "moesaic/ops/float_vector.h"

namespace moesaic::ops {
namespace {

constexpr int kS = kChunkSamples;

/// The form of an instruction set: how many lanes a vector has, how many vectors of neurons stand
/// side by side, and how many samples' sums stay in registers beside them.
template <int lanes_, int vectors_, int samples_>
struct Form {
  static constexpr int kLanes = lanes_, kVectors = vectors_, kSamples = samples_;
  static constexpr int kTile = kLanes * kVectors;
};

/// Writes four rows as columns: to[c * stride + i] = rows[i][c].
MOESAIC_IN_CLONE void gather4(const float* const rows[4], int64_t width, float* to,
                              int64_t stride) {
  int64_t c = 0;
  for (; c + 4 <= width; c += 4) {
    const float* const from[4] = {rows[0] + c, rows[1] + c, rows[2] + c, rows[3] + c};
    float* const column = to + c * stride;
    float* const columns[4] = {column, column + stride, column + 2 * stride, column + 3 * stride};
    transpose4(from, columns);
  }
  for (; c < width; ++c) {
    for (int i = 0; i < 4; ++i) to[c * stride + i] = rows[i][c];
  }
}

/// The other way round: rows[i][c] = from[c * stride + i].
MOESAIC_IN_CLONE void scatter4(const float* from, int64_t stride, int64_t width,
                               float* const rows[4]) {
  int64_t c = 0;
  for (; c + 4 <= width; c += 4) {
    const float* const column = from + c * stride;
    const float* const columns[4] = {column, column + stride, column + 2 * stride,
                                     column + 3 * stride};
    float* const to[4] = {rows[0] + c, rows[1] + c, rows[2] + c, rows[3] + c};
    transpose4(columns, to);
  }
  for (; c < width; ++c) {
    for (int i = 0; i < 4; ++i) rows[i][c] = from[c * stride + i];
  }
}

MOESAIC_IN_CLONE void pack_chunk(const float* const* rows, const float* strength, int64_t width,
                                 float* chunk) {
  for (int s = 0; s < kS; s += 4) gather4(rows + s, width, chunk + s, kS);
  Vector<kS> gram[kS];
#pragma GCC unroll 8
  for (int s = 0; s < kS; ++s) gram[s] = Vector<kS>{};
  for (int64_t c = 0; c < width; ++c) {
    const float* const x = chunk + c * kS;
    const Vector<kS> all = vector_at<kS>(x);
#pragma GCC unroll 8
    for (int s = 0; s < kS; ++s) gram[s] += x[s] * all;
  }
  float* const after = chunk + width * kS;
#pragma GCC unroll 8
  for (int s = 0; s < kS; ++s) vector_at<kS>(after + s * kS) = gram[s];
  std::memcpy(after + kS * kS, strength, kS * sizeof(float));
}

/// A chunk as pack_chunk() lays it out.
struct SampleChunk {
  const float *x, *gram, *strength;

  MOESAIC_IN_CLONE SampleChunk(const float* chunk, int64_t width)
      : x(chunk), gram(chunk + kS * width), strength(gram + kS * kS) {}
};

/// Neurons in lanes, in a thread's scratch memory. Missing ones are zero.
template <class F>
struct Tile {
  static constexpr int kT = F::kTile;
  float* w;          // [width, kT]
  float *a, *b;      // [kT]
  float* slope;      // [coefficients - 1, kT], of the derivative's polynomials
  float *up, *down;  // [coefficients - 1], of their recurrence
  float* spare;      // [width], a row of no neuron
  int64_t width, slopes;
  float longest = 0.0F;  // of |a|

  MOESAIC_IN_CLONE Tile(const SphericalRows& rows, float* scratch)
      : width(rows.width), slopes(std::max<int64_t>(rows.coefficients - 1, 0)) {
    w = scratch;
    a = w + width * kT;
    b = a + kT;
    slope = b + kT;
    up = slope + slopes * kT;
    down = up + slopes;
    spare = down + slopes;
  }

  static int64_t numbers(int64_t width, int64_t coefficients) {
    const int64_t slopes = std::max<int64_t>(coefficients - 1, 0);
    return (width * (kT + 1) + 2 * kT + slopes * (kT + 2) + 15) / 16 * 16;
  }

  MOESAIC_IN_CLONE void load(const SphericalRows& rows, int64_t first, int64_t neurons) {
    std::fill_n(spare, width, 0.0F);
    for (int i = 0; i < kT; i += 4) {
      const float* from[4];
      for (int j = 0; j < 4; ++j) {
        from[j] = i + j < neurons ? rows.w + (first + i + j) * width : spare;
      }
      gather4(from, width, w + i, kT);
    }
    for (int i = 0; i < kT; ++i) {
      a[i] = i < neurons ? rows.a[first + i] : 0.0F;
      b[i] = i < neurons ? rows.b[first + i] : 0.0F;
      longest = std::max(longest, std::abs(a[i]));
    }
    // With h_k = He_k / sqrt(k!): h_k' = sqrt(k) h_(k-1), and
    // h_(k+1) = (z h_k - sqrt(k) h_(k-1)) / sqrt(k + 1).
    for (int64_t k = 0; k < slopes; ++k) {
      const float root = std::sqrt(static_cast<float>(k + 1));
      up[k] = 1.0F / root;
      down[k] = std::sqrt(static_cast<float>(k)) / root;
      for (int i = 0; i < kT; ++i) {
        const int64_t at = (first + i) * rows.coefficients + k + 1;
        slope[k * kT + i] = i < neurons ? root * rows.hermite[at] : 0.0F;
      }
    }
  }

  /// Divides by the norms and writes the rows back.
  MOESAIC_IN_CLONE void store(const SphericalRows& rows, int64_t first, int64_t neurons) const {
    double squares[kT] = {};
    for (int64_t c = 0; c < width; ++c) {
      for (int i = 0; i < kT; ++i) {
        const double number = w[c * kT + i];
        squares[i] += number * number;
      }
    }
    float factor[kT];
    for (int i = 0; i < kT; ++i) factor[i] = static_cast<float>(1.0 / std::sqrt(squares[i]));
    for (int64_t c = 0; c < width; ++c) {
      for (int i = 0; i < kT; ++i) w[c * kT + i] *= factor[i];
    }
    for (int i = 0; i < kT; i += 4) {
      float* to[4];
      for (int j = 0; j < 4; ++j) {
        to[j] = i + j < neurons ? rows.w + (first + i + j) * width : spare;
      }
      scatter4(w + i, kT, width, to);
    }
  }
};

/// What a chunk's steps work on: of each sample and neuron the product p, the step's factor of w,
/// and the coefficient of x in what all steps make of w; of each neuron their factor of the old w.
template <class F>
struct Steps {
  alignas(64) float product[kS][F::kTile];
  alignas(64) float keep[kS][F::kTile];
  alignas(64) float of_x[kS][F::kTile];
  alignas(64) float of_w[F::kTile];
};

/// p = <w, x> of the whole chunk.
template <class F>
MOESAIC_IN_CLONE void multiply(const Tile<F>& tile, const SampleChunk& chunk, Steps<F>& steps) {
  constexpr int kV = F::kVectors, kN = F::kSamples;
  for (int first = 0; first < kS; first += kN) {
    Vector<F::kLanes> sum[kN][kV];
#pragma GCC unroll 8
    for (int s = 0; s < kN; ++s) {
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) sum[s][v] = Vector<F::kLanes>{};
    }
    for (int64_t c = 0; c < tile.width; ++c) {
      const float* const x = chunk.x + c * kS + first;
      const float* const w = tile.w + c * F::kTile;
#pragma GCC unroll 8
      for (int s = 0; s < kN; ++s) {
#pragma GCC unroll 8
        for (int v = 0; v < kV; ++v) sum[s][v] += x[s] * vector_at<F::kLanes>(w + v * F::kLanes);
      }
    }
#pragma GCC unroll 8
    for (int s = 0; s < kN; ++s) {
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) {
        vector_at<F::kLanes>(steps.product[first + s] + v * F::kLanes) = sum[s][v];
      }
    }
  }
}

/// Multiplies k by the derivative of a sum of Hermite polynomials at z, for neurons from v on.
template <class F>
MOESAIC_IN_CLONE void derive(const Tile<F>& tile, int v, const Vector<F::kLanes>& z,
                             Vector<F::kLanes>& k) {
  Vector<F::kLanes> sum{}, last{}, now = sum + 1.0F;
  for (int64_t order = 0; order < tile.slopes; ++order) {
    sum += vector_at<F::kLanes>(tile.slope + order * F::kTile + v) * now;
    const Vector<F::kLanes> next = tile.up[order] * z * now - tile.down[order] * last;
    last = now;
    now = next;
  }
  k *= sum;
}

/// 1 / sqrt(1 + e); where e is at most kSmall by its series, whose remainder is below 1.4e-8: a
/// root and a division would keep the next sample waiting.
constexpr float kSmall = 0.0625F;
template <int lanes, bool small>
MOESAIC_IN_CLONE void shrink(const Vector<lanes>& e, Vector<lanes>& to) {
  if constexpr (small) {
    const Vector<lanes> low = 1.0F - 0.5F * e, middle = 0.375F - 0.3125F * e;
    const Vector<lanes> high = 0.2734375F - 0.24609375F * e, square = e * e;
    to = (high * square + middle) * square + low;
  } else {
    float number[lanes];
    vector_at<lanes>(number) = e;
    for (int i = 0; i < lanes; ++i) number[i] = 1.0F / std::sqrt(1.0F + number[i]);
    to = vector_at<lanes>(number);
  }
}

/// Takes the step of sample s: w <- r (1 - k p) w + r k x, r = 1 / sqrt(1 + k^2 (|x|^2 - p^2)), and
/// so for the products of the samples to come.
template <class F, bool relu, bool small>
MOESAIC_IN_CLONE void take_step(const Tile<F>& tile, const SampleChunk& chunk, int s,
                                Steps<F>& steps) {
  using V = Vector<F::kLanes>;
  const float* const gram = chunk.gram + s * kS;
#pragma GCC unroll 8
  for (int v = 0; v < F::kTile; v += F::kLanes) {
    const V p = vector_at<F::kLanes>(steps.product[s] + v);
    const V z = p + vector_at<F::kLanes>(tile.b + v), none{};
    V k = chunk.strength[s] * vector_at<F::kLanes>(tile.a + v);
    if constexpr (relu) {
      k = z > none ? k : none;
    } else {
      derive(tile, v, z, k);
    }
    // Of a sample in the direction of w, rounding must not leave a negative square.
    V across = gram[s] - p * p, r;
    across = across < none ? none : across;
    shrink<F::kLanes, small>(k * k * across, r);
    const V of_w = r * (1.0F - k * p), of_x = r * k;
    vector_at<F::kLanes>(steps.keep[s] + v) = of_w;
    vector_at<F::kLanes>(steps.of_x[s] + v) = of_x;
#pragma GCC unroll 8
    for (int next = s + 1; next < kS; ++next) {
      V& q = vector_at<F::kLanes>(steps.product[next] + v);
      q = of_w * q + gram[next] * of_x;
    }
  }
}

/// What the steps make of w: the factors of those after a sample's own apply to its x.
template <class F>
MOESAIC_IN_CLONE void join_steps(Steps<F>& steps) {
#pragma GCC unroll 8
  for (int v = 0; v < F::kTile; v += F::kLanes) {
    Vector<F::kLanes> of_w = Vector<F::kLanes>{} + 1.0F;
#pragma GCC unroll 8
    for (int s = kS - 1; s >= 0; --s) {
      vector_at<F::kLanes>(steps.of_x[s] + v) *= of_w;
      of_w *= vector_at<F::kLanes>(steps.keep[s] + v);
    }
    vector_at<F::kLanes>(steps.of_w + v) = of_w;
  }
}

// A step waits for the one before, so that those of two tiles are taken in turn.
constexpr int kTiles = 2;

template <class F, bool relu, bool small>
MOESAIC_IN_CLONE void take_steps(const Tile<F>* tiles, int count, const SampleChunk& chunk,
                                 Steps<F>* steps) {
#pragma GCC unroll 8
  for (int s = 0; s < kS; ++s) {
    for (int t = 0; t < count; ++t) take_step<F, relu, small>(tiles[t], chunk, s, steps[t]);
  }
}

/// Whether no neuron's step is longer than the series takes.
MOESAIC_IN_CLONE bool are_small(const SampleChunk& chunk, float longest) {
  bool small = true;
  for (int s = 0; s < kS; ++s) {
    const float k = chunk.strength[s] * longest;
    small = small && k * k * chunk.gram[s * kS + s] <= kSmall;
  }
  return small;
}

/// w <- of_w w + sum of of_x x over kSamples samples, for `columns` columns from c on.
template <class F, int columns>
MOESAIC_IN_CLONE void add_columns(const float* x,
                                  const Vector<F::kLanes> (&of_x)[F::kSamples][F::kVectors],
                                  const Vector<F::kLanes>* of_w, float* w) {
  Vector<F::kLanes> sum[columns][F::kVectors];
#pragma GCC unroll 8
  for (int c = 0; c < columns; ++c) {
#pragma GCC unroll 8
    for (int v = 0; v < F::kVectors; ++v) {
      sum[c][v] = vector_at<F::kLanes>(w + c * F::kTile + v * F::kLanes);
      if (of_w != nullptr) sum[c][v] *= of_w[v];
    }
  }
#pragma GCC unroll 8
  for (int s = 0; s < F::kSamples; ++s) {
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) {
#pragma GCC unroll 8
      for (int v = 0; v < F::kVectors; ++v) sum[c][v] += x[c * kS + s] * of_x[s][v];
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < columns; ++c) {
#pragma GCC unroll 8
    for (int v = 0; v < F::kVectors; ++v) {
      vector_at<F::kLanes>(w + c * F::kTile + v * F::kLanes) = sum[c][v];
    }
  }
}

template <class F>
MOESAIC_IN_CLONE void add_chunk(const Steps<F>& steps, const SampleChunk& chunk, Tile<F>& tile) {
  constexpr int kColumns = 2;  // Sums of several columns hide the latency of adding to one.
  Vector<F::kLanes> of_w[F::kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < F::kVectors; ++v) of_w[v] = vector_at<F::kLanes>(steps.of_w + v * F::kLanes);
  for (int first = 0; first < kS; first += F::kSamples) {
    Vector<F::kLanes> of_x[F::kSamples][F::kVectors];
#pragma GCC unroll 8
    for (int s = 0; s < F::kSamples; ++s) {
#pragma GCC unroll 8
      for (int v = 0; v < F::kVectors; ++v) {
        of_x[s][v] = vector_at<F::kLanes>(steps.of_x[first + s] + v * F::kLanes);
      }
    }
    const Vector<F::kLanes>* const factor = first == 0 ? of_w : nullptr;
    const float* const x = chunk.x + first;
    int64_t c = 0;
    for (; c + kColumns <= tile.width; c += kColumns) {
      add_columns<F, kColumns>(x + c * kS, of_x, factor, tile.w + c * F::kTile);
    }
    for (; c < tile.width; ++c) {
      add_columns<F, 1>(x + c * kS, of_x, factor, tile.w + c * F::kTile);
    }
  }
}

template <class F>
MOESAIC_IN_CLONE void advance(const SphericalRows& rows, int64_t first, int64_t neurons,
                              const float* chunks, int64_t count, float* scratch) {
  Tile<F> tiles[kTiles] = {
      Tile<F>(rows, scratch),
      Tile<F>(rows, scratch + Tile<F>::numbers(rows.width, rows.coefficients))};
  const int used = neurons > F::kTile ? 2 : 1;
  const int64_t of[kTiles] = {std::min<int64_t>(neurons, F::kTile), neurons - F::kTile};
  for (int t = 0; t < used; ++t) tiles[t].load(rows, first + t * F::kTile, of[t]);
  const float longest = std::max(tiles[0].longest, tiles[1].longest);
  Steps<F> steps[kTiles];
  for (int64_t i = 0; i < count; ++i) {
    const SampleChunk chunk(chunks + i * chunk_size(rows.width), rows.width);
    for (int t = 0; t < used; ++t) multiply(tiles[t], chunk, steps[t]);
    if (rows.hermite != nullptr) {
      take_steps<F, false, false>(tiles, used, chunk, steps);
    } else if (are_small(chunk, longest)) {
      take_steps<F, true, true>(tiles, used, chunk, steps);
    } else {
      take_steps<F, true, false>(tiles, used, chunk, steps);
    }
    for (int t = 0; t < used; ++t) {
      join_steps(steps[t]);
      add_chunk(steps[t], chunk, tiles[t]);
    }
  }
  for (int t = 0; t < used; ++t) tiles[t].store(rows, first + t * F::kTile, of[t]);
}

// Sums of 8 samples and 2 vectors of neurons take half of AVX-512's 32 registers, and the weights
// of 32 neurons the smallest first-level caches.
using Widest = Form<16, 2, 8>;
using Wide = Form<8, 2, 4>;
using Plain = Form<4, 2, 4>;

#define MOESAIC_SPHERICAL(name, form, target)                                             \
  target void pack_##name(const float* const* rows, const float* strength, int64_t width, \
                          float* chunk) {                                                 \
    pack_chunk(rows, strength, width, chunk);                                             \
  }                                                                                       \
  target void advance_##name(const SphericalRows& rows, int64_t first, int64_t neurons,   \
                             const float* chunks, int64_t count, float* scratch) {        \
    advance<form>(rows, first, neurons, chunks, count, scratch);                          \
  }                                                                                       \
  constexpr SphericalKernel k_##name {                                                    \
#name, kTiles* form::kTile, pack_##name, advance_##name                               \
  }

MOESAIC_SPHERICAL(portable, Plain, );
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MOESAIC_HAS_X86_FORMS
MOESAIC_SPHERICAL(avx2, Wide, __attribute__((target("arch=x86-64-v3"))));
MOESAIC_SPHERICAL(avx512, Widest,
                  __attribute__((target("arch=x86-64-v4,prefer-vector-width=512"))));
#endif
#undef MOESAIC_SPHERICAL

}  // namespace

int64_t SphericalKernel::scratch_size(int64_t width, int64_t coefficients) const {
  return kTiles * Tile<Widest>::numbers(width, coefficients);
}

std::vector<SphericalKernel> spherical_kernels() {
  std::vector<SphericalKernel> kernels;
#ifdef MOESAIC_HAS_X86_FORMS
  if (__builtin_cpu_supports("x86-64-v4")) kernels.push_back(k_avx512);
  if (__builtin_cpu_supports("x86-64-v3")) kernels.push_back(k_avx2);
#endif
  kernels.push_back(k_portable);
  return kernels;
}

}  // namespace moesaic::ops
