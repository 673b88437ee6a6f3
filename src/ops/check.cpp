// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cpu/vector_clones.h"
#include "moesaic/base/error.h"
#include "moesaic/ops/activation.h"
#include "names.h"

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

void check_values(const char* op, const char* name, const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  if (type != at::kBFloat16 && type != at::kFloat && type != at::kDouble) {
    fail("{}: {} must be bfloat16, float32 or float64, found {}", op, name, c10::toString(type));
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

void check_gate(const char* op, const at::Tensor& gate, const at::Tensor& rows) {
  const bool wider = rows.scalar_type() == at::kBFloat16 && gate.scalar_type() == at::kFloat;
  if (!wider) check_same_dtype(op, "gate", gate, rows);
}

void check_same_device(const char* op, const char* name, const at::Tensor& tensor,
                       const at::Tensor& like) {
  if (tensor.device() != like.device()) {
    fail("{}: {} must be on {}, found {}", op, name, like.device().str(), tensor.device().str());
  }
}

int64_t check_kept(const char* op, at::IntArrayRef kept, int64_t experts) {
  for (size_t i = 0; i < kept.size(); ++i) {
    const bool ascending = i == 0 || kept[i] > kept[i - 1];
    if (kept[i] < 0 || kept[i] >= experts || !ascending) {
      fail("{}: kept must be ascending expert numbers below {}, found {} at {}", op, experts,
           kept[i], i);
    }
  }
  return kept.empty() ? experts : static_cast<int64_t>(kept.size());
}

void check_capacity(const char* op, const CapacityRule& capacity) {
  if (!(capacity.factor >= 0.0) || std::isinf(capacity.factor)) {
    fail("{}: capacity_factor must be 0 (none) or a positive number, found {}", op,
         capacity.factor);
  }
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (capacity.rows < 0 || capacity.rows > kMax) {
    fail("{}: capacity must be between 0 (none) and {}, found {}", op, kMax, capacity.rows);
  }
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
  check_floating(op, "logits", logits);
  if (logits.size(1) < 1) fail("{}: logits must have at least one expert, found none", op);
}

void check_row_count(const char* op, int64_t tokens, int64_t rows) {
  if (rows > 0 && tokens > std::numeric_limits<int32_t>::max() / rows) {
    fail("{}: {} tokens x {} rows exceed the 2^31 rows of a routing", op, tokens, rows);
  }
}

namespace {

struct IndexRange {
  int32_t low, high;
};
MOESAIC_VECTOR_CLONES IndexRange range_of(const int32_t* values, int64_t count) {
  IndexRange range{values[0], values[0]};
  for (int64_t i = 0; i < count; ++i) {
    range.low = std::min(range.low, values[i]);
    range.high = std::max(range.high, values[i]);
  }
  return range;
}

}  // namespace

void check_values_between(const char* op, const char* name, const at::Tensor& index, int64_t min,
                          int64_t below) {
  if (!index.is_cpu() || index.numel() == 0) return;
  const at::Tensor values = index.contiguous();
  const auto [low, high] = range_of(values.const_data_ptr<int32_t>(), values.numel());
  if (low < min || high >= below) {
    fail("{}: {} must be between {} and {}, found {}", op, name, min, below - 1,
         low < min ? low : high);
  }
}

void check_offsets(const char* op, const char* name, const at::Tensor& offsets, int64_t bound) {
  if (!offsets.is_cpu()) return;
  const at::Tensor values = offsets.contiguous();
  const auto* value = values.const_data_ptr<int32_t>();
  int64_t descents = 0;
  for (int64_t i = 1; i < values.numel(); ++i) descents += value[i] < value[i - 1] ? 1 : 0;
  const int32_t last = value[values.numel() - 1];
  if (value[0] != 0 || descents > 0 || last > bound) {
    fail("{}: {} must ascend from 0 to at most {}, found {} to {} with {} descents", op, name,
         bound, value[0], last, descents);
  }
}

}  // namespace moesaic::ops
