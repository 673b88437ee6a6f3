// SPDX-License-Identifier: Apache-2.0
// Two-layer convolutional networks as experts, by chunks of rows, so that the hidden layer stays in
// cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "activate.h"
#include "expert_work.h"
#include "product.h"

namespace moesaic::ops {

/// Adds to to[r, j] the sum over `count` patches of row r of patches[r count + p, j].
void add_patches(const float* patches, int64_t rows, int64_t count, int64_t columns, int64_t stride,
                 float* to);
void add_patches(const double* patches, int64_t rows, int64_t count, int64_t columns,
                 int64_t stride, double* to);

/// Computes to[r] = sum of row r of `from`, whose rows are `stride` apart.
void sum_columns(const float* from, int64_t rows, int64_t columns, int64_t stride, float* to);
void sum_columns(const double* from, int64_t rows, int64_t columns, int64_t stride, double* to);

/// Rows [begin, end) of one expert, which share sums of gradients.
struct FilterPiece {
  int64_t begin, end, expert;
};

/// Cuts the rows of all experts into pieces by the routing alone, so that no sum depends on the
/// number of threads. `offsets` has experts + 1 entries.
std::vector<FilterPiece> filter_pieces(const int32_t* offsets, int64_t experts);

template <class Scalar>
struct FilterLayer {
  int64_t patches, width, filters, outputs;
  Activation activation;

  static constexpr int64_t kChunkPatches = 256, kPanelColumns = 64;

  /// Inputs and weights.
  struct Inputs {
    const Scalar* x;       // [T, P, d]
    const int32_t* token;  // [A]
    const Scalar *w, *b;   // [K, d, J], [K, J]
  };
  /// Buffer of the activation's inputs, see hidden_at(), for the first chunks, up to `kept`
  /// numbers; those of the other chunks are recomputed.
  template <class Pointer>
  struct Hidden {
    Pointer* numbers;
    int64_t kept;
  };
  struct Outputs {
    Hidden<Scalar> hidden;
    Scalar* y;  // [A, C]
  };
  struct Arriving {
    Hidden<const Scalar> hidden;
    const Scalar* grad;  // [A, C]
  };
  /// Sums of the gradients of one expert's weights.
  struct Sums {
    Scalar *w, *b;  // [d, J], [J]
  };

  int64_t chunk_rows() const {
    return std::max<int64_t>(1, kChunkPatches / std::max<int64_t>(1, patches));
  }

  int64_t scratch_bytes() const {
    ops::Scratch scratch(nullptr);
    take(scratch);
    return scratch.taken();
  }

  void forward(const FilterPiece& piece, const Inputs& in, const Outputs& out,
               uint8_t* memory) const {
    ops::Scratch scratch(memory);
    const Arrays s = take(scratch);
    for (int64_t begin = piece.begin; begin < piece.end; begin += chunk_rows()) {
      forward_chunk({begin, std::min(begin + chunk_rows(), piece.end), piece.expert}, in, out, s);
    }
  }

  /// Adds gradients to `sums`. Rows whose gradient is exactly zero, such as those of a saturated
  /// softmax, are skipped.
  void backward(const FilterPiece& piece, const Inputs& in, const Arriving& arriving,
                const Sums& sums, uint8_t* memory) const {
    ops::Scratch scratch(memory);
    const Arrays s = take(scratch);
    std::vector<int64_t> wanted;  // Rows with a nonzero gradient.
    for (int64_t begin = piece.begin; begin < piece.end; begin += chunk_rows()) {
      const int64_t end = std::min(begin + chunk_rows(), piece.end);
      wanted.clear();
      for (int64_t row = begin; row < end; ++row) {
        const Scalar* const g = arriving.grad + row * outputs;
        if (std::any_of(g, g + outputs, [](Scalar v) { return v != Scalar(0); })) {
          wanted.push_back(row);
        }
      }
      if (!wanted.empty()) {
        backward_chunk({begin, end, piece.expert}, wanted, in, arriving, sums, s);
      }
    }
  }

 private:
  /// What a thread needs for a chunk.
  struct Arrays {
    Scalar *x, *x_transposed;       // [patches, d], [d, padded patches]
    Scalar *z, *active, *arriving;  // [patches, columns of a panel]
    Scalar *by_row, *totals;        // [rows, columns of a panel], [rows]
  };

  Arrays take(ops::Scratch& scratch) const {
    const int64_t count = chunk_rows() * patches, padded = padded_depth<Scalar>(count);
    Arrays s{};
    s.x = scratch.take<Scalar>(count * width);
    s.x_transposed = scratch.take<Scalar>(padded * width);
    s.z = scratch.take<Scalar>(count * kPanelColumns);
    s.active = scratch.take<Scalar>(padded * kPanelColumns);
    s.arriving = scratch.take<Scalar>(count * kPanelColumns);
    s.by_row = scratch.take<Scalar>(chunk_rows() * kPanelColumns);
    s.totals = scratch.take<Scalar>(chunk_rows());
    return s;
  }

  /// Returns the index of a chunk's panel in `hidden`, which is ordered by chunk, then by panel:
  /// [patches, columns of the panel]. Rows of J numbers would map to few sets of the caches.
  int64_t hidden_at(const FilterPiece& chunk, int64_t column) const {
    return patches * (chunk.begin * filters + (chunk.end - chunk.begin) * column);
  }

  /// Returns whether the numbers of the chunks up to this one fit.
  bool is_kept(const FilterPiece& chunk, int64_t kept) const {
    return chunk.end * patches * filters <= kept;
  }

  /// Calls use(first column, columns) for all panels.
  template <class Use>
  void for_panels(Use use) const {
    for (int64_t column = 0; column < filters; column += kPanelColumns) {
      use(column, std::min(kPanelColumns, filters - column));
    }
  }

  /// Calls use(output, first, count) for the columns of a panel that belong to one output.
  template <class Use>
  void for_outputs(int64_t column, int64_t columns, Use use) const {
    const int64_t each = filters / outputs;
    for (int64_t first = 0; first < columns;) {
      const int64_t output = (column + first) / each;
      const int64_t count = std::min(columns - first, (output + 1) * each - column - first);
      use(output, first, count);
      first += count;
    }
  }

  /// Copies the patches of row `row` to place `place` of a chunk.
  void gather(const Inputs& in, int64_t row, int64_t place, const Arrays& s) const {
    const int64_t size = patches * width;
    std::copy_n(in.x + in.token[row] * size, size, s.x + place * size);
  }

  /// Multiplies `rows` gathered rows by a panel of an expert's filters: z [patches, columns].
  void see(const Inputs& in, int64_t expert, int64_t rows, int64_t column, int64_t columns,
           const Arrays& s) const {
    multiply({rows * patches, width, columns, s.x, width, in.w + expert * width * filters + column,
              filters, s.z, columns, false});
  }

  /// Adds a panel's biases to z, keeps the sum in `before` and applies the activation.
  void activate(const Inputs& in, int64_t expert, int64_t rows, int64_t column, int64_t columns,
                Scalar* before, const Arrays& s) const {
    finish({rows * patches, columns, s.z, columns, in.b + expert * filters + column, activation,
            s.active, columns, before, columns});
  }

  void forward_chunk(const FilterPiece& chunk, const Inputs& in, const Outputs& out,
                     const Arrays& s) const {
    const int64_t rows = chunk.end - chunk.begin;
    for (int64_t r = 0; r < rows; ++r) gather(in, chunk.begin + r, r, s);
    std::fill_n(out.y + chunk.begin * outputs, rows * outputs, Scalar(0));
    const bool keeps = is_kept(chunk, out.hidden.kept);
    for_panels([&](int64_t column, int64_t columns) {
      see(in, chunk.expert, rows, column, columns, s);
      activate(in, chunk.expert, rows, column, columns,
               keeps ? out.hidden.numbers + hidden_at(chunk, column) : nullptr, s);
      std::fill_n(s.by_row, rows * columns, Scalar(0));
      add_patches(s.active, rows, patches, columns, columns, s.by_row);
      for_outputs(column, columns, [&](int64_t output, int64_t first, int64_t count) {
        sum_columns(s.by_row + first, rows, count, columns, s.totals);
        for (int64_t r = 0; r < rows; ++r) {
          out.y[(chunk.begin + r) * outputs + output] += s.totals[r];
        }
      });
    });
  }

  void backward_chunk(const FilterPiece& chunk, const std::vector<int64_t>& wanted,
                      const Inputs& in, const Arriving& arriving, const Sums& sums,
                      const Arrays& s) const {
    const auto rows = static_cast<int64_t>(wanted.size());
    const int64_t count = rows * patches, depth = padded_depth<Scalar>(count);
    for (int64_t r = 0; r < rows; ++r) gather(in, wanted[r], r, s);
    transpose(s.x, width, count, width, s.x_transposed);
    const bool kept = is_kept(chunk, arriving.hidden.kept);
    for_panels([&](int64_t column, int64_t columns) {
      if (kept) {
        const Scalar* const from = arriving.hidden.numbers + hidden_at(chunk, column);
        const int64_t size = patches * columns;
        for (int64_t r = 0; r < rows; ++r) {
          std::copy_n(from + (wanted[r] - chunk.begin) * size, size, s.z + r * size);
        }
      } else {
        see(in, chunk.expert, rows, column, columns, s);
        activate(in, chunk.expert, rows, column, columns, s.z, s);
      }
      for (int64_t r = 0; r < rows; ++r) {
        spread(arriving.grad + wanted[r] * outputs, column, columns,
               s.arriving + r * patches * columns);
      }
      Scalar* const grad = s.active;
      finish_backward({count, columns, s.arriving, columns, activation, s.z, columns, grad, columns,
                       nullptr, 0, sums.b + column});
      std::fill_n(grad + count * columns, (depth - count) * columns, Scalar(0));
      multiply({width, depth, columns, s.x_transposed, depth, grad, columns, sums.w + column,
                filters, true});
    });
  }

  /// Spreads the gradient of a row's outputs to their filters, for each of its patches.
  void spread(const Scalar* from, int64_t column, int64_t columns, Scalar* to) const {
    for_outputs(column, columns, [&](int64_t output, int64_t first, int64_t count) {
      for (int64_t p = 0; p < patches; ++p) {
        std::fill_n(to + p * columns + first, count, from[output]);
      }
    });
  }
};

}  // namespace moesaic::ops
