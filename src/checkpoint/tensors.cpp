// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/tensors.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "moesaic/base/checked.h"
#include "moesaic/base/error.h"
#include "moesaic/base/hash.h"
#include "moesaic/formats/safetensors.h"
#include "tensor_files.h"

namespace moesaic {
namespace {

struct DtypeName {
  const char* name;
  at::ScalarType type;
};
constexpr std::array kDtypes = {DtypeName{"F64", at::kDouble}, DtypeName{"F32", at::kFloat},
                                DtypeName{"F16", at::kHalf},   DtypeName{"BF16", at::kBFloat16},
                                DtypeName{"I64", at::kLong},   DtypeName{"I32", at::kInt},
                                DtypeName{"I16", at::kShort},  DtypeName{"I8", at::kChar},
                                DtypeName{"U8", at::kByte},    DtypeName{"BOOL", at::kBool}};

at::ScalarType type_of(const std::string& dtype, const std::string& where) {
  for (const DtypeName& known : kDtypes) {
    if (dtype == known.name) return known.type;
  }
  fail("{}: dtype {} is not supported", where, dtype);
}

const char* name_of(at::ScalarType type, const std::string& where) {
  for (const DtypeName& known : kDtypes) {
    if (type == known.type) return known.name;
  }
  fail("{}: dtype {} is not supported", where, c10::toString(type));
}

/// Checks that strides do not overflow: a shape with a 0 has no bytes that bound its other sizes.
void check_strides(const std::vector<int64_t>& shape, const std::string& where) {
  uint64_t stride = 1;
  for (const int64_t size : shape) {
    const auto product = checked_mul(stride, static_cast<uint64_t>(std::max<int64_t>(size, 1)));
    if (!product || *product > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail("{}: the shape is too large", where);
    }
    stride = *product;
  }
}

at::ScalarType checked_type(const StoredTensor& tensor) {
  const std::string where = tensor.pieces.front().where();
  const at::ScalarType type = type_of(tensor.dtype, where);
  check_strides(tensor.shape, where);
  if (type != at::kBool) return type;
  for (const TensorPiece& piece : tensor.pieces) {
    const std::span<const std::byte> bytes = piece.bytes();
    if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; })) {
      fail("{}: a BOOL that is neither 0 nor 1", piece.where());
    }
  }
  return type;
}

at::Tensor copied(const StoredTensor& stored, at::ScalarType type) {
  at::Tensor tensor = at::empty(stored.shape, at::TensorOptions(type));
  auto* out = static_cast<std::byte*>(tensor.data_ptr());
  for (const TensorPiece& piece : stored.pieces) {
    const std::span<const std::byte> bytes = piece.bytes();
    if (!bytes.empty()) std::memcpy(out, bytes.data(), bytes.size());
    out += bytes.size();
  }
  return tensor;
}

/// Returns a tensor in the file's memory, which it keeps mapped; a copy where its numbers do not
/// lie as a tensor's have to.
at::Tensor mapped(const StoredTensor& stored, at::ScalarType type) {
  const TensorPiece& piece = stored.pieces.front();
  const std::span<const std::byte> bytes = piece.bytes();
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % c10::elementSize(type) == 0;
  if (stored.pieces.size() > 1 || bytes.empty() || !aligned) return copied(stored, type);
  void* const data = const_cast<std::byte*>(bytes.data());  // from_blob() takes no constant memory.
  return at::from_blob(
      data, stored.shape, [file = piece.file](void*) {}, at::TensorOptions(type));
}

/// Widens what has two bytes, exactly: networks are made of float32.
at::Tensor widened(at::Tensor tensor) {
  const bool half = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
  return half ? tensor.to(at::kFloat) : std::move(tensor);
}

template <class Make>
TensorMap tensors_of(const std::filesystem::path& path, Make make) {
  TensorMap tensors;
  for (const StoredTensor& stored : open_tensors(path).tensors) {
    tensors[stored.name] = make(stored, checked_type(stored));
  }
  return tensors;
}

}  // namespace

TensorMap read_tensors(const std::filesystem::path& path) {
  return tensors_of(path, copied);
}

TensorMap map_tensors(const std::filesystem::path& path) {
  return tensors_of(path, mapped);
}

TensorMap read_weights(const std::filesystem::path& path, bool in_file) {
  return tensors_of(path, [&](const StoredTensor& stored, at::ScalarType type) {
    return widened(in_file ? mapped(stored, type) : copied(stored, type));
  });
}

FileContent write_tensors(const std::filesystem::path& path, const TensorMap& shapes,
                          const std::function<at::Tensor(const std::string& name)>& make,
                          const std::map<std::string, std::string>& metadata,
                          std::function<void()> progress) {
  std::vector<safetensors::Item> items;
  for (const auto& [name, shape] : shapes) {
    const std::string where = path.string() + ": " + name;
    if (!shape.defined()) fail("{}: the tensor is undefined", where);
    if (shape.layout() != at::kStrided) fail("{}: only dense tensors can be stored", where);
    items.push_back({name, name_of(shape.scalar_type(), where), shape.sizes().vec(), {}});
  }
  at::Tensor held;  // Owns the bytes until the next tensor.
  const auto bytes_of = [&](const safetensors::Item& item) {
    held = make(item.name).detach().to(at::kCPU).contiguous();
    return std::span(static_cast<const std::byte*>(held.const_data_ptr()), held.nbytes());
  };
  return safetensors::write_streamed(path, std::move(items), bytes_of, metadata,
                                     std::move(progress));
}

FileContent write_tensors(const std::filesystem::path& path, const TensorMap& tensors,
                          const std::map<std::string, std::string>& metadata,
                          std::function<void()> progress) {
  const auto given = [&](const std::string& name) { return tensors.at(name); };
  return write_tensors(path, tensors, given, metadata, std::move(progress));
}

std::string hash_of(const TensorMap& tensors) {
  std::vector<std::pair<std::string, at::Tensor>> list(tensors.begin(), tensors.end());
  std::vector<std::string> hashes(list.size());
  at::parallel_for(0, std::ssize(list), 1, [&](int64_t first, int64_t last) {
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      const at::Tensor tensor = list[i].second.detach().cpu().contiguous();
      const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
      hashes[i] = list[i].first + " " + sha256_hex(std::span(data, tensor.nbytes()));
    }
  });
  Sha256 hash;
  for (const std::string& own : hashes) hash.update(std::as_bytes(std::span(own)));
  return hash.hex();
}

}  // namespace moesaic
