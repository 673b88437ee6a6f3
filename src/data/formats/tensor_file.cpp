// SPDX-License-Identifier: Apache-2.0
#include "tensor_file.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

struct Dtype {
  std::string_view name;
  at::ScalarType type;
  Numbers kind;
};
constexpr Dtype kDtypes[] = {
    {"BF16", at::kBFloat16, Numbers::floating}, {"F16", at::kHalf, Numbers::floating},
    {"F32", at::kFloat, Numbers::floating},     {"F64", at::kDouble, Numbers::any},
    {"I16", at::kShort, Numbers::integer},      {"I32", at::kInt, Numbers::integer},
    {"I64", at::kLong, Numbers::integer},       {"I8", at::kChar, Numbers::integer},
    {"U8", at::kByte, Numbers::integer}};

}  // namespace

at::Tensor read_tensor(const safetensors::File& file, const std::string& path,
                       const std::string& name, std::size_t dims, Numbers kind) {
  const safetensors::Entry* entry = file.find(name);
  if (entry == nullptr) fail("{}: tensor '{}' is missing", path, name);
  if (entry->shape.size() != dims) {
    fail("{}: tensor '{}' must have {}, found shape [{}]", path, name,
         dims == 1 ? "one dimension" : "two dimensions", fmt::join(entry->shape, ", "));
  }
  if (std::find(entry->shape.begin(), entry->shape.end(), 0) != entry->shape.end()) {
    fail("{}: tensor '{}' is empty: [{}]", path, name, fmt::join(entry->shape, ", "));
  }
  std::vector<std::string_view> allowed;
  std::optional<at::ScalarType> type;
  for (const Dtype& dtype : kDtypes) {
    if (kind != Numbers::any && dtype.kind != kind) continue;
    allowed.push_back(dtype.name);
    if (dtype.name == entry->dtype) type = dtype.type;
  }
  if (!type) {
    fail("{}: tensor '{}' must be one of {}, found {}", path, name, fmt::join(allowed, ", "),
         entry->dtype);
  }
  at::Tensor tensor = at::empty(entry->shape, at::TensorOptions(*type));
  const auto bytes = file.bytes(*entry);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

void check_finite_rows(const at::Tensor& x_Nd, const std::string& path, const std::string& name) {
  const at::Tensor finite_N = x_Nd.isfinite().all(1);
  if (finite_N.all().item<bool>()) return;
  fail("{}: tensor '{}' holds a number that is not finite in row {}", path, name,
       finite_N.to(at::kInt).argmin().item<int64_t>());
}

}  // namespace moesaic
