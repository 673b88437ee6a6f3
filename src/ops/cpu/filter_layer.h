// SPDX-License-Identifier: Apache-2.0
// Two-layer convolutional networks as experts, chunk by chunk of rows, so that what lies between
// the two layers stays in cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "filter_order.h"
#include "tile.h"
#include "vector_clones.h"

namespace moesaic::ops {

/// to[r, j] += sum over `count` patches of row r of patches[r count + p, j].
void add_patches(const float* patches, int64_t rows, int64_t count, int64_t columns, int64_t stride,
                 float* to);
void add_patches(const double* patches, int64_t rows, int64_t count, int64_t columns,
                 int64_t stride, double* to);

template <class Scalar>
struct FilterLayer {
  int64_t patches, width, filters, outputs;
  Activation activation;
  const TileKernels<Scalar>& kernels = tile_kernels<Scalar>();

  static constexpr int64_t kChunkPatches = 256;
  static constexpr int64_t kRestAhead = 128;  // rows

  int64_t chunk_rows() const { return std::max<int64_t>(1, kChunkPatches / patches); }
  int64_t chunk_patches() const { return chunk_rows() * patches; }
  /// Of an expert's weights with their biases, or of their gradients: panel by panel, each
  /// [d + 1, stride].
  int64_t weights_size() const {
    const int64_t rest = filters % kernels.columns;
    return (width + 1) * (filters - rest + (rest > 0 ? kernels.group_stride(rest) : 0));
  }
  int64_t panel_at(int64_t column) const { return (width + 1) * column; }

  /// w [d, J] and b [J] of one expert, which may be one behind the other in any order of strides.
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

  /// w [d, J] += and b [J] += what `from` holds in the panels' order.
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

  /// Inputs as they are: x [T, P, d]; or read as ParallelPatches, where x is their rest.
  struct Inputs {
    const Scalar* x;
    const int32_t* token;  // [A]
    const int32_t* which;  // [T, P], null: as they are
    const Scalar* scale;   // [T, P]
    int64_t directions, rest;
  };
  /// Packed, of all experts; and their directions' products with the filters, [directions, J], as
  /// met(directions) packs them.
  template <class Pointer>
  struct Weights {
    Pointer *experts, *directions;
  };
  /// The layer whose weights are the directions' products with the filters.
  FilterLayer met(int64_t directions) const {
    return {patches, directions, filters, outputs, activation};
  }

  struct Outputs {
    Scalar* hidden;  // A P J numbers, see hidden_at(); null: not kept
    Scalar* y;       // [A, C]
  };
  struct Arriving {
    const Scalar *hidden, *grad;  // null: to be computed again; [A, C]
  };

  /// The inputs of a chunk: groups of patches as they are, and where multiples are read.
  struct Chunk {
    int64_t rows;                        // of a group
    std::vector<const Scalar*> x, next;  // of each group
    std::vector<int64_t> expert, patch;  // of each group: whose weights, and its first patch
    std::vector<const int32_t*> which;   // of each input,
    std::vector<const Scalar*> scale;
    std::vector<int64_t> reader;  // the expert that reads it
  };

  int64_t scratch() const { return (2 * chunk_patches() + chunk_rows()) * kernels.columns; }

  void forward(const FilterOrder& order, const FilterPiece& piece, const Inputs& in,
               const Weights<const Scalar>& weights, const Outputs& out, Scalar* scratch) const {
    std::vector<int64_t> all;
    Chunk chunk;
    for (int64_t begin = piece.begin; begin < piece.end; begin += chunk_rows()) {
      const int64_t end = std::min(begin + chunk_rows(), piece.end);
      all.resize(end - begin);
      std::iota(all.begin(), all.end(), begin);
      forward_chunk(order, all, in, weights, out, chunk, scratch);
    }
  }

  /// Adds to `sums`, in the order of the weights, of the piece's experts. Rows whose gradient is
  /// exactly zero, as that of a softmax that is sure is, cost nothing.
  void backward(const FilterOrder& order, const FilterPiece& piece, const Inputs& in,
                const Weights<const Scalar>& weights, const Arriving& arriving,
                const Weights<Scalar>& sums, Scalar* scratch) const {
    std::vector<int64_t> wanted;  // positions
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
  /// What the activation sees lies chunk by chunk, and in a chunk panel by panel: [patches, columns
  /// of the panel]. Rows of J numbers would fall into a few sets of the caches.
  int64_t hidden_at(int64_t begin, int64_t end, int64_t column) const {
    return patches * (begin * filters + (end - begin) * column);
  }

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

  /// Fills `chunk`, whose memory is used again.
  void read_chunk(const FilterOrder& order, const std::vector<int64_t>& positions, const Inputs& in,
                  Chunk& chunk) const {
    const size_t inputs = positions.size(), multiples = in.which == nullptr ? 0 : inputs;
    const size_t most = in.which == nullptr ? inputs : inputs * static_cast<size_t>(patches) + 1;
    chunk.rows = in.which == nullptr ? patches : 1;
    for (auto* list : {&chunk.x, &chunk.next}) list->resize(most);
    for (auto* list : {&chunk.expert, &chunk.patch}) list->resize(most);
    chunk.which.resize(multiples);
    chunk.scale.resize(multiples);
    chunk.reader.resize(multiples);
    size_t groups = 0;
    const auto add = [&](const Scalar* from, const Scalar* later, int64_t expert, int64_t patch) {
      chunk.x[groups] = from;
      chunk.next[groups] = later;
      chunk.expert[groups] = expert;
      chunk.patch[groups++] = patch;
    };
    for (size_t i = 0; i < inputs; ++i) {
      const int64_t token = in.token[order.row[positions[i]]], expert = order.expert[positions[i]];
      const auto patch = static_cast<int64_t>(i) * patches;
      if (in.which == nullptr) {
        add(in.x + token * patches * width, in.x + order.next[positions[i]] * patches * width,
            expert, patch);
        continue;
      }
      const int32_t* const which = in.which + token * patches;
      chunk.which[i] = which;
      chunk.scale[i] = in.scale + token * patches;
      chunk.reader[i] = expert;
      for (int64_t p = 0; p < patches; ++p) {  // without a branch, which none could foresee
        const int64_t row = -1 - which[p];
        add(in.x + row * width, in.x + std::min(row + kRestAhead, in.rest - 1) * width, expert,
            patch + p);
        groups -= which[p] < 0 ? 0 : 1;
      }
    }
    chunk.x.resize(groups);
    chunk.expert.resize(groups);
  }

  /// Where the weights of a panel begin for each of these experts; those of `first` come first.
  template <class Pointer>
  static std::vector<Pointer*> panels_of(const std::vector<int64_t>& experts, Pointer* weights,
                                         const FilterLayer& layer, int64_t first, int64_t column) {
    std::vector<Pointer*> panels(experts.size());
    for (size_t i = 0; i < panels.size(); ++i) {
      panels[i] = weights + (experts[i] - first) * layer.weights_size() + layer.panel_at(column);
    }
    return panels;
  }

  /// z [patches of the chunk, columns] = what the activation sees in one panel.
  void see(const Chunk& chunk, const Inputs& in, const Weights<const Scalar>& weights,
           int64_t column, int64_t columns, Scalar* z) const {
    const auto b = panels_of(chunk.expert, weights.experts, *this, 0, column);
    std::vector<Scalar*> c(b.size());
    for (size_t g = 0; g < c.size(); ++g) c[g] = z + chunk.patch[g] * columns;
    kernels.multiply_groups({chunk.x.data(), b.data(), static_cast<int64_t>(b.size()), chunk.rows,
                             width, columns, column == 0 ? chunk.next.data() : nullptr, c.data()});
    if (chunk.which.empty()) return;
    const auto met = panels_of(chunk.reader, const_cast<Scalar*>(weights.directions),
                               this->met(in.directions), 0, column);
    kernels.multiply_multiples({chunk.which.data(), chunk.scale.data(), met.data(),
                                static_cast<int64_t>(met.size()), patches, columns, in.directions,
                                z, nullptr});
  }

  /// The gradients of a panel, grad [patches of the chunk, stride], go to the sums of weights.
  void add_products(const Chunk& chunk, const Inputs& in, int64_t first,
                    const Weights<Scalar>& sums, int64_t column, int64_t columns,
                    const Scalar* grad) const {
    const auto to = panels_of(chunk.expert, sums.experts, *this, first, column);
    std::vector<const Scalar*> from(to.size());
    for (size_t g = 0; g < from.size(); ++g) {
      from[g] = grad + chunk.patch[g] * kernels.group_stride(columns);
    }
    kernels.add_products({chunk.x.data(), to.data(), static_cast<int64_t>(to.size()), chunk.rows,
                          width, columns, column == 0 ? chunk.next.data() : nullptr, from.data()});
    if (chunk.which.empty()) return;
    const auto met =
        panels_of(chunk.reader, sums.directions, this->met(in.directions), first, column);
    kernels.add_multiples({chunk.which.data(), chunk.scale.data(), met.data(),
                           static_cast<int64_t>(met.size()), patches, columns, in.directions,
                           nullptr, grad});
  }

  void forward_chunk(const FilterOrder& order, const std::vector<int64_t>& positions,
                     const Inputs& in, const Weights<const Scalar>& weights, const Outputs& out,
                     Chunk& chunk, Scalar* scratch) const {
    const auto rows = static_cast<int64_t>(positions.size());
    const int64_t begin = positions.front(), count = rows * patches;
    Scalar* const seen = scratch;
    Scalar* const active = seen + chunk_patches() * kernels.columns;
    Scalar* const sums = active + chunk_patches() * kernels.columns;
    read_chunk(order, positions, in, chunk);
    for (const int64_t i : positions) {
      std::fill_n(out.y + order.row[i] * outputs, outputs, Scalar(0));
    }
    for_panels([&](int64_t column, int64_t columns, int64_t stride) {
      Scalar* const z =
          out.hidden != nullptr ? out.hidden + hidden_at(begin, begin + rows, column) : seen;
      see(chunk, in, weights, column, columns, z);
      kernels.activate(activation, {count, columns, columns, stride}, z, active);
      std::fill_n(sums, rows * stride, Scalar(0));
      add_patches(active, rows, patches, columns, stride, sums);
      for_outputs(column, columns, [&](int64_t output, int64_t first, int64_t of_it) {
        for (int64_t r = 0; r < rows; ++r) {
          out.y[order.row[begin + r] * outputs + output] += sum(sums + r * stride + first, of_it);
        }
      });
    });
  }

  static Scalar sum(const Scalar* from, int64_t count) {
    Scalar lanes[4] = {};
    int64_t j = 0;
    for (; j + 4 <= count; j += 4) {
      for (int64_t lane = 0; lane < 4; ++lane) lanes[lane] += from[j + lane];
    }
    for (; j < count; ++j) lanes[0] += from[j];
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  }

  void backward_chunk(const FilterOrder& order, const FilterPiece& piece,
                      const std::vector<int64_t>& wanted, const Inputs& in,
                      const Weights<const Scalar>& weights, const Arriving& arriving,
                      const Weights<Scalar>& sums, Chunk& chunk, Scalar* scratch) const {
    Scalar* const grad = scratch;
    Scalar* const seen = grad + chunk_patches() * kernels.columns;
    Scalar* const factors = seen + chunk_patches() * kernels.columns;
    read_chunk(order, wanted, in, chunk);
    for_panels([&](int64_t column, int64_t columns, int64_t stride) {
      if (arriving.hidden == nullptr) see(chunk, in, weights, column, columns, seen);
      // Where the activation's arguments of a wanted row lie.
      const auto z_of = [&](size_t i) -> const Scalar* {
        if (arriving.hidden == nullptr) return seen + static_cast<int64_t>(i) * patches * columns;
        return arriving.hidden + hidden_at(piece.begin, piece.end, column) +
               (wanted[i] - piece.begin) * patches * columns;
      };
      for (size_t first = 0; first < wanted.size();) {  // rows that lie side by side, at once
        size_t last = first + 1;
        while (last < wanted.size() && z_of(last) == z_of(last - 1) + patches * columns) ++last;
        for (size_t i = first; i < last; ++i) {
          spread_gradient(arriving.grad + order.row[wanted[i]] * outputs, column, columns,
                          factors + static_cast<int64_t>(i - first) * stride);
        }
        kernels.scale_by_slope(
            activation, {static_cast<int64_t>(last - first) * patches, columns, columns, stride},
            z_of(first), factors, patches, grad + static_cast<int64_t>(first) * patches * stride);
        first = last;
      }
      add_products(chunk, in, piece.expert, sums, column, columns, grad);
    });
  }

  /// Each filter gets the gradient of its row's output.
  void spread_gradient(const Scalar* from, int64_t column, int64_t columns, Scalar* to) const {
    for_outputs(column, columns, [&](int64_t output, int64_t first, int64_t of_it) {
      std::fill_n(to + first, of_it, from[output]);
    });
  }
};

}  // namespace moesaic::ops
