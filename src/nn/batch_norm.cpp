// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/batch_norm.h"

#include <torch/torch.h>

#include "moesaic/parallel/collectives.h"

namespace moesaic::nn {
namespace {

/// Returns numbers [C] as they multiply x [N, C, ...].
at::Tensor of_channels(const at::Tensor& x_C, const at::Tensor& x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[1] = x_C.size(0);
  return x_C.view(shape);
}

at::Tensor channel_sums(const at::Tensor& x) {
  return x.transpose(0, 1).flatten(1).sum(1);
}

/// Mean and biased variance of each channel of x [N, C, ...] over the batch's parts in all
/// processes, which may differ in N, and the number of values of a channel.
struct ChannelMoments {
  at::Tensor mean_C, var_C;
  double values = 0.0;
};

ChannelMoments shared_moments(const at::Tensor& x, const std::shared_ptr<const Group>& parts) {
  const int64_t channels = x.size(1);
  const at::Tensor count = at::full({1}, x.numel() / std::max<int64_t>(1, channels), x.options());
  const at::Tensor sums = sum_over(at::cat({channel_sums(x), count}), parts, Traffic::batch_norm);
  ChannelMoments moments;
  // On the meta device there is no sum to read, and every process has as many values.
  moments.values = x.is_meta() ? static_cast<double>(x.numel() / channels * parts->size())
                               : sums[channels].item<double>();
  moments.mean_C = sums.narrow(0, 0, channels) / moments.values;
  const at::Tensor squares = channel_sums((x - of_channels(moments.mean_C, x)).square());
  moments.var_C = sum_over(squares, parts, Traffic::batch_norm) / moments.values;
  return moments;
}

}  // namespace

at::Tensor shared_batch_norm(const at::Tensor& given, const std::shared_ptr<const Group>& parts,
                             const torch::nn::BatchNormOptions& options, const at::Tensor& weight,
                             const at::Tensor& bias, const at::Tensor& running_mean,
                             const at::Tensor& running_var) {
  // Convolutions of autocast give bfloat16, in which sums would be too coarse.
  const at::Tensor x = given.to(running_mean.scalar_type());
  ChannelMoments moments = shared_moments(x, parts);
  if (moments.values <= 1.0) {
    moments.mean_C = running_mean;
    moments.var_C = running_var;
  } else {
    const torch::NoGradGuard no_grad;
    const double momentum = options.momentum().value_or(0.1);
    running_mean.lerp_(moments.mean_C, momentum);
    running_var.lerp_(moments.var_C * (moments.values / (moments.values - 1.0)), momentum);
  }
  const at::Tensor scale_C = weight * (moments.var_C + options.eps()).rsqrt();
  const at::Tensor y =
      (x - of_channels(moments.mean_C, x)) * of_channels(scale_C, x) + of_channels(bias, x);
  return y.to(given.scalar_type());
}

}  // namespace moesaic::nn
