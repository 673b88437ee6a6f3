// SPDX-License-Identifier: Apache-2.0
// Part of tile_kernels.h: products of rows that are read where they lie, a few of them in a group
// (the patches of an input), each group with weights of its own. Weights are small and stay in the
// caches; nothing is gathered.

constexpr int64_t kGroupsAhead = 3;

// The lines of a group that follows soon come into the first-level cache, those of one that follows
// later into the second.
template <class Product>
void fetch_groups(const Product& p, int64_t group) {
  const auto size = static_cast<int64_t>(sizeof(**p.x)) * p.rows * p.depth;
  if (p.next != nullptr) {
    const auto* later = reinterpret_cast<const char*>(p.next[group]);
    for (int64_t at = 0; at < size; at += kLine) __builtin_prefetch(later + at, 0, 2);
    if (group + kGroupsAhead >= p.groups) return;
    const auto* soon = reinterpret_cast<const char*>(p.x[group + kGroupsAhead]);
    for (int64_t at = 0; at < size; at += kLine) __builtin_prefetch(soon + at);
  }
}

// The first `columns` lanes of kVectors vectors.
template <class Scalar, int kVectors>
void store_columns(Scalar* to, int64_t columns, const typename VectorOf<Scalar>::type* values) {
  constexpr int n = kLanes<Scalar>;
  if (columns == kVectors * n) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) store(to + v * n, values[v]);
    return;
  }
  alignas(64) Scalar all[kVectors * n];
  for (int v = 0; v < kVectors; ++v) store(all + v * n, values[v]);
  for (int64_t j = 0; j < columns; ++j) to[j] = all[j];
}

// c = bias + rows B for rows [row, row + kRows) of kGroups groups from `group` on; kSame: their
// weights are the same, and loaded once.
template <class Scalar, int kGroups, int kRows, int kVectors, bool kSame = false>
void multiply_groups_tile(const GroupProduct<Scalar>& p, int64_t group, int64_t row) {
  using Vector = typename VectorOf<Scalar>::type;
  constexpr int n = kLanes<Scalar>;
  const int64_t depth = p.depth;
  const Scalar *from[kGroups], *b[kGroups];
  Vector sum[kGroups][kRows][kVectors];
#pragma GCC unroll 8
  for (int g = 0; g < kGroups; ++g) {
    from[g] = p.x[group + g] + row * depth;
    b[g] = p.b[group + g] + p.b_at;
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[g][i][v] = load(b[g] + depth * kVectors * n + v * n);
    }
  }
#pragma GCC unroll 2
  for (int64_t k = 0; k < depth; ++k) {
    Vector factor[kVectors];
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) {
      if (g == 0 || !kSame) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) factor[v] = load(b[g] + (k * kVectors + v) * n);
      }
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sum[g][i][v] += from[g][i * depth + k] * factor[v];
      }
    }
  }
#pragma GCC unroll 8
  for (int g = 0; g < kGroups; ++g) {
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      Scalar* to = p.c + ((group + g) * p.rows + row + i) * p.columns;
      store_columns<Scalar, kVectors>(to, p.columns, sum[g][i]);
    }
  }
}

template <class Scalar, int kGroups, int kVectors>
void multiply_some_groups(const GroupProduct<Scalar>& p, int64_t group) {
  int64_t row = 0;
  for (; row + 4 <= p.rows; row += 4) {
    multiply_groups_tile<Scalar, kGroups, 4, kVectors>(p, group, row);
  }
  switch (p.rows - row) {
    case 3: return multiply_groups_tile<Scalar, kGroups, 3, kVectors>(p, group, row);
    case 2: return multiply_groups_tile<Scalar, kGroups, 2, kVectors>(p, group, row);
    case 1: return multiply_groups_tile<Scalar, kGroups, 1, kVectors>(p, group, row);
    default: return;
  }
}

template <class Scalar, int kVectors>
void multiply_all_groups(const GroupProduct<Scalar>& p) {
  constexpr int kTogether = MOESAIC_VECTOR_BYTES == 64 ? 2 : 1;
  constexpr int kSingles = 4 * kTogether;  // an adder waits four times as long as a sum takes
  int64_t group = 0;
  for (; p.rows == 1 && group + kSingles <= p.groups; group += kSingles) {
    bool same = true;
    for (int64_t g = 0; g < kSingles; ++g) {
      fetch_groups(p, group + g);
      same &= p.b[group + g] == p.b[group];
    }
    same ? multiply_groups_tile<Scalar, kSingles, 1, kVectors, true>(p, group, 0)
         : multiply_groups_tile<Scalar, kSingles, 1, kVectors>(p, group, 0);
  }
  for (; group + kTogether <= p.groups; group += kTogether) {
    for (int64_t g = 0; g < kTogether; ++g) fetch_groups(p, group + g);
    multiply_some_groups<Scalar, kTogether, kVectors>(p, group);
  }
  for (; group < p.groups; ++group) multiply_some_groups<Scalar, 1, kVectors>(p, group);
}

template <class Scalar>
void multiply_groups(const GroupProduct<Scalar>& p) {
  p.columns <= kLanes<Scalar> ? multiply_all_groups<Scalar, 1>(p) : multiply_all_groups<Scalar, 2>(p);
}

// sums[k] += sum over kRows rows of row[k] grad, and in the last row the sum of grad.
template <class Scalar, int kRows, int kVectors>
void add_row_products(const Scalar* const* row, const Scalar* const* grad, int64_t depth,
                      Scalar* sums) {
  using Vector = typename VectorOf<Scalar>::type;
  constexpr int n = kLanes<Scalar>;
  const Scalar* from[kRows];
  Vector factor[kRows][kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    from[i] = row[i];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) factor[i][v] = load(grad[i] + v * n);
  }
#pragma GCC unroll 4
  for (int64_t k = 0; k < depth; ++k, sums += kVectors * n) {
    Vector sum[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[v] = load(sums + v * n);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[v] += from[i][k] * factor[i][v];
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) store(sums + v * n, sum[v]);
  }
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    Vector sum = load(sums + v * n);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) sum += factor[i][v];
    store(sums + v * n, sum);
  }
}

// Rows of groups that share their sums are taken four at a time: each sum is loaded and stored once
// for them.
template <class Scalar, int kVectors>
void add_all_products(const GroupGradient<Scalar>& p) {
  constexpr int64_t kStride = kVectors * kLanes<Scalar>;
  const Scalar *row[4], *grad[4];
  int held = 0;
  Scalar* sums = nullptr;
  const auto flush = [&]() __attribute__((always_inline)) {
    switch (held) {
      case 4: add_row_products<Scalar, 4, kVectors>(row, grad, p.depth, sums); break;
      case 3: add_row_products<Scalar, 3, kVectors>(row, grad, p.depth, sums); break;
      case 2: add_row_products<Scalar, 2, kVectors>(row, grad, p.depth, sums); break;
      case 1: add_row_products<Scalar, 1, kVectors>(row, grad, p.depth, sums); break;
      default: break;
    }
    held = 0;
  };
  for (int64_t g = 0; g < p.groups; ++g) {
    fetch_groups(p, g);
    if (p.sums[g] + p.sums_at != sums) flush();
    sums = p.sums[g] + p.sums_at;
    for (int64_t i = 0; i < p.rows; ++i) {
      row[held] = p.x[g] + i * p.depth;
      grad[held] = p.grad + (g * p.rows + i) * kStride;
      if (++held == 4) flush();
    }
  }
  flush();
}

template <class Scalar>
void add_products(const GroupGradient<Scalar>& p) {
  p.columns <= kLanes<Scalar> ? add_all_products<Scalar, 1>(p) : add_all_products<Scalar, 2>(p);
}

