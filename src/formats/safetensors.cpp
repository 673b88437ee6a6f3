// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "moesaic/base/checked.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/text.h"
#include "safetensors_header.h"
#include "zip.h"

namespace moesaic::safetensors {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are mapped as they lie there");

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kAlignment = 8;

struct Dtype {
  std::string_view name;
  std::size_t size;
};
constexpr Dtype kDtypes[] = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
                             {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U64", 8},  {"U32", 4},
                             {"U16", 2}, {"U8", 1},  {"BOOL", 1}};

std::optional<std::size_t> find_dtype(std::string_view dtype) {
  for (const auto& [name, size] : kDtypes) {
    if (name == dtype) return size;
  }
  return std::nullopt;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Returns the size of a tensor in bytes; nullopt on overflow. Dimensions must not be negative.
std::optional<uint64_t> byte_count(const std::vector<int64_t>& shape, std::size_t element) {
  std::optional<uint64_t> bytes = element;
  for (const int64_t n : shape) {
    bytes = bytes ? checked_mul(*bytes, static_cast<uint64_t>(n)) : bytes;
  }
  return bytes;
}

std::string_view header_text(std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() < kLengthBytes) {
    fail("{}: not a safetensors file: expected at least {} bytes, found {}", file, kLengthBytes,
         bytes.size());
  }
  if (bytes.size() > kLengthBytes && bytes[kLengthBytes] != std::byte{'{'}) {
    fail("{}: not a safetensors file: no '{{' at byte 8", file);
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) {
    fail("{}: not a safetensors file: its header would be {} bytes long, at most {} are allowed",
         file, length, kMaxHeaderBytes);
  }
  if (length > bytes.size() - kLengthBytes) {
    fail("{}: truncated: the header needs {} bytes, found {}", file, length,
         bytes.size() - kLengthBytes);
  }
  const auto* begin = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  const std::string_view text(begin, length);
  if (!text.starts_with('{')) fail("{}: not a safetensors file: no '{{' at byte 8", file);
  return text;
}

void check_entry(const Entry& entry, const std::string& file) {
  const std::string name = printable(entry.name);
  const auto element = find_dtype(entry.dtype);
  if (!element) fail("{}: tensor {}: unknown dtype {}", file, name, printable(entry.dtype));
  if (entry.end < entry.begin) {
    fail("{}: tensor {}: data_offsets run backwards, from {} to {}", file, name, entry.begin,
         entry.end);
  }
  const auto bytes = byte_count(entry.shape, *element);
  if (!bytes || *bytes != entry.end - entry.begin) {
    fail("{}: tensor {}: {} of shape {} needs {} bytes, its data_offsets give {}", file, name,
         entry.dtype, shape_text(entry.shape), bytes ? std::to_string(*bytes) : "more than 2^64",
         entry.end - entry.begin);
  }
}

// Checks that the entries, sorted by offset, cover every byte of the data exactly once.
void check_cover(const std::vector<Entry>& entries, uint64_t data_bytes, const std::string& file) {
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != covered) {
      fail("{}: tensor {}: its data starts at byte {}, expected {} ({})", file,
           printable(entry.name), entry.begin, covered,
           entry.begin < covered ? "an overlap" : "a hole");
    }
    covered = entry.end;
  }
  if (covered > data_bytes) {
    fail("{}: truncated: the tensors need {} bytes, found {}", file, covered, data_bytes);
  }
  if (covered < data_bytes) {
    fail("{}: {} bytes behind the last tensor: expected {}, found {}", file, data_bytes - covered,
         covered, data_bytes);
  }
}

// Checks an item except its bytes and returns its size in bytes.
uint64_t checked_size(const Item& item, const std::string& file) {
  const std::string name = printable(item.name);
  if (item.name == kMetadata) fail("{}: {} is no name for a tensor", file, name);
  for (const int64_t n : item.shape) {
    if (n < 0) fail("{}: tensor {}: negative size in shape {}", file, name, shape_text(item.shape));
  }
  const auto bytes = byte_count(item.shape, dtype_size(item.dtype));
  if (!bytes) {
    fail("{}: tensor {}: {} of shape {} is too large", file, name, item.dtype,
         shape_text(item.shape));
  }
  return *bytes;
}

void check_bytes(const Item& item, std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() == checked_size(item, file)) return;
  fail("{}: tensor {}: {} of shape {} does not have {} bytes", file, printable(item.name),
       item.dtype, shape_text(item.shape), bytes.size());
}

std::string json_string(const std::string& text, const std::string& file) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    fail("{}: {} is not valid UTF-8", file, printable(text));
  }
}

std::string header_of(const std::vector<Item>& items,
                      const std::map<std::string, std::string>& metadata, const std::string& file) {
  std::vector<std::string> parts;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata) {
      pairs.push_back(json_string(key, file) + ":" + json_string(value, file));
    }
    parts.push_back(fmt::format("\"{}\":{{{}}}", kMetadata, fmt::join(pairs, ",")));
  }
  uint64_t offset = 0;
  for (const Item& item : items) {
    const uint64_t end = offset + checked_size(item, file);
    parts.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                json_string(item.name, file), item.dtype,
                                fmt::join(item.shape, ","), offset, end));
    offset = end;
  }
  std::string text = fmt::format("{{{}}}", fmt::join(parts, ","));
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return text;
}

// Returns the file, or the part of an archive that stands for it.
std::span<const std::byte> own_part(std::span<const std::byte> file, const std::string& name) {
  if (!is_zip(file)) return file;
  if (const auto found = stored_in_zip(file, kInArchive, name)) return *found;
  fail("{}: an archive without {}", name, kInArchive);
}

}  // namespace

bool File::is_archive(const std::filesystem::path& path) {
  return is_zip(MappedFile(path).bytes());
}

bool File::is_in_archive(const std::filesystem::path& path, const char* member) {
  return is_in_zip(MappedFile(path).bytes(), member, path.string());
}

File::File(const std::filesystem::path& path) : file_(path) {
  const std::string name = path.string();
  const std::span<const std::byte> bytes = own_part(file_.bytes(), name);
  const std::string_view text = header_text(bytes, name);
  Header header = parse_header(text, name);
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  for (const Entry& entry : entries_) check_entry(entry, name);
  data_ = bytes.subspan(kLengthBytes + text.size());
  check_cover(entries_, data_.size(), name);
  for (std::size_t i = 0; i < entries_.size(); ++i) by_name_.emplace(entries_[i].name, i);
}

const Entry* File::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

std::span<const std::byte> File::bytes(const Entry& entry) const {
  if (entry.begin > entry.end || entry.end > data_.size()) {
    fail_usage("safetensors: tensor {} belongs to another file", printable(entry.name));
  }
  return data_.subspan(entry.begin, entry.end - entry.begin);
}

FileContent write(const std::filesystem::path& path, std::vector<Item> items,
                  const std::map<std::string, std::string>& metadata) {
  for (const Item& item : items) check_bytes(item, item.bytes, path.string());
  return write_streamed(
      path, std::move(items), [](const Item& item) { return item.bytes; }, metadata);
}

FileContent write_streamed(const std::filesystem::path& path, std::vector<Item> items,
                           const Source& source, const std::map<std::string, std::string>& metadata,
                           std::function<void()> progress) {
  const std::string file = without_staging(path).string();
  for (const Item& item : items) checked_size(item, file);
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::pair(dtype_size(b.dtype), std::string_view(a.name)) <
           std::pair(dtype_size(a.dtype), std::string_view(b.name));
  });
  std::vector<std::string_view> names;
  for (const Item& item : items) names.push_back(item.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) fail("{}: two tensors are named {}", file, printable(*twice));

  const std::string header = header_of(items, metadata, file);
  if (header.size() > kMaxHeaderBytes) {
    fail("{}: the header would be {} bytes long, at most {} are allowed", file, header.size(),
         kMaxHeaderBytes);
  }
  const uint64_t length = header.size();
  BulkFile out(path, std::move(progress));
  out.write(std::as_bytes(std::span(&length, 1)));
  out.write(std::as_bytes(std::span(header)));
  for (const Item& item : items) {
    const std::span<const std::byte> bytes = source(item);
    check_bytes(item, bytes, file);
    out.write(bytes);
  }
  return out.commit();
}

std::size_t dtype_size(std::string_view dtype) {
  if (const auto size = find_dtype(dtype)) return *size;
  std::vector<std::string_view> known;
  for (const auto& [name, size] : kDtypes) known.push_back(name);
  fail("unknown dtype {}; choose one of {}", printable(dtype), fmt::join(known, ", "));
}

}  // namespace moesaic::safetensors
