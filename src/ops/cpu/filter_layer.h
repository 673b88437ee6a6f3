// SPDX-License-Identifier: Apache-2.0
// Two-layer convolutional networks as experts, by chunks of rows, so that the hidden layer stays in
// cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "filter_order.h"
#include "tile.h"
#include "vector_clones.h"

namespace moesaic::ops {

/// Adds to to[r, j] the sum over `count` patches of row r of patches[r count + p, j].
void add_patches(const float* patches, int64_t rows, int64_t count, int64_t columns, int64_t stride,
                 float* to);
void add_patches(const double* patches, int64_t rows, int64_t count, int64_t columns,
                 int64_t stride, double* to);

/// Computes to[r] = sum of row r of `from`, whose rows are `stride` apart.
void sum_columns(const float* from, int64_t rows, int64_t columns, int64_t stride, float* to);
void sum_columns(const double* from, int64_t rows, int64_t columns, int64_t stride, double* to);

template <class Scalar>
struct FilterLayer {
  int64_t patches, width, filters, outputs;
  Activation activation;
  const TileKernels<Scalar>& kernels = tile_kernels<Scalar>();

  static constexpr int64_t kChunkPatches = 256;

  int64_t chunk_rows() const {
    return std::max<int64_t>(1, kChunkPatches / std::max<int64_t>(1, patches));
  }
  int64_t chunk_patches() const { return chunk_rows() * patches; }
  /// Returns the size of an expert's weights with biases, or of their gradients: one panel after
  /// the other, each [d + 1, stride].
  int64_t weights_size() const {
    const int64_t rest = filters % kernels.columns;
    return (width + 1) * (filters - rest + (rest > 0 ? kernels.group_stride(rest) : 0));
  }
  int64_t panel_at(int64_t column) const { return (width + 1) * column; }

  /// Packs w [d, J] and b [J] of one expert; any strides are allowed.
  void pack(const Scalar* w, int64_t row_stride, int64_t column_stride, const Scalar* b,
            Scalar* to) const {
    for_panels([&](int64_t column, int64_t columns, int64_t stride) {
      Scalar* panel = to + panel_at(column);
      std::fill_n(panel, (width + 1) * stride, Scalar(0));
      for (int64_t k = 0; k < width; ++k, panel += stride) {
        for (int64_t j = 0; j < columns; ++j) {
          panel[j] = w[k * row_stride + (column + j) * column_stride];
        }
      }
      std::copy_n(b + column, columns, panel);
    });
  }

  /// Adds the panels in `from` to w [d, J] and b [J].
  void add_unpacked(const Scalar* from, Scalar* w, Scalar* b) const {
    for_panels([&](int64_t column, int64_t columns, int64_t stride) {
      const Scalar* panel = from + panel_at(column);
      for (int64_t k = 0; k < width; ++k, panel += stride) {
        Scalar* const row = w + k * filters + column;
        for (int64_t j = 0; j < columns; ++j) row[j] += panel[j];
      }
      for (int64_t j = 0; j < columns; ++j) b[column + j] += panel[j];
    });
  }

  struct Inputs {
    const Scalar* x;       // [T, P, d]
    const int32_t* token;  // [A]
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

  /// Inputs of a chunk, whose patches are read in place.
  struct Chunk {
    std::vector<const Scalar*> x, next;  // Patches of each input, and of inputs to prefetch.
    std::vector<const Scalar*> weights;  // Weights of each input's expert.
    std::vector<Scalar*> sums;           // Gradient sums of these weights.

    int64_t inputs() const { return static_cast<int64_t>(x.size()); }
  };

  int64_t scratch() const {
    return (2 * chunk_patches() + chunk_rows()) * kernels.columns + chunk_rows();
  }

  void forward(const FilterOrder& order, const FilterPiece& piece, const Inputs& in,
               const Scalar* weights, const Outputs& out, Scalar* scratch) const {
    std::vector<int64_t> all;
    Chunk chunk;
    for (int64_t begin = piece.begin; begin < piece.end; begin += chunk_rows()) {
      const int64_t end = std::min(begin + chunk_rows(), piece.end);
      all.resize(end - begin);
      std::iota(all.begin(), all.end(), begin);
      forward_chunk(order, all, in, weights, out, chunk, scratch);
    }
  }

  /// Adds gradients to `sums`, in the order of the weights, for the piece's experts. Rows whose
  /// gradient is exactly zero, such as those of a saturated softmax, are skipped.
  void backward(const FilterOrder& order, const FilterPiece& piece, const Inputs& in,
                const Scalar* weights, const Arriving& arriving, Scalar* sums,
                Scalar* scratch) const {
    std::vector<int64_t> wanted;  // Positions of rows with a nonzero gradient.
    Chunk chunk;
    for (int64_t begin = piece.begin; begin < piece.end; begin += chunk_rows()) {
      const int64_t end = std::min(begin + chunk_rows(), piece.end);
      wanted.clear();
      for (int64_t i = begin; i < end; ++i) {
        const Scalar* const g = arriving.grad + order.row[i] * outputs;
        if (std::any_of(g, g + outputs, [](Scalar v) { return v != Scalar(0); })) {
          wanted.push_back(i);
        }
      }
      if (wanted.empty()) continue;
      backward_chunk(order, {begin, end, piece.expert, piece.experts}, wanted, in, weights,
                     arriving, sums, chunk, scratch);
    }
  }

 private:
  /// Returns the index of a chunk's panel in `hidden`, which is ordered by chunk, then by panel:
  /// [patches, columns of the panel]. Rows of J numbers would map to few sets of the caches.
  int64_t hidden_at(int64_t begin, int64_t end, int64_t column) const {
    return patches * (begin * filters + (end - begin) * column);
  }

  /// Returns whether the numbers of the chunks up to `end` fit.
  bool is_kept(int64_t end, int64_t kept) const { return end * patches * filters <= kept; }

  /// Calls use(first column, columns, stride) for all panels.
  template <class Use>
  void for_panels(Use use) const {
    for (int64_t column = 0; column < filters; column += kernels.columns) {
      const int64_t columns = std::min(kernels.columns, filters - column);
      use(column, columns, kernels.group_stride(columns));
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

  /// Returns the output that all these columns belong to; -1 if there are several.
  int64_t only_output(int64_t column, int64_t columns) const {
    const int64_t each = filters / outputs, last = column + columns - 1;
    return last < filters && column / each == last / each ? column / each : -1;
  }

  /// Fills `chunk` and reuses its memory; `sums`, unless null, begin with those of expert `first`.
  void read_chunk(const FilterOrder& order, const std::vector<int64_t>& positions, const Inputs& in,
                  const Scalar* weights, Scalar* sums, int64_t first, Chunk& chunk) const {
    chunk.x.clear();
    chunk.next.clear();
    chunk.weights.clear();
    chunk.sums.clear();
    for (const int64_t i : positions) {
      chunk.x.push_back(in.x + in.token[order.row[i]] * patches * width);
      chunk.next.push_back(in.x + order.next[i] * patches * width);
      chunk.weights.push_back(weights + order.expert[i] * weights_size());
      if (sums != nullptr) chunk.sums.push_back(sums + (order.expert[i] - first) * weights_size());
    }
  }

  /// Computes z [patches of the chunk, columns], the activation's inputs of one panel.
  void see(const Chunk& chunk, int64_t column, int64_t columns, Scalar* z) const {
    kernels.multiply_groups({chunk.x.data(), chunk.weights.data(), panel_at(column), chunk.inputs(),
                             patches, width, columns, column == 0 ? chunk.next.data() : nullptr,
                             z});
  }

  /// Adds the gradients of a panel, grad [patches of the chunk, stride], to the sums of weights.
  void add_products(const Chunk& chunk, int64_t column, int64_t columns, const Scalar* grad) const {
    kernels.add_products({chunk.x.data(), chunk.sums.data(), panel_at(column), chunk.inputs(),
                          patches, width, columns, column == 0 ? chunk.next.data() : nullptr,
                          grad});
  }

  void forward_chunk(const FilterOrder& order, const std::vector<int64_t>& positions,
                     const Inputs& in, const Scalar* weights, const Outputs& out, Chunk& chunk,
                     Scalar* scratch) const {
    const auto rows = static_cast<int64_t>(positions.size());
    const int64_t begin = positions.front(), count = rows * patches;
    Scalar* const seen = scratch;
    Scalar* const active = seen + chunk_patches() * kernels.columns;
    Scalar* const sums = active + chunk_patches() * kernels.columns;
    Scalar* const totals = sums + chunk_rows() * kernels.columns;
    read_chunk(order, positions, in, weights, nullptr, 0, chunk);
    for (const int64_t i : positions) {
      std::fill_n(out.y + order.row[i] * outputs, outputs, Scalar(0));
    }
    std::fill_n(sums, rows * kernels.columns, Scalar(0));
    const bool keeps = is_kept(begin + rows, out.hidden.kept);
    for_panels([&](int64_t column, int64_t columns, int64_t stride) {
      Scalar* const z = keeps ? out.hidden.numbers + hidden_at(begin, begin + rows, column) : seen;
      see(chunk, column, columns, z);
      kernels.activate(activation, {count, columns, columns, stride}, z, active);
      add_patches(active, rows, patches, columns, stride, sums);
      // Panels of one output are added before their columns are.
      const int64_t only = only_output(column, columns);
      if (only >= 0 && only == only_output(column + columns, kernels.columns)) return;
      for_outputs(column, columns, [&](int64_t output, int64_t first, int64_t of_it) {
        sum_columns(sums + first, rows, of_it, stride, totals);
        for (int64_t r = 0; r < rows; ++r) {
          out.y[order.row[begin + r] * outputs + output] += totals[r];
        }
      });
      std::fill_n(sums, rows * kernels.columns, Scalar(0));
    });
  }

  void backward_chunk(const FilterOrder& order, const FilterPiece& piece,
                      const std::vector<int64_t>& wanted, const Inputs& in, const Scalar* weights,
                      const Arriving& arriving, Scalar* sums, Chunk& chunk, Scalar* scratch) const {
    Scalar* const grad = scratch;
    Scalar* const seen = grad + chunk_patches() * kernels.columns;
    Scalar* const factors = seen + chunk_patches() * kernels.columns;
    read_chunk(order, wanted, in, weights, sums, piece.expert, chunk);
    const bool kept = is_kept(piece.end, arriving.hidden.kept);
    for_panels([&](int64_t column, int64_t columns, int64_t stride) {
      const int64_t output = only_output(column, columns);
      if (!kept) see(chunk, column, columns, seen);
      // The activation's inputs of a row with a nonzero gradient.
      const auto z_of = [&](size_t i) -> const Scalar* {
        if (!kept) return seen + static_cast<int64_t>(i) * patches * columns;
        return arriving.hidden.numbers + hidden_at(piece.begin, piece.end, column) +
               (wanted[i] - piece.begin) * patches * columns;
      };
      for (size_t first = 0; first < wanted.size();) {  // Adjacent rows are processed at once.
        size_t last = first + 1;
        while (last < wanted.size() && z_of(last) == z_of(last - 1) + patches * columns) ++last;
        for (size_t i = first; i < last; ++i) {
          const Scalar* const own = arriving.grad + order.row[wanted[i]] * outputs;
          const auto at = static_cast<int64_t>(i - first);
          if (output >= 0) {
            factors[at] = own[output];
          } else {
            spread_gradient(own, column, columns, factors + at * stride);
          }
        }
        kernels.scale_by_slope(
            activation, {static_cast<int64_t>(last - first) * patches, columns, columns, stride},
            z_of(first), {factors, patches, output >= 0},
            grad + static_cast<int64_t>(first) * patches * stride);
        first = last;
      }
      add_products(chunk, column, columns, grad);
    });
  }

  /// Spreads the gradient of a row's output to each of its filters.
  void spread_gradient(const Scalar* from, int64_t column, int64_t columns, Scalar* to) const {
    for_outputs(column, columns, [&](int64_t output, int64_t first, int64_t of_it) {
      std::fill_n(to + first, of_it, from[output]);
    });
  }
};

}  // namespace moesaic::ops
