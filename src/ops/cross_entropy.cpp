// SPDX-License-Identifier: Apache-2.0
// The schema and the formula in ATen's operators, which have the gradients and the kernels of every
// device.
#include "moesaic/ops/cross_entropy.h"

#include <torch/library.h>
#include <torch/torch.h>

#include "check.h"
#include "moesaic/base/error.h"
#include "widened.h"

namespace moesaic {

at::Tensor cross_entropy(const at::Tensor& logits_in_NC, const at::Tensor& labels_N, bool twice) {
  constexpr const char* kOp = "cross_entropy";
  const at::Tensor logits_NC = ops::widened(logits_in_NC);
  ops::check_shape(kOp, "logits", logits_NC, {-1, -1});
  ops::check_floating(kOp, "logits", logits_NC);
  if (logits_NC.sym_size(1) < 1) fail("{}: there must be a class", kOp);
  ops::check_shape(kOp, "labels", labels_N, {logits_NC.sym_size(0)});
  ops::check_same_device(kOp, "labels", labels_N, logits_NC);
  if (labels_N.scalar_type() != at::kLong) {
    fail("{}: labels must be int64, found {}", kOp, c10::toString(labels_N.scalar_type()));
  }
  const at::Tensor log_p_NC = (twice ? logits_NC.softmax(1) : logits_NC).log_softmax(1);
  return log_p_NC.gather(1, labels_N.unsqueeze(1)).squeeze(1).neg();
}

namespace {

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def("cross_entropy(Tensor logits, Tensor labels, bool twice=False) -> Tensor", cross_entropy);
}

}  // namespace
}  // namespace moesaic
