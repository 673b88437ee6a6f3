// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "moesaic/base/checked_math.h"
#include "moesaic/base/error.h"
#include "moesaic/base/text.h"
#include "moesaic/formats/archive.h"

namespace moesaic::safetensors {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors of files are little-endian");

constexpr std::string_view kMetadata = "__metadata__";  // The only key that is not a tensor.

using Metadata = std::map<std::string, std::string>;

// What is kept of a header takes no more than a few times its bytes.
constexpr int64_t kMaxValues = 1'000'000;
constexpr std::size_t kMaxMetadata = 10'000;
constexpr std::size_t kMaxRank = 64;

// Parses the header as a stream instead of building a document: anything the format does not allow
// at a position is rejected at once, so deep nesting or many values cost nothing, and duplicate
// keys are detected.
class HeaderParser : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderParser(const std::string& file, std::vector<Entry>& entries, Metadata& metadata)
      : file_(file), entries_(entries), metadata_(metadata) {}

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    unexpected("a fraction or huge number");
  }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    count();
    if (place_ == Place::shape) {
      if (value > INT64_MAX) refuse("{}: dimension {} is too large", current(), value);
      if (entry_.shape.size() == kMaxRank) {
        refuse("{}: more than {} dimensions", current(), kMaxRank);
      }
      entry_.shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::offsets && offset_count_ < offsets_.size()) {
      offsets_[offset_count_++] = value;
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool string(string_t& value) override {
    count();
    if (place_ == Place::metadata) {
      metadata_[key_] = value;
    } else if (place_ == Place::tensor && key_ == "dtype") {
      entry_.dtype = value;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    count();
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top && key_ == kMetadata) {
      place_ = Place::metadata;
    } else if (place_ == Place::top) {
      place_ = Place::tensor;
      entry_ = Entry{.name = key_, .dtype = {}, .shape = {}};
      fields_.clear();
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    std::set<std::string>& seen = place_ == Place::top        ? names_
                                  : place_ == Place::metadata ? metadata_keys_
                                                              : fields_;
    if (!seen.insert(name).second) refuse("duplicate key {}", printable(name));
    if (metadata_keys_.size() > kMaxMetadata) {
      refuse("__metadata__ has more than {} texts", kMaxMetadata);
    }
    const bool field = name == "dtype" || name == "shape" || name == "data_offsets";
    if (place_ == Place::tensor && !field) {
      refuse("{}: unknown key {}; a tensor has dtype, shape and data_offsets", current(),
             printable(name));
    }
    key_ = name;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field)) refuse("{}: no {}", current(), field);
      }
      entries_.push_back(std::move(entry_));
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool start_array(std::size_t) override {
    count();
    if (place_ == Place::tensor && key_ == "shape") {
      place_ = Place::shape;
    } else if (place_ == Place::tensor && key_ == "data_offsets") {
      place_ = Place::offsets;
      offset_count_ = 0;
    } else {
      unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets) {
      if (offset_count_ != offsets_.size()) refuse("{}: data_offsets need two numbers", current());
      entry_.begin = offsets_[0];
      entry_.end = offsets_[1];
    }
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    const bool encoding = std::string_view(error.what()).find("UTF-8") != std::string_view::npos;
    refuse("the header is not valid {} at byte {}", encoding ? "UTF-8" : "JSON", 8 + position);
  }

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets };

  template <class... A>
  [[noreturn]] void refuse(fmt::format_string<A...> format, A&&... arguments) {
    fail("{}: {}", file_, fmt::format(format, std::forward<A>(arguments)...));
  }

  void count() {
    if (++values_ > kMaxValues) refuse("the header has more than {} values", kMaxValues);
  }

  // Throws Error for `found`, which the format does not allow at this position.
  [[noreturn]] void unexpected(std::string_view found) {
    switch (place_) {
      case Place::outside:
        refuse("the header must be an object, found {}", found);
      case Place::top:
        refuse("{} must be an object, found {}", printable(key_), found);
      case Place::metadata:
        refuse("__metadata__ {} must be a string, found {}", printable(key_), found);
      case Place::tensor:
        refuse("{}: {} must be {}, found {}", current(), key_,
               key_ == "dtype" ? "a string" : "an array", found);
      case Place::shape:
        refuse("{}: shape must hold whole numbers from 0, found {}", current(), found);
      case Place::offsets:
        break;
    }
    refuse("{}: data_offsets must be two whole numbers from 0, found {}", current(),
           offset_count_ == offsets_.size() ? "a third" : found);
  }

  std::string current() const { return "tensor " + printable(entry_.name); }

  const std::string& file_;
  std::vector<Entry>& entries_;  // As parsed; offsets are not yet checked against the data.
  Metadata& metadata_;
  Place place_ = Place::outside;
  Entry entry_;
  std::string key_;
  std::set<std::string> names_, metadata_keys_, fields_;
  std::array<uint64_t, 2> offsets_{};
  std::size_t offset_count_ = 0;
  int64_t values_ = 0;
};

// Parses untrusted text; `file` is named in errors. Memory is proportional to the text.
void parse_header(std::string_view text, const std::string& file, std::vector<Entry>& entries,
                  Metadata& metadata) {
  // The JSON library treats a NUL byte as the end and would ignore everything after it.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) {
    fail("{}: the header is not valid JSON at byte {}", file, 8 + zero);
  }
  HeaderParser parser(file, entries, metadata);
  nlohmann::json::sax_parse(text.begin(), text.end(), &parser);
}

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
  const auto bytes = checked_product(*element, entry.shape);
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
    fail("{}: {} bytes after the last tensor: expected {}, found {}", file, data_bytes - covered,
         covered, data_bytes);
  }
}

// Checks an item except its bytes and returns its size in bytes.
uint64_t checked_size(const Item& item, const std::string& file) {
  const std::string name = printable(item.name);
  if (item.name == kMetadata) fail("{}: {} cannot be the name of a tensor", file, name);
  for (const int64_t n : item.shape) {
    if (n < 0) fail("{}: tensor {}: negative size in shape {}", file, name, shape_text(item.shape));
  }
  const auto bytes = checked_product(dtype_size(item.dtype), item.shape);
  if (!bytes) {
    fail("{}: tensor {}: {} of shape {} is too large", file, name, item.dtype,
         shape_text(item.shape));
  }
  return *bytes;
}

void check_utf8(const std::string& text, const std::string& file) {
  if (find_invalid_utf8(text)) fail("{}: {} is not valid UTF-8", file, printable(text));
}

std::string header_of(const std::vector<Item>& items,
                      const std::map<std::string, std::string>& metadata, const std::string& file) {
  nlohmann::ordered_json::object_t header;  // Appended to without a search for an equal key.
  for (const auto& [key, value] : metadata) {
    check_utf8(key, file);
    check_utf8(value, file);
  }
  if (!metadata.empty()) header.emplace_back(kMetadata, metadata);
  uint64_t offset = 0;
  for (const Item& item : items) {
    check_utf8(item.name, file);
    const std::array<uint64_t, 2> offsets = {offset, offset + checked_size(item, file)};
    header.emplace_back(
        item.name, nlohmann::ordered_json{
                       {"dtype", item.dtype}, {"shape", item.shape}, {"data_offsets", offsets}});
    offset = offsets[1];
  }
  std::string text = nlohmann::ordered_json(std::move(header)).dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return text;
}

}  // namespace

File::File(const fs::path& path) : file_(path) {
  const std::string name = path.string();
  std::span<const std::byte> bytes = file_.bytes();
  if (is_zip(bytes)) {
    const auto own_part = find_in_zip(bytes, kArchiveMember, name);
    if (!own_part) fail("{}: an archive without {}", name, kArchiveMember);
    bytes = *own_part;
  }
  const std::string_view text = header_text(bytes, name);
  parse_header(text, name, entries_, metadata_);
  std::ranges::stable_sort(entries_, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
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

FileContent write_streamed(const fs::path& path, std::vector<Item> items, const Source& source,
                           const std::map<std::string, std::string>& metadata,
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
  HashedFile out(path, std::move(progress));
  out.write(std::as_bytes(std::span(&length, 1)));
  out.write(std::as_bytes(std::span(header)));
  for (const Item& item : items) {
    const std::span<const std::byte> bytes = source(item);
    if (bytes.size() != checked_size(item, file)) {
      fail("{}: tensor {}: {} of shape {} does not have {} bytes", file, printable(item.name),
           item.dtype, shape_text(item.shape), bytes.size());
    }
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
