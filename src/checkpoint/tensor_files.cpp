// SPDX-License-Identifier: Apache-2.0
// Files of tensors: how their entries make up tensors first, then the tensors themselves.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "manifest.h"
#include "moesaic/base/checked_math.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"

namespace moesaic {

struct TensorIndex {
  Value metadata;
  std::map<std::string, std::string> weight_map;
};

void describe(auto& f, TensorIndex& c) {
  f("metadata", c.metadata, "total_size and further entries of the writer");
  f("weight_map", c.weight_map, "file of each tensor", required);
}

namespace {

constexpr const char* kFileSuffix = ".safetensors";
constexpr const char* kIndexSuffix = ".safetensors.index.json";

std::string name_of(const fs::path& path) {
  return path.filename().string();
}

std::string form_of(const TensorPiece& piece) {
  return fmt::format("{} [{}]", piece.entry.dtype, fmt::join(piece.entry.shape, ", "));
}

/// Returns whether two slices may be of one tensor.
bool alike(const safetensors::Entry& a, const safetensors::Entry& b) {
  return a.dtype == b.dtype && a.shape.size() == b.shape.size() &&
         std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1);
}

void check_rows(const TensorSlice& slice, const TensorPiece& piece) {
  const std::vector<int64_t>& shape = piece.entry.shape;
  if (!shape.empty() && shape[0] == slice.end - slice.first) return;
  fail("{}: tensor {}: its name says {} rows, it is {}", piece.path.string(),
       printable(piece.entry.name), slice.end - slice.first, form_of(piece));
}

/// Pieces of one tensor by their first rows; the one that is whole has kUnsliced.
using Pieces = std::multimap<int64_t, TensorPiece>;
constexpr int64_t kUnsliced = -1;

/// Makes one tensor of slices. `from` is what lists their files.
StoredTensor joined(const std::string& name, Pieces slices, const fs::path& from) {
  const TensorPiece& model = slices.begin()->second;
  StoredTensor tensor{name, model.entry.dtype, model.entry.shape, {}};
  int64_t end = 0;
  for (auto& [first, piece] : slices) {
    const TensorSlice slice = parse_slice(piece.entry.name).value();
    check_rows(slice, piece);
    if (first != end) {
      fail("{}: slices of tensor {} {}: after row {} comes {} in '{}'", from.string(),
           printable(name), first > end ? "leave a gap" : "overlap", end,
           printable(piece.entry.name), name_of(piece.path));
    }
    if (!tensor.pieces.empty() && !alike(piece.entry, tensor.pieces.front().entry)) {
      fail("{}: slices of tensor {} differ: '{}' has {}, '{}' has {}", from.string(),
           printable(name), name_of(tensor.pieces.front().path), form_of(tensor.pieces.front()),
           name_of(piece.path), form_of(piece));
    }
    end = slice.end;
    tensor.pieces.push_back(std::move(piece));
  }
  tensor.shape[0] = end;
  return tensor;
}

/// Returns all tensors, by name. Names of the pieces differ.
std::vector<StoredTensor> joined(std::vector<TensorPiece> pieces, const fs::path& from) {
  std::map<std::string, Pieces> found;
  for (TensorPiece& piece : pieces) {
    const TensorSlice slice =
        parse_slice(piece.entry.name).value_or(TensorSlice{piece.entry.name, kUnsliced});
    found[slice.name].emplace(slice.first, std::move(piece));
  }
  std::vector<StoredTensor> tensors;
  for (auto& [name, parts] : found) {
    auto& [first, whole] = *parts.begin();
    if (first != kUnsliced) {
      tensors.push_back(joined(name, std::move(parts), from));
      continue;
    }
    if (parts.size() > 1) {
      const TensorPiece& slice = std::next(parts.begin())->second;
      fail("{}: tensor {} is whole in '{}' and as {} in '{}'", from.string(), printable(name),
           name_of(whole.path), printable(slice.entry.name), name_of(slice.path));
    }
    tensors.push_back({name, whole.entry.dtype, whole.entry.shape, {std::move(whole)}});
  }
  return tensors;
}

std::vector<TensorPiece> pieces_of(const fs::path& path) {
  const auto file = std::make_shared<const safetensors::File>(path);
  std::vector<TensorPiece> pieces;
  for (const safetensors::Entry& entry : file->entries()) pieces.push_back({file, entry, path});
  return pieces;
}

TensorFiles open_file_of_tensors(const fs::path& path) {
  TensorFiles opened{{path}, {}};
  for (TensorPiece& piece : pieces_of(path)) {
    if (opened.metadata.empty()) opened.metadata = piece.file->metadata();
    opened.tensors.push_back({piece.entry.name, piece.entry.dtype, piece.entry.shape, {piece}});
  }
  return opened;
}

/// Checks that an index says of a file's tensors that they are in it.
void check_listed(const std::vector<TensorPiece>& pieces, const fs::path& index,
                  const std::map<std::string, std::string>& weight_map) {
  for (const TensorPiece& piece : pieces) {
    const auto listed = weight_map.find(piece.entry.name);
    if (listed == weight_map.end()) {
      fail("{}: tensor {} is not listed in '{}'", piece.path.string(), printable(piece.entry.name),
           name_of(index));
    }
    if (listed->second != name_of(piece.path)) {
      fail("{}: tensor {} is in '{}' too, where '{}' has it", piece.path.string(),
           printable(piece.entry.name), listed->second, name_of(index));
    }
  }
}

TensorFiles open_index(const fs::path& index) {
  const auto weight_map = read_index(index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) {
    if (!names.insert(file).second || path_exists(index.parent_path() / file)) continue;
    fail("{}: '{}' is not there", index.string(), file);
  }
  TensorFiles opened;
  std::vector<TensorPiece> all;
  for (const std::string& name : names) {
    const fs::path path = index.parent_path() / name;
    std::vector<TensorPiece> pieces = pieces_of(path);
    check_listed(pieces, index, weight_map);
    opened.paths.push_back(path);
    std::move(pieces.begin(), pieces.end(), std::back_inserter(all));
  }
  if (all.size() < weight_map.size()) {
    std::set<std::string> present;
    for (const TensorPiece& piece : all) present.insert(piece.entry.name);
    for (const auto& [tensor, file] : weight_map) {
      if (present.contains(tensor)) continue;
      fail("{}: tensor {} is not in '{}'", index.string(), printable(tensor), file);
    }
  }
  opened.tensors = joined(std::move(all), index);
  return opened;
}

constexpr std::pair<const char*, at::ScalarType> kDtypes[] = {
    {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf},  {"BF16", at::kBFloat16},
    {"I64", at::kLong},   {"I32", at::kInt},   {"I16", at::kShort}, {"I8", at::kChar},
    {"U8", at::kByte},    {"BOOL", at::kBool}};

at::ScalarType type_of(const std::string& dtype, const std::string& where) {
  for (const auto& [name, type] : kDtypes) {
    if (dtype == name) return type;
  }
  fail("{}: dtype {} is not supported", where, dtype);
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

/// Converts types of two bytes to float32, exactly: networks are made of float32.
at::Tensor halves_in_float32(at::Tensor tensor) {
  const bool half = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
  return half ? tensor.to(at::kFloat) : std::move(tensor);
}

TensorMap tensors_of(const fs::path& path, auto make) {
  TensorMap tensors;
  for (const StoredTensor& stored : open_tensors(path).tensors) {
    tensors[stored.name] = make(stored, checked_type(stored));
  }
  return tensors;
}

}  // namespace

bool is_index(const fs::path& path) {
  return name_of(path).ends_with(kIndexSuffix);
}

fs::path tensors_path(const fs::path& folder, const std::string& file) {
  std::error_code ignored;
  const fs::path index = folder / index_name(file);
  return !fs::exists(folder / file, ignored) && fs::exists(index, ignored) ? index : folder / file;
}

std::map<std::string, std::string> read_index(const fs::path& path) {
  TensorIndex index =
      with_errors_as_failures([&] { return parse<TensorIndex>(read_stored(path, kMaxListBytes)); });
  for (const auto& [tensor, file] : index.weight_map) {
    if (is_portable_name(file) && file.ends_with(kFileSuffix)) continue;
    fail("{}: {} must name a {} file in the same folder", path.string(), printable(file),
         kFileSuffix);
  }
  return std::move(index.weight_map);
}

TensorFiles open_tensors(const fs::path& path) {
  return is_index(path) ? open_index(path) : open_file_of_tensors(path);
}

Json checked_index(const fs::path& folder, const std::vector<std::string>& names) {
  std::map<std::string, std::string> weight_map;
  std::vector<TensorPiece> all;
  uint64_t bytes = 0;
  for (const std::string& name : names) {
    for (TensorPiece& piece : pieces_of(folder / name)) {
      const auto [listed, fresh] = weight_map.emplace(piece.entry.name, name);
      if (!fresh) {
        fail("{}: tensor {} is in '{}' and in '{}'", folder.string(), printable(piece.entry.name),
             listed->second, name);
      }
      bytes += piece.entry.end - piece.entry.begin;
      all.push_back(std::move(piece));
    }
  }
  joined(std::move(all), folder);
  return {{"metadata", {{"total_size", bytes}}}, {"weight_map", weight_map}};
}

uint64_t file_bytes(const std::vector<fs::path>& paths) {
  uint64_t bytes = 0;
  for (const fs::path& path : paths) bytes += fs::file_size(path);
  return bytes;
}

const char* dtype_name(at::ScalarType type, const std::string& where) {
  for (const auto& [name, known] : kDtypes) {
    if (type == known) return name;
  }
  fail("{}: dtype {} is not supported", where, c10::toString(type));
}

void check_tensor_file(const fs::path& path, const std::string& others) {
  if (path.extension() == ".safetensors") return;
  try {
    const safetensors::File header(path);
  } catch (const Error& error) {
    const std::string kind = path.string() + ": not a safetensors file";
    if (others.empty() || !std::string_view(error.what()).starts_with(kind)) {
      fail_usage("{}", error.what());
    }
    fail_usage("{}, nor {}", kind, others);
  }
}

TensorMap read_tensors(const fs::path& path) {
  return tensors_of(path, copied);
}

TensorMap read_weights(const fs::path& path, bool mmap) {
  return tensors_of(path, [&](const StoredTensor& stored, at::ScalarType type) {
    return halves_in_float32(mmap ? mapped(stored, type) : copied(stored, type));
  });
}

FileContent write_tensors(const fs::path& path, const TensorMap& tensors,
                          const std::map<std::string, std::string>& metadata,
                          std::function<void()> progress,
                          const std::function<at::Tensor(const std::string& name)>& make) {
  std::vector<safetensors::Item> items;
  for (const auto& [name, shape] : tensors) {
    const std::string where = path.string() + ": " + name;
    if (!shape.defined()) fail("{}: the tensor is undefined", where);
    if (shape.layout() != at::kStrided) fail("{}: only dense tensors can be stored", where);
    items.push_back({name, dtype_name(shape.scalar_type(), where), shape.sizes().vec()});
  }
  at::Tensor held;  // Owns the bytes until the next tensor.
  const auto bytes_of = [&](const safetensors::Item& item) {
    held.reset();  // Freed before the next one is allocated.
    held = (make ? make(item.name) : tensors.at(item.name)).detach().to(at::kCPU).contiguous();
    return std::span(static_cast<const std::byte*>(held.const_data_ptr()), held.nbytes());
  };
  return safetensors::write_streamed(path, std::move(items), bytes_of, metadata,
                                     std::move(progress));
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
