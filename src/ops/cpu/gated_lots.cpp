// SPDX-License-Identifier: Apache-2.0
#include "gated_lots.h"

#include <utility>

#include "../check.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace ops {

using at::Tensor;

void check_samples(const char* op, const Tensor& x, const Tensor& y, const Tensor& a) {
  check_shape(op, "x", x, {-1, -1});
  check_floating(op, "x", x);
  if (x.size(0) < 1) fail("{}: x must have a sample", op);
  check_shape(op, "y", y, {x.size(0)});
  check_shape(op, "regressors", a, {-1, x.size(1)});
  if (a.size(0) < 1) fail("{}: there must be a regressor", op);
  for (const auto& [name, tensor] : {std::pair{"x", &x}, {"y", &y}, {"regressors", &a}}) {
    if (!tensor->is_cpu()) fail("{}: {} must be on the CPU", op, name);
    check_same_dtype(op, name, *tensor, x);
  }
}

void check_gates(const char* op, const Tensor& w, const Tensor& a) {
  check_shape(op, "gates", w, {a.size(0) - 1, a.size(1)});
  check_same_dtype(op, "gates", w, a);
  if (!w.is_cpu()) fail("{}: gates must be on the CPU", op);
}

}  // namespace ops
}  // namespace moesaic
