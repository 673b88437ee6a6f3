// SPDX-License-Identifier: Apache-2.0
#include "safetensors_header.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic::safetensors {
namespace {

// What is kept of a header takes no more than a few times its bytes.
constexpr int64_t kMaxValues = 1'000'000;
constexpr std::size_t kMaxMetadata = 10'000;
constexpr std::size_t kMaxRank = 64;

// Parses the header as a stream instead of building a document: anything the format does not allow
// at a position is rejected at once, so deep nesting or many values cost nothing, and duplicate
// keys are detected.
class HeaderParser : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderParser(const std::string& file) : file_(file) {}

  Header take() { return std::move(header_); }

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
      header_.metadata[key_] = value;
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
      header_.entries.push_back(std::move(entry_));
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
  Header header_;
  Place place_ = Place::outside;
  Entry entry_;
  std::string key_;
  std::set<std::string> names_, metadata_keys_, fields_;
  std::array<uint64_t, 2> offsets_{};
  std::size_t offset_count_ = 0;
  int64_t values_ = 0;
};

}  // namespace

Header parse_header(std::string_view text, const std::string& file) {
  // The JSON library treats a NUL byte as the end and would ignore everything after it.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) {
    fail("{}: the header is not valid JSON at byte {}", file, 8 + zero);
  }
  HeaderParser parser(file);
  nlohmann::json::sax_parse(text.begin(), text.end(), &parser);
  return parser.take();
}

}  // namespace moesaic::safetensors
