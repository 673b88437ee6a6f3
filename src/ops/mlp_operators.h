// SPDX-License-Identifier: Apache-2.0
// The operators behind a routing, which dispatch, compute and combine rows: their arguments in the
// order of the schema. check() throws Error where arguments are invalid; kernels get checked ones.
#pragma once

#include <optional>

#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/routing.h"
#include "operator.h"

namespace moesaic::ops {

using TensorIn = const at::Tensor&;
using OptionalTensor = std::optional<at::Tensor>;
using OptionalIn = const OptionalTensor&;

struct DispatchArguments {
  static constexpr const char* kName = "moesaic::dispatch";
  at::Tensor x, offsets, token, token_offsets, token_row;
};
void check(const DispatchArguments& in);
using DispatchOperator =
    Operator<DispatchArguments, at::Tensor(TensorIn, TensorIn, TensorIn, TensorIn, TensorIn)>;

struct DispatchBackwardArguments {
  static constexpr const char* kName = "moesaic::dispatch_backward";
  at::Tensor grad_rows, token_offsets, token_row;
};
void check(const DispatchBackwardArguments& in);
using DispatchBackward =
    Operator<DispatchBackwardArguments, at::Tensor(TensorIn, TensorIn, TensorIn)>;

struct CombineArguments {
  static constexpr const char* kName = "moesaic::combine";
  at::Tensor rows, gate, token_offsets, token_row;
  OptionalTensor offsets, bias;
};
void check(const CombineArguments& in);
using CombineOperator = Operator<CombineArguments, at::Tensor(TensorIn, TensorIn, TensorIn,
                                                              TensorIn, OptionalIn, OptionalIn)>;

struct CombineBackwardArguments {
  static constexpr const char* kName = "moesaic::combine_backward";
  at::Tensor grad;
  CombineArguments of;
};
void check(const CombineBackwardArguments& in);
/// Returns the gradients of the rows and the gates.
using CombineBackward =
    Operator<CombineBackwardArguments,
             std::tuple<at::Tensor, at::Tensor>(TensorIn, TensorIn, TensorIn, TensorIn, TensorIn,
                                                OptionalIn, OptionalIn)>;

struct GroupedMlpArguments {
  static constexpr const char* kName = "moesaic::grouped_mlp";
  at::Tensor rows, offsets, w1, b1, w2, b2;
  int64_t activation;
  bool keep_hidden = false, add_b2 = true;
};
void check(const GroupedMlpArguments& in);
/// Checks them but for the values of `offsets`.
void check_experts(const GroupedMlpArguments& in);
/// Returns y and `hidden`.
using GroupedMlpOperator =
    Operator<GroupedMlpArguments,
             std::tuple<at::Tensor, at::Tensor>(TensorIn, TensorIn, TensorIn, TensorIn, TensorIn,
                                                TensorIn, int64_t, bool, bool)>;

struct GroupedMlpBackwardArguments {
  static constexpr const char* kName = "moesaic::grouped_mlp_backward";
  at::Tensor grad, rows, offsets, hidden, w1, b1, w2;
  int64_t activation;
};
void check(const GroupedMlpBackwardArguments& in);
/// Gradients of the rows, w1, b1, w2 and b2.
using GroupedMlpGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using GroupedMlpBackward = Operator<GroupedMlpBackwardArguments,
                                    GroupedMlpGradients(TensorIn, TensorIn, TensorIn, TensorIn,
                                                        TensorIn, TensorIn, TensorIn, int64_t)>;

struct RoutedMlpArguments {
  static constexpr const char* kName = "moesaic::routed_mlp";
  at::Tensor x, offsets, token, gate, token_offsets, token_row, w1, b1, w2, b2;
  int64_t activation;
  bool is_packed = false;
  OptionalTensor w1_scale, w2_scale;  ///< Of int8 weights.
};
void check(const RoutedMlpArguments& in);
using RoutedMlpOperator =
    Operator<RoutedMlpArguments,
             at::Tensor(TensorIn, TensorIn, TensorIn, TensorIn, TensorIn, TensorIn, TensorIn,
                        TensorIn, TensorIn, TensorIn, int64_t, bool, OptionalIn, OptionalIn)>;

// The experts' last bias added within combine: on a device this saves a pass over all rows.

/// Returns grouped_mlp() [A, d] without b2. The gradient of b2 is nonetheless this operator's: the
/// sum over its expert's rows of what arrives, since combine_with_bias() hands it none.
at::Tensor grouped_mlp_before_bias(const at::Tensor& rows, const at::Tensor& offsets,
                                   const ExpertWeights& weights, Activation activation);

/// Returns combine() [T, d] of rows + b2 of their experts. rows: [A, d], b2: [K, d] of their dtype.
/// Throws Error where b2 requires a gradient, which is not this operator's.
at::Tensor combine_with_bias(const at::Tensor& rows, const at::Tensor& b2, const Routing& routing);

// The two ways to compute grouped_linear(), which tests compare on the CPU.

/// A GEMM per expert, after one read of the offsets.
at::Tensor linear_by_expert(const at::Tensor& rows, const at::Tensor& offsets, const at::Tensor& w,
                            const at::Tensor& b);
/// One grouped GEMM; offsets stay on the device.
at::Tensor linear_by_grouped_mm(const at::Tensor& rows, const at::Tensor& offsets,
                                const at::Tensor& w, const at::Tensor& b);

ExpertWeights pack_experts_cpu(const ExpertWeights& weights);

}  // namespace moesaic::ops
