// SPDX-License-Identifier: Apache-2.0
#include "tensor_file.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "moesaic/base/error.h"

namespace moesaic {

const DtypeMap& floating_dtypes() {
  static const DtypeMap list = {{"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}};
  return list;
}

const DtypeMap& integer_dtypes() {
  static const DtypeMap list = {{"I64", at::kLong},
                                {"I32", at::kInt},
                                {"I16", at::kShort},
                                {"I8", at::kChar},
                                {"U8", at::kByte}};
  return list;
}

const DtypeMap& number_dtypes() {
  static const DtypeMap list = [] {
    DtypeMap all = floating_dtypes();
    all.insert(integer_dtypes().begin(), integer_dtypes().end());
    all["F64"] = at::kDouble;
    return all;
  }();
  return list;
}

at::Tensor read_tensor(const safetensors::File& file, const std::string& path,
                       const std::string& name, std::size_t dims, const DtypeMap& dtypes) {
  const safetensors::Entry* entry = file.find(name);
  if (entry == nullptr) fail("{}: tensor '{}' is missing", path, name);
  if (entry->shape.size() != dims) {
    fail("{}: tensor '{}' must have {}, found shape [{}]", path, name,
         dims == 1 ? "one dimension" : "two dimensions", fmt::join(entry->shape, ", "));
  }
  if (std::find(entry->shape.begin(), entry->shape.end(), 0) != entry->shape.end()) {
    fail("{}: tensor '{}' is empty: [{}]", path, name, fmt::join(entry->shape, ", "));
  }
  const auto dtype = dtypes.find(entry->dtype);
  if (dtype == dtypes.end()) {
    std::vector<std::string> names;
    for (const auto& [known, unused] : dtypes) names.push_back(known);
    fail("{}: tensor '{}' must be one of {}, found {}", path, name, fmt::join(names, ", "),
         entry->dtype);
  }
  at::Tensor tensor = at::empty(entry->shape, at::TensorOptions(dtype->second));
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
