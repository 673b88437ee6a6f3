// SPDX-License-Identifier: Apache-2.0
// Schema, checks, shape function and gradient; the kernel is cpu/cross_entropy.cpp. ATen, which is
// slow for short rows only, handles many classes and other devices.
#include "moesaic/ops/cross_entropy.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "check.h"
#include "moesaic/base/error.h"
#include "widened.h"

namespace moesaic {
namespace ops {

void check_cross_entropy(const at::Tensor& logits, const at::Tensor& labels) {
  constexpr const char* kOp = "cross_entropy";
  check_shape(kOp, "logits", logits, {-1, -1});
  check_floating(kOp, "logits", logits);
  if (logits.sym_size(1) < 1) fail("{}: there must be a class", kOp);
  check_shape(kOp, "labels", labels, {logits.sym_size(0)});
  check_same_device(kOp, "labels", labels, logits);
  if (labels.scalar_type() != at::kLong) {
    fail("{}: labels must be int64, found {}", kOp, c10::toString(labels.scalar_type()));
  }
}

namespace {

using EntropySignature = at::Tensor(const at::Tensor&, const at::Tensor&, bool);
using EntropyBackwardSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                            bool);
constexpr int64_t kFewClasses = 64;

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def("cross_entropy(Tensor logits, Tensor labels, bool twice=False) -> Tensor");
  m.def(
      "cross_entropy_backward(Tensor grad, Tensor logits, Tensor labels, bool twice=False) -> "
      "Tensor");
}

at::Tensor call_entropy(const at::Tensor& logits, const at::Tensor& labels, bool twice) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::cross_entropy", "")
                             .typed<EntropySignature>();
  return op.call(logits, labels, twice);
}

at::Tensor call_entropy_backward(const at::Tensor& grad, const at::Tensor& logits,
                                 const at::Tensor& labels, bool twice) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::cross_entropy_backward", "")
                             .typed<EntropyBackwardSignature>();
  return op.call(grad, logits, labels, twice);
}

at::Tensor entropy_meta(const at::Tensor& logits_in, const at::Tensor& labels, bool) {
  const at::Tensor logits = widened(logits_in);
  check_cross_entropy(logits, labels);
  return at::empty_symint({logits.sym_size(0)}, logits.options());
}

at::Tensor entropy_backward_meta(const at::Tensor& grad, const at::Tensor& logits,
                                 const at::Tensor& labels, bool) {
  check_cross_entropy(logits, labels);
  check_shape("cross_entropy_backward", "grad", grad, {logits.sym_size(0)});
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& labels, bool twice) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({logits, labels});
    context->saved_data["twice"] = twice;
    return call_entropy(logits, labels, twice);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const bool twice = context->saved_data["twice"].toBool();
    return {call_entropy_backward(grads[0], saved[0], saved[1], twice), {}, {}};
  }
};

at::Tensor entropy_autograd(const at::Tensor& logits_in, const at::Tensor& labels, bool twice) {
  const at::Tensor logits = widened(logits_in);
  if (at::GradMode::is_enabled() && logits.requires_grad()) {
    return CrossEntropy::apply(logits, labels, twice);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call_entropy(logits, labels, twice);
}

TORCH_LIBRARY_IMPL(moesaic, Meta, m) {
  m.impl("cross_entropy", entropy_meta);
  m.impl("cross_entropy_backward", entropy_backward_meta);
}
TORCH_LIBRARY_IMPL(moesaic, Autograd, m) {
  m.impl("cross_entropy", entropy_autograd);
  m.impl("cross_entropy_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace ops

at::Tensor cross_entropy(const at::Tensor& logits_in_NC, const at::Tensor& labels_N, bool twice) {
  const at::Tensor logits_NC = ops::widened(logits_in_NC);
  ops::check_cross_entropy(logits_NC, labels_N);
  if (logits_NC.is_cpu() && logits_NC.size(1) <= ops::kFewClasses) {
    return ops::call_entropy(logits_NC, labels_N, twice);
  }
  return at::cross_entropy_loss(twice ? logits_NC.softmax(1) : logits_NC, labels_N, {},
                                at::Reduction::None);
}

}  // namespace moesaic
