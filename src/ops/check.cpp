// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "moesaic/base/error.h"

namespace moesaic::ops {
namespace {

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += shape[i] < 0 ? std::string("*") : std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace

void check_shape(const char* op, const char* name, const at::Tensor& tensor,
                 std::initializer_list<int64_t> shape) {
  const at::IntArrayRef wanted(shape);
  const at::IntArrayRef found = tensor.sizes();
  bool fits = wanted.size() == found.size();
  for (size_t i = 0; fits && i < wanted.size(); ++i) {
    fits = wanted[i] < 0 || wanted[i] == found[i];
  }
  if (!fits) {
    fail("{}: {} must have the shape {}, found {}", op, name, shape_text(wanted),
         shape_text(found));
  }
}

void check_floating(const char* op, const char* name, const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  if (type != at::kFloat && type != at::kDouble) {
    fail("{}: {} must be float32 or float64, found {}", op, name, c10::toString(type));
  }
}

void check_rows_type(const char* op, const char* name, const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  if (type == at::kBFloat16 && !tensor.is_cpu()) return;
  if (type != at::kFloat && type != at::kDouble) {
    fail("{}: {} must be float32 or float64, or bfloat16 on a GPU, found {}{}", op, name,
         c10::toString(type), tensor.is_cpu() ? " on the CPU" : "");
  }
}

void check_gate_type(const char* op, const at::Tensor& gate, const at::Tensor& rows) {
  const auto wanted = rows.scalar_type() == at::kBFloat16 ? at::kFloat : rows.scalar_type();
  if (gate.scalar_type() != wanted) {
    fail("{}: gate must be {} beside rows of {}, found {}", op, c10::toString(wanted),
         c10::toString(rows.scalar_type()), c10::toString(gate.scalar_type()));
  }
}

void check_index(const char* op, const char* name, const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kInt) {
    fail("{}: {} must be int32, found {}", op, name, c10::toString(tensor.scalar_type()));
  }
}

void check_same_dtype(const char* op, const char* name, const at::Tensor& tensor,
                      const at::Tensor& like) {
  if (tensor.scalar_type() != like.scalar_type()) {
    fail("{}: {} must be {}, found {}", op, name, c10::toString(like.scalar_type()),
         c10::toString(tensor.scalar_type()));
  }
}

}  // namespace moesaic::ops
