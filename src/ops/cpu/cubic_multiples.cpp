// SPDX-License-Identifier: Apache-2.0
#include "cubic_multiples.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "filter_order.h"
#include "vector_clones.h"

namespace moesaic::ops {
namespace {

using at::Tensor;

constexpr int kPowers = 4;  // s^0 ... s^3
constexpr int64_t kPiecesOfTask = 4;

template <class Scalar>
struct PowersOf {
  typedef Scalar type __attribute__((vector_size(kPowers * sizeof(Scalar))));
};
template <class Scalar>
using Powers = typename PowersOf<Scalar>::type;

/// Rows of one expert; `terms`, one for each direction and output and a last one for patches that
/// are no multiples, are its coefficients or the sums of its gradients.
template <class Scalar, class Term>
struct Rows {
  const int32_t* token;
  int64_t count, patches, directions, outputs;
  const int32_t* which;
  const Scalar* scale;
  Term* terms;  // [D + 1, C] times kPowers
};

template <class Scalar>
MOESAIC_IN_CLONE void add_values(const Rows<Scalar, const Scalar>& rows, Scalar* y) {
  for (int64_t r = 0; r < rows.count; ++r, y += rows.outputs) {
    const int64_t at = rows.token[r] * rows.patches;
    for (int64_t p = at; p < at + rows.patches; ++p) {
      const int64_t k = rows.which[p] < 0 ? rows.directions : rows.which[p];
      const Scalar s = rows.scale[p];
      const Powers<Scalar> powers = {Scalar(1), s, s * s, s * s * s};
      const Scalar* term = rows.terms + k * rows.outputs * kPowers;
      for (int64_t c = 0; c < rows.outputs; ++c, term += kPowers) {
        Powers<Scalar> value;
        __builtin_memcpy(&value, term, sizeof(value));
        value *= powers;
        y[c] += (value[0] + value[2]) + (value[1] + value[3]);
      }
    }
  }
}

template <class Scalar>
MOESAIC_IN_CLONE void add_gradients(const Rows<Scalar, double>& rows, const Scalar* grad) {
  for (int64_t r = 0; r < rows.count; ++r, grad += rows.outputs) {
    const int64_t at = rows.token[r] * rows.patches;
    for (int64_t p = at; p < at + rows.patches; ++p) {
      const int64_t k = rows.which[p] < 0 ? rows.directions : rows.which[p];
      const double s = rows.scale[p];
      const Powers<double> powers = {1.0, s, s * s, s * s * s};
      double* term = rows.terms + k * rows.outputs * kPowers;
      for (int64_t c = 0; c < rows.outputs; ++c, term += kPowers) {
        Powers<double> sum;
        __builtin_memcpy(&sum, term, sizeof(sum));
        sum += static_cast<double>(grad[c]) * powers;
        __builtin_memcpy(term, &sum, sizeof(sum));
      }
    }
  }
}

MOESAIC_VECTOR_CLONES
void add_values_of(const Rows<float, const float>& rows, float* y) {
  add_values(rows, y);
}
MOESAIC_VECTOR_CLONES
void add_values_of(const Rows<double, const double>& rows, double* y) {
  add_values(rows, y);
}
MOESAIC_VECTOR_CLONES
void add_gradients_of(const Rows<float, double>& rows, const float* grad) {
  add_gradients(rows, grad);
}
MOESAIC_VECTOR_CLONES
void add_gradients_of(const Rows<double, double>& rows, const double* grad) {
  add_gradients(rows, grad);
}

template <class Scalar, class Term>
Rows<Scalar, Term> rows_of(const FilterPiece& piece, const MultiplesRead& read, const Tensor& met,
                           int64_t outputs, Term* terms) {
  return {read.token.const_data_ptr<int32_t>() + piece.begin,
          piece.end - piece.begin,
          read.which.size(1),
          met.size(1),
          outputs,
          read.which.const_data_ptr<int32_t>(),
          read.scale.const_data_ptr<Scalar>(),
          terms};
}

/// (s m + b)^3 = b^3 + 3 b^2 m s + 3 b m^2 s^2 + m^3 s^3, summed over the filters of an output:
/// [K, D + 1, C, kPowers], the last of an expert's directions being zero.
template <class Scalar>
Tensor coefficients(const Tensor& met, const Tensor& b, int64_t outputs) {
  const int64_t experts = met.size(0), directions = met.size(1), each = met.size(2) / outputs;
  Tensor all = at::zeros({experts, directions + 1, outputs, kPowers}, met.options());
  auto* to = all.mutable_data_ptr<Scalar>();
  const auto* m = met.const_data_ptr<Scalar>();
  for (int64_t e = 0; e < experts; ++e, to += outputs * kPowers) {
    for (int64_t k = 0; k < directions; ++k) {
      const auto* bias = b.const_data_ptr<Scalar>() + e * met.size(2);
      for (int64_t c = 0; c < outputs; ++c, to += kPowers) {
        double sum[kPowers] = {};
        for (int64_t j = 0; j < each; ++j) {
          const double mj = *m++, bj = *bias++;
          sum[0] += bj * bj * bj;
          sum[1] += 3.0 * bj * bj * mj;
          sum[2] += 3.0 * bj * mj * mj;
          sum[3] += mj * mj * mj;
        }
        std::copy_n(sum, kPowers, to);
      }
    }
  }
  return all;
}

/// Adds to the gradients of one direction's products and to those of the biases; `sums` [C,
/// kPowers] of grad s^q.
template <class Scalar>
void add_filter_gradients(const double* sums, const Scalar* m, const Scalar* b, int64_t outputs,
                          int64_t each, Scalar* grad_m, double* grad_b) {
  for (int64_t c = 0; c < outputs; ++c, sums += kPowers) {
    for (int64_t j = c * each; j < (c + 1) * each; ++j) {
      const double mm = 3.0 * m[j] * m[j], mb = 6.0 * m[j] * b[j], bb = 3.0 * b[j] * b[j];
      grad_m[j] = static_cast<Scalar>(mm * sums[3] + mb * sums[2] + bb * sums[1]);
      grad_b[j] += mm * sums[2] + mb * sums[1] + bb * sums[0];
    }
  }
}

}  // namespace

Tensor cubic_multiples(const MultiplesRead& read, const Tensor& met, const Tensor& b,
                       int64_t outputs) {
  Tensor y = at::zeros({read.token.size(0), outputs}, met.options());
  const std::vector<FilterPiece> pieces = expert_pieces(read.offsets);
  AT_DISPATCH_FLOATING_TYPES(met.scalar_type(), "filter_experts", [&] {
    const Tensor terms = coefficients<scalar_t>(met, b, outputs);
    const auto* const of_experts = terms.const_data_ptr<scalar_t>();
    auto* const to = y.mutable_data_ptr<scalar_t>();
    const auto use = [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const FilterPiece& piece = pieces[i];
        add_values_of(rows_of<scalar_t>(piece, read, met, outputs,
                                        of_experts + piece.expert * terms.stride(0)),
                      to + piece.begin * outputs);
      }
    };
    at::parallel_for(0, static_cast<int64_t>(pieces.size()), kPiecesOfTask, use);
  });
  return y;
}

std::tuple<Tensor, Tensor> cubic_multiples_backward(const Tensor& grad, const MultiplesRead& read,
                                                    const Tensor& met, const Tensor& b) {
  const int64_t outputs = grad.size(1), directions = met.size(1), filters = met.size(2);
  const std::vector<FilterPiece> pieces = expert_pieces(read.offsets);
  const int64_t terms = (directions + 1) * outputs * kPowers;
  std::vector<double> of_pieces(pieces.size() * static_cast<size_t>(terms), 0.0);
  std::vector<double> of_experts(static_cast<size_t>(met.size(0) * terms), 0.0);
  std::vector<double> of_biases(static_cast<size_t>(b.numel()), 0.0);
  Tensor grad_met = at::empty(met.sizes(), met.options()), grad_b = at::empty_like(b);
  AT_DISPATCH_FLOATING_TYPES(met.scalar_type(), "filter_experts_backward", [&] {
    const auto* const from = grad.const_data_ptr<scalar_t>();
    const auto use = [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        add_gradients_of(
            rows_of<scalar_t>(pieces[i], read, met, outputs, of_pieces.data() + i * terms),
            from + pieces[i].begin * outputs);
      }
    };
    at::parallel_for(0, static_cast<int64_t>(pieces.size()), kPiecesOfTask, use);
    for (size_t i = 0; i < pieces.size(); ++i) {
      double* const to = of_experts.data() + pieces[i].expert * terms;
      const double* const piece = of_pieces.data() + i * static_cast<size_t>(terms);
      for (int64_t j = 0; j < terms; ++j) to[j] += piece[j];
    }
    for (int64_t e = 0; e < met.size(0); ++e) {
      for (int64_t k = 0; k < directions; ++k) {
        const int64_t at = (e * directions + k) * filters;
        add_filter_gradients(of_experts.data() + e * terms + k * outputs * kPowers,
                             met.const_data_ptr<scalar_t>() + at,
                             b.const_data_ptr<scalar_t>() + e * filters, outputs, filters / outputs,
                             grad_met.mutable_data_ptr<scalar_t>() + at,
                             of_biases.data() + e * filters);
      }
    }
    std::copy(of_biases.begin(), of_biases.end(), grad_b.mutable_data_ptr<scalar_t>());
  });
  return {grad_met, grad_b};
}

RestRows rest_rows(const Tensor& offsets, const Tensor& token, const Tensor& which) {
  const auto* const begins = offsets.const_data_ptr<int32_t>();
  const auto* const tokens = token.const_data_ptr<int32_t>();
  const auto* const read = which.const_data_ptr<int32_t>();
  const int64_t experts = offsets.size(0) - 1, patches = which.size(1);
  const int64_t max = static_cast<int64_t>(begins[experts]) * patches + 1;
  RestRows rest{at::zeros_like(offsets), at::empty({max}, token.options()),
                at::empty({max}, token.options())};
  auto* const to_token = rest.token.mutable_data_ptr<int32_t>();
  auto* const to_row = rest.row.mutable_data_ptr<int32_t>();
  int32_t count = 0;
  for (int64_t e = 0; e < experts; ++e) {
    for (int32_t r = begins[e]; r < begins[e + 1]; ++r) {
      const int32_t* const of_row = read + tokens[r] * patches;
      for (int64_t p = 0; p < patches; ++p) {  // without a branch, which none could foresee
        to_token[count] = -1 - of_row[p];
        to_row[count] = r;
        count += of_row[p] < 0 ? 1 : 0;
      }
    }
    rest.offsets.mutable_data_ptr<int32_t>()[e + 1] = count;
  }
  rest.token = rest.token.narrow(0, 0, count);
  rest.row = rest.row.narrow(0, 0, count);
  return rest;
}

}  // namespace moesaic::ops
