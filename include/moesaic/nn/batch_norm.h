// SPDX-License-Identifier: Apache-2.0
// Batch normalisation whose statistics are those of the whole batch, also where processes share it.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>

#include "moesaic/base/error.h"
#include "moesaic/nn/shares_batch.h"

namespace moesaic::nn {

/// Thrown by batch normalisation in training where a channel has a single value, which has no
/// variance.
class SingleValueError : public Error {
 public:
  SingleValueError()
      : Error(ErrorKind::usage,
              "batch normalisation in training needs more than one value of a channel") {}
};

/// Batch normalisation of x [N, C, ...] in training by the moments of all parts; the running
/// statistics move by `momentum`. A channel with a single value has no variance and is normalised
/// by the running statistics.
at::Tensor shared_batch_norm(const at::Tensor& x, const std::shared_ptr<const Group>& parts,
                             const torch::nn::BatchNormOptions& options, const at::Tensor& weight,
                             const at::Tensor& bias, const at::Tensor& running_mean,
                             const at::Tensor& running_var);

/// Batch normalisation of x [N, C, ...]; in training by shared_batch_norm() where processes share a
/// batch. Alone it throws SingleValueError.
template <class Norm>
class BatchNormImpl : public Norm, public SharesBatch {
 public:
  using Norm::Norm;

  at::Tensor forward(const at::Tensor& x) {
    const auto parts = share().parts();
    if (!parts && this->is_training() && x.numel() == x.size(1)) throw SingleValueError();
    if (!parts || !this->is_training()) return Norm::forward(x);
    this->num_batches_tracked += 1;
    return shared_batch_norm(x, parts, this->options, this->weight, this->bias, this->running_mean,
                             this->running_var);
  }
};

/// torch::nn::BatchNorm1d and BatchNorm2d for batches that processes share.
using BatchNorm1dImpl = BatchNormImpl<torch::nn::BatchNorm1dImpl>;
TORCH_MODULE(BatchNorm1d);
using BatchNorm2dImpl = BatchNormImpl<torch::nn::BatchNorm2dImpl>;
TORCH_MODULE(BatchNorm2d);

}  // namespace moesaic::nn
