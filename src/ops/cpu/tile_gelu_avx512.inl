// SPDX-License-Identifier: Apache-2.0
// Part of tile_activation.inl where vectors have 512 bits: GELU (tanh form) of float. The divider
// works beside the multipliers, which a Newton step would take from the rest.

using Float16 = VectorOf<float>::type;

inline __attribute__((always_inline)) Float16 all_lanes(float x) {
  return Float16{} + x;
}

/// Vectors that go through each operation side by side: the chain of one vector is too long for the
/// processor to look ahead to the next.
template <int n>
struct InStep {
  Float16 v[n];
};
#define MOESAIC_EACH _Pragma("GCC unroll 8") for (int i = 0; i < n; ++i)

/// 2^x for |x| <= 126 as in exp2_of; the power is added to the exponent's bits.
template <int n>
inline __attribute__((always_inline)) InStep<n> exp2_lanes(const InStep<n>& x) {
  typedef int32_t Bits __attribute__((vector_size(64)));
  InStep<n> shifted, r, p;
  MOESAIC_EACH shifted.v[i] = x.v[i] + 12582912.0f;
  MOESAIC_EACH r.v[i] = shifted.v[i] - 12582912.0f;
  MOESAIC_EACH r.v[i] = x.v[i] - r.v[i];
  MOESAIC_EACH p.v[i] = 0.001326697039f * r.v[i] + 0.009675459746f;
  MOESAIC_EACH p.v[i] = p.v[i] * r.v[i] + 0.05550742616f;
  MOESAIC_EACH p.v[i] = p.v[i] * r.v[i] + 0.2402212175f;
  MOESAIC_EACH p.v[i] = p.v[i] * r.v[i] + 0.6931469492f;
  MOESAIC_EACH p.v[i] = p.v[i] * r.v[i] + 1.0f;
  MOESAIC_EACH {
    Bits power, bits;
    __builtin_memcpy(&power, &shifted.v[i], sizeof power);
    __builtin_memcpy(&bits, &p.v[i], sizeof bits);
    bits += power << 23;
    __builtin_memcpy(&p.v[i], &bits, sizeof bits);
  }
  return p;
}

template <int n>
inline __attribute__((always_inline)) InStep<n> gelu_gate(const InStep<n>& x) {
  constexpr int kSmallerWithSignOfFirst = 2;
  InStep<n> p;
  MOESAIC_EACH p.v[i] = x.v[i] * x.v[i];
  MOESAIC_EACH p.v[i] = -2.302208198144325f - 0.1029432395800235f * p.v[i];
  MOESAIC_EACH p.v[i] = p.v[i] * x.v[i];
  MOESAIC_EACH p.v[i] = _mm512_range_ps(p.v[i], all_lanes(126.0f), kSmallerWithSignOfFirst);
  p = exp2_lanes(p);
  MOESAIC_EACH p.v[i] = p.v[i] + 1.0f;
  MOESAIC_EACH p.v[i] = 1.0f / p.v[i];
  return p;
}
inline __attribute__((always_inline)) Float16 gelu_gate(Float16 x) {
  return gelu_gate(InStep<1>{{x}}).v[0];
}

inline __attribute__((always_inline)) Float16 gelu_slope(Float16 x, Float16 gate) {
  const Float16 dz = 1.5957691216057308f * (1.0f + static_cast<float>(3 * 0.044715) * (x * x));
  return gate + x * gate * (1.0f - gate) * dz;
}

/// Calls with each vector's column and the mask of its lanes.
template <class Do>
__attribute__((always_inline)) inline void for_lanes(int64_t columns, const Do& act) {
  int64_t j = 0;
  for (; j + 16 <= columns; j += 16) act(j, __mmask16(0xFFFF));
  if (j < columns) act(j, __mmask16((1u << (columns - j)) - 1));
}

/// Four rows of a panel's two vectors.
inline __attribute__((always_inline)) void gelu_eight(const Block& block, const float* in,
                                                      float* out) {
  constexpr int n = 8;
  InStep<n> x;
  MOESAIC_EACH x.v[i] = load(in + i / 2 * block.in_stride + i % 2 * 16);
  const InStep<n> gate = gelu_gate(x);
  MOESAIC_EACH store(out + i / 2 * block.out_stride + i % 2 * 16, x.v[i] * gate.v[i]);
}

template <>
void activate_rows<GeluTanh, float>(const Block& block, const float* in, float* out) {
  int64_t i = 0;
  for (; block.columns == 32 && i + 4 <= block.rows; i += 4) {
    gelu_eight(block, in + i * block.in_stride, out + i * block.out_stride);
  }
  for (; i < block.rows; ++i) {
    const float* x = in + i * block.in_stride;
    float* y = out + i * block.out_stride;
    for_lanes(
        block.columns, [&](int64_t j, __mmask16 mask) __attribute__((always_inline)) {
          const Float16 at = _mm512_maskz_loadu_ps(mask, x + j);
          _mm512_mask_storeu_ps(y + j, mask, at * gelu_gate(at));
        });
  }
}

template <>
[[maybe_unused]] void activate_rows_backward<GeluTanh, float>(const Block& block, const float* in,
                                                              float* grad, float* out,
                                                              float* grad_too) {
  for (int64_t i = 0; i < block.rows; ++i) {
    const float* x = in + i * block.in_stride;
    float* g = grad + i * block.out_stride;
    float* y = out + i * block.in_stride;
    float* copy = grad_too + i * block.in_stride;
    for_lanes(
        block.columns, [&](int64_t j, __mmask16 mask) __attribute__((always_inline)) {
          const Float16 at = _mm512_maskz_loadu_ps(mask, x + j);
          const Float16 gate = gelu_gate(at);
          const Float16 arriving = _mm512_maskz_loadu_ps(mask, g + j) * gelu_slope(at, gate);
          _mm512_mask_storeu_ps(y + j, mask, at * gate);
          _mm512_mask_storeu_ps(g + j, mask, arriving);
          _mm512_mask_storeu_ps(copy + j, mask, arriving);
        });
  }
}
#undef MOESAIC_EACH
