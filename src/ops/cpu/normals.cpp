// SPDX-License-Identifier: Apache-2.0
// Every step is explicit (fused products by name), and compiled without contraction, so that all
// instruction sets give the same bits.
#include "moesaic/ops/normals.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "moesaic/base/random.h"
#include "moesaic/ops/float_vector.h"

namespace moesaic {
namespace {

constexpr int kLanes = 64;  // Samples that a loop takes at once: several vectors of any processor.

/// The words of one block of so many samples.
struct Words {
  uint32_t at[4][kLanes];
};

MOESAIC_IN_CLONE void philox(uint64_t first, uint32_t block, uint32_t key0, uint32_t key1,
                             Words& words) {
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t position = first + static_cast<uint64_t>(l);
    words.at[0][l] = block;
    words.at[1][l] = 0;
    words.at[2][l] = static_cast<uint32_t>(position);
    words.at[3][l] = static_cast<uint32_t>(position >> 32);
  }
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t a = uint64_t{0xD2511F53} * words.at[0][l];
      const uint64_t b = uint64_t{0xCD9E8D57} * words.at[2][l];
      const uint32_t second = words.at[1][l], fourth = words.at[3][l];
      words.at[0][l] = static_cast<uint32_t>(b >> 32) ^ second ^ key0;
      words.at[1][l] = static_cast<uint32_t>(b);
      words.at[2][l] = static_cast<uint32_t>(a >> 32) ^ fourth ^ key1;
      words.at[3][l] = static_cast<uint32_t>(a);
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

/// Returns -2 ln u for u = (w / 2 + 1/2) / 2^31, in (0, 1].
MOESAIC_IN_CLONE float twice_minus_log(uint32_t word) {
  const float x = static_cast<float>(static_cast<int32_t>(word >> 1)) + 0.5f;
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)); ln m by the series of Cephes' logf.
  const int32_t e = (bits - 0x3f3504f3) >> 23;
  const int32_t mantissa = bits - (e << 23);
  float m;
  std::memcpy(&m, &mantissa, sizeof m);
  const float f = m - 1.0f, f2 = f * f;
  float p = 7.0376836292e-2f;
  p = std::fma(p, f, -1.1514610310e-1f);
  p = std::fma(p, f, 1.1676998740e-1f);
  p = std::fma(p, f, -1.2420140846e-1f);
  p = std::fma(p, f, 1.4249322787e-1f);
  p = std::fma(p, f, -1.6668057665e-1f);
  p = std::fma(p, f, 2.0000714765e-1f);
  p = std::fma(p, f, -2.4999993993e-1f);
  p = std::fma(p, f, 3.3333331174e-1f);
  const auto power = static_cast<float>(e - 31);
  float y = p * f * f2;
  y = std::fma(power, -2.12194440e-4f, y);
  y = std::fma(-0.5f, f2, y);
  y = std::fma(power, 0.693359375f, f + y);
  return -2.0f * y;
}

struct SineCosine {
  float sine, cosine;
};

/// Returns those of 2 pi w / 2^32, by Cephes' series within an eighth of a turn.
MOESAIC_IN_CLONE SineCosine turn(uint32_t word) {
  const uint32_t quarter = (word + 0x20000000u) >> 30;
  const auto rest = static_cast<int32_t>(word - (quarter << 30));
  const float x = static_cast<float>(rest) * (6.28318530718f / 4294967296.0f), x2 = x * x;
  float sine = std::fma(-1.9515295891e-4f, x2, 8.3321608736e-3f);
  sine = std::fma(sine, x2, -1.6666654611e-1f);
  sine = std::fma(sine, x2 * x, x);
  float cosine = std::fma(2.443315711809948e-5f, x2, -1.388731625493765e-3f);
  cosine = std::fma(cosine, x2, 4.166664568298827e-2f);
  cosine = std::fma(cosine, x2 * x2, std::fma(-0.5f, x2, 1.0f));
  const bool swaps = (quarter & 1) != 0;
  const float s = swaps ? cosine : sine, c = swaps ? sine : cosine;
  return {(quarter & 2) != 0 ? -s : s, ((quarter + 1) & 2) != 0 ? -c : c};
}

/// Writes the numbers 4 block to 4 block + 3 of the samples from `first` on.
MOESAIC_VECTOR_CLONES
void normals_of_block(uint64_t first, uint32_t block, uint32_t key0, uint32_t key1,
                      float (*to)[kLanes]) {
  Words words;
  philox(first, block, key0, key1, words);
  for (int pair = 0; pair < 4; pair += 2) {
    for (int l = 0; l < kLanes; ++l) {
      const float radius = std::sqrt(twice_minus_log(words.at[pair][l]));
      const SineCosine angle = turn(words.at[pair + 1][l]);
      to[pair][l] = radius * angle.cosine;
      to[pair + 1][l] = radius * angle.sine;
    }
  }
}

/// Writes those of the samples from 4 first to 4 (first + kLanes) - 1.
MOESAIC_VECTOR_CLONES
void uniforms_of_block(uint64_t first, uint32_t block, uint32_t key0, uint32_t key1, float* to) {
  Words words;
  philox(first, block, key0, key1, words);
  for (int l = 0; l < kLanes; ++l) {
    for (int word = 0; word < 4; ++word) {
      to[4 * l + word] =
          static_cast<float>(static_cast<int32_t>(words.at[word][l] >> 8)) * 0x1.0p-24f;
    }
  }
}

}  // namespace

SampleRng::SampleRng(uint64_t seed, uint64_t stream) {
  const uint64_t key = mix64(seed + mix64(stream));
  key_ = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

void SampleRng::normals(int64_t first, int64_t count, int64_t num_normals, float* to,
                        int64_t stride) const {
  float part[4][kLanes];
  for (int64_t i = 0; i < count; i += kLanes) {
    const auto bytes = sizeof(float) * static_cast<size_t>(std::min<int64_t>(kLanes, count - i));
    for (int64_t j = 0; j < num_normals; j += 4) {
      normals_of_block(static_cast<uint64_t>(first + i), static_cast<uint32_t>(j / 4), key_[0],
                       key_[1], part);
      for (int64_t n = j; n < std::min(j + 4, num_normals); ++n) {
        std::memcpy(to + n * stride + i, part[n - j], bytes);
      }
    }
  }
}

void SampleRng::normal_rows(int64_t first, int64_t count, int64_t num_normals, float* to,
                            int64_t stride) const {
  float part[4][kLanes];
  for (int64_t i = 0; i < count; i += kLanes) {
    const auto taken = static_cast<int>(std::min<int64_t>(kLanes, count - i));
    for (int64_t j = 0; j < num_normals; j += 4) {
      normals_of_block(static_cast<uint64_t>(first + i), static_cast<uint32_t>(j / 4), key_[0],
                       key_[1], part);
      float* const begin = to + i * stride + j;
      int l = 0;
      for (; j + 4 <= num_normals && l + 4 <= taken; l += 4) {
        float* const row = begin + l * stride;
        ops::transpose4({part[0] + l, part[1] + l, part[2] + l, part[3] + l},
                        {row, row + stride, row + 2 * stride, row + 3 * stride});
      }
      for (; l < taken; ++l) {
        for (int64_t n = 0; n < std::min<int64_t>(4, num_normals - j); ++n) {
          begin[l * stride + n] = part[n][l];
        }
      }
    }
  }
}

void SampleRng::uniforms(int64_t first, int64_t count, int64_t block, float* to) const {
  float part[4 * kLanes];
  for (int64_t i = first; i < first + count;) {
    const int64_t skipped = i % 4, taken = std::min(4 * kLanes - skipped, first + count - i);
    uniforms_of_block(static_cast<uint64_t>(i / 4), static_cast<uint32_t>(block), key_[0], key_[1],
                      part);
    std::copy_n(part + skipped, taken, to + (i - first));
    i += taken;
  }
}

}  // namespace moesaic
