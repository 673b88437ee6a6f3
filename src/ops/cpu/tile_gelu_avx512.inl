// SPDX-License-Identifier: Apache-2.0
// Part of tile_activation.inl where vectors have 512 bits: GELU (tanh form) of float. The divider
// works beside the multipliers, which a Newton step would keep from the rest.

using Float16 = VectorOf<float>::type;

inline __attribute__((always_inline)) Float16 all_lanes(float x) {
  return Float16{} + x;
}

/// 2^x for |x| <= 126 as in exp2_of; the power is added to the exponent's bits.
inline __attribute__((always_inline)) Float16 exp2_lanes(Float16 x) {
  typedef int32_t Bits __attribute__((vector_size(64)));
  const Float16 shifted = x + 12582912.0f;
  const Float16 r = x - (shifted - 12582912.0f);
  Float16 p = 0.001326697039f * r + 0.009675459746f;
  p = p * r + 0.05550742616f;
  p = p * r + 0.2402212175f;
  p = p * r + 0.6931469492f;
  p = p * r + 1.0f;
  Bits power, bits;
  __builtin_memcpy(&power, &shifted, sizeof power);
  __builtin_memcpy(&bits, &p, sizeof bits);
  bits += power << 23;
  __builtin_memcpy(&p, &bits, sizeof p);
  return p;
}

inline __attribute__((always_inline)) Float16 gelu_gate(Float16 x) {
  const Float16 power = x * (-2.302208198144325f - 0.1029432395800235f * (x * x));
  constexpr int kSmallerWithSignOfFirst = 2;
  return 1.0f / (1.0f + exp2_lanes(_mm512_range_ps(power, all_lanes(126.0f),
                                                   kSmallerWithSignOfFirst)));
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

template <>
void activate_rows<GeluTanh, float>(const Block& block, const float* in, float* out) {
  for (int64_t i = 0; i < block.rows; ++i) {
    const float* x = in + i * block.in_stride;
    float* y = out + i * block.out_stride;
    for_lanes(block.columns, [&](int64_t j, __mmask16 mask) __attribute__((always_inline)) {
      const Float16 at = _mm512_maskz_loadu_ps(mask, x + j);
      _mm512_mask_storeu_ps(y + j, mask, at * gelu_gate(at));
    });
  }
}

template <>
void activate_rows_backward<GeluTanh, float>(const Block& block, const float* in, float* grad,
                                             float* out, float* grad_too) {
  for (int64_t i = 0; i < block.rows; ++i) {
    const float* x = in + i * block.in_stride;
    float* g = grad + i * block.out_stride;
    float* y = out + i * block.in_stride;
    float* copy = grad_too + i * block.in_stride;
    for_lanes(block.columns, [&](int64_t j, __mmask16 mask) __attribute__((always_inline)) {
      const Float16 at = _mm512_maskz_loadu_ps(mask, x + j);
      const Float16 gate = gelu_gate(at);
      const Float16 arriving = _mm512_maskz_loadu_ps(mask, g + j) * gelu_slope(at, gate);
      _mm512_mask_storeu_ps(y + j, mask, at * gate);
      _mm512_mask_storeu_ps(g + j, mask, arriving);
      _mm512_mask_storeu_ps(copy + j, mask, arriving);
    });
  }
}
