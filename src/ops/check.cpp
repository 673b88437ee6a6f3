// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "moesaic/ops/activation.h"
#include "moesaic/ops/enum_names.h"

namespace moesaic::ops {
namespace {

bool any_size(const c10::SymInt& size) {
  return size.maybe_as_int() == -1;
}

std::string shape_text(c10::SymIntArrayRef shape) {
  std::vector<std::string> sizes;
  for (const c10::SymInt& size : shape) sizes.push_back(any_size(size) ? "*" : c10::str(size));
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

}  // namespace

void check_shape(const char* op, const char* name, const at::Tensor& tensor,
                 std::initializer_list<c10::SymInt> shape) {
  const c10::SymIntArrayRef found = tensor.sym_sizes();
  const bool fits =
      std::ranges::equal(shape, found, [](const c10::SymInt& wanted, const auto& size) {
        return any_size(wanted) || wanted == size;
      });
  if (!fits) {
    fail("{}: {} must have the shape {}, found {}", op, name, shape_text(shape), shape_text(found));
  }
}

void check_floating(const char* op, const char* name, const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  if (type != at::kFloat && type != at::kDouble) {
    fail("{}: {} must be float32 or float64, found {}", op, name, c10::toString(type));
  }
}

void check_values(const char* op, const char* name, const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  if (!is_half_wide(type) && type != at::kFloat && type != at::kDouble) {
    fail("{}: {} must be bfloat16, float16, float32 or float64, found {}", op, name,
         c10::toString(type));
  }
}

void check_same_dtype(const char* op, const char* name, const at::Tensor& tensor,
                      const at::Tensor& like) {
  if (tensor.scalar_type() != like.scalar_type()) {
    fail("{}: {} must be {}, found {}", op, name, c10::toString(like.scalar_type()),
         c10::toString(tensor.scalar_type()));
  }
}

void check_gate(const char* op, const at::Tensor& gate, const at::Tensor& rows) {
  const bool wider = is_half_wide(rows.scalar_type()) && gate.scalar_type() == at::kFloat;
  if (!wider) check_same_dtype(op, "gate", gate, rows);
}

void check_same_device(const char* op, const char* name, const at::Tensor& tensor,
                       const at::Tensor& like) {
  if (tensor.device() != like.device()) {
    fail("{}: {} must be on {}, found {}", op, name, like.device().str(), tensor.device().str());
  }
}

void check_like(const char* op, const char* name, const at::Tensor& tensor,
                std::initializer_list<c10::SymInt> shape, const at::Tensor& like) {
  check_shape(op, name, tensor, shape);
  check_same_dtype(op, name, tensor, like);
  check_same_device(op, name, tensor, like);
}

void check_index(const char* op, const char* name, const at::Tensor& tensor,
                 std::initializer_list<c10::SymInt> shape, const at::Tensor& like) {
  check_shape(op, name, tensor, shape);
  if (tensor.scalar_type() != at::kInt) {
    fail("{}: {} must be int32, found {}", op, name, c10::toString(tensor.scalar_type()));
  }
  check_same_device(op, name, tensor, like);
}

void check_indices(const char* op, std::initializer_list<const at::Tensor*> indices,
                   const at::Tensor& like) {
  for (const at::Tensor* const index : indices) {
    check_index(op, "each index of the routing", *index, {-1}, like);
  }
}

c10::SymInt check_kept(const char* op, at::IntArrayRef kept, const c10::SymInt& experts) {
  for (size_t i = 0; i < kept.size(); ++i) {
    const bool ascending = i == 0 || kept[i] > kept[i - 1];
    if (kept[i] < 0 || kept[i] >= experts || !ascending) {
      fail("{}: kept must be ascending expert numbers below {}, found {} at {}", op,
           c10::str(experts), kept[i], i);
    }
  }
  return kept.empty() ? experts : c10::SymInt(static_cast<int64_t>(kept.size()));
}

void check_rows(const char* op, const char* name, const c10::SymInt& rows) {
  const auto count = rows.maybe_as_int();
  if (count && *count < 0) fail("{}: {} must not be negative: {}", op, name, *count);
}

void check_capacity(const char* op, const CapacityRule& capacity) {
  if (!(capacity.factor >= 0.0) || std::isinf(capacity.factor)) {
    fail("{}: capacity_factor must be 0 (none) or a positive number, found {}", op,
         capacity.factor);
  }
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  check_enum(op, "capacity_rounding", static_cast<int64_t>(capacity.rounding),
             capacity_rounding_names());
  if (capacity.multiple_of < 1 || capacity.multiple_of > kMax) {
    fail("{}: capacity_multiple_of must be between 1 and {}, found {}", op, kMax,
         capacity.multiple_of);
  }
}

void check_activation(const char* op, int64_t activation) {
  if (activation < 0 || activation >= static_cast<int64_t>(kActivationNames.size())) {
    fail("{}: activation {} is unknown; choose 0 to {} ({})", op, activation,
         kActivationNames.size() - 1, fmt::join(kActivationNames, ", "));
  }
}

void check_logits(const char* op, const at::Tensor& logits) {
  check_shape(op, "logits", logits, {-1, -1});
  check_values(op, "logits", logits);  // halves are halves_in_float32() by now
  if (logits.sym_size(1) < 1) fail("{}: logits must have at least one expert, found none", op);
}

void check_row_count(const char* op, const c10::SymInt& tokens, const c10::SymInt& rows) {
  const auto of_tokens = rows.maybe_as_int(), count = tokens.maybe_as_int();
  if (!of_tokens || !count) return;  // The kernel checks the numbers that symbols stand for.
  if (*of_tokens > 0 && *count > std::numeric_limits<int32_t>::max() / *of_tokens) {
    fail("{}: {} tokens x {} rows exceed the 2^31 rows of a routing", op, *count, *of_tokens);
  }
}

void check_values_between(const char* op, const char* name, const at::Tensor& index, int64_t min,
                          const c10::SymInt& below) {
  if (!index.is_cpu() || index.numel() == 0) return;
  const int64_t end = below.expect_int();
  const auto [lowest, highest] = index.aminmax();
  const int64_t low = lowest.item<int64_t>(), high = highest.item<int64_t>();
  if (low < min || high >= end) {
    fail("{}: {} must be between {} and {}, found {}", op, name, min, end - 1,
         low < min ? low : high);
  }
}

void check_offsets(const char* op, const char* name, const at::Tensor& offsets,
                   const c10::SymInt& bound) {
  if (!offsets.is_cpu()) return;
  const at::Tensor values = offsets.contiguous();
  const auto* value = values.const_data_ptr<int32_t>();
  int64_t descents = 0;
  for (int64_t i = 1; i < values.numel(); ++i) descents += value[i] < value[i - 1] ? 1 : 0;
  const int32_t last = value[values.numel() - 1];
  if (value[0] != 0 || descents > 0 || last > bound.expect_int()) {
    fail("{}: {} must ascend from 0 to at most {}, found {} to {} with {} descents", op, name,
         bound.expect_int(), value[0], last, descents);
  }
}

}  // namespace moesaic::ops
