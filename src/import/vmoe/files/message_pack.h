// SPDX-License-Identifier: Apache-2.0
// Reads MessagePack from untrusted bytes and writes it, one object at a time. The caller of the
// reader states what must come next, so nothing is built from the file's own structure.
#pragma once

#include <span>

#include "moesaic/base/error.h"

namespace moesaic::message_pack {

/// With the numbers of libmpack's tokens.
enum class Kind {
  nil = 1,
  boolean,
  natural,
  negative,
  real,
  chunk,
  array,
  map,
  binary,
  string,
  extension
};

/// Cursor over bytes that it does not own. Every call checks that the result lies within them;
/// numbers of elements are at most what the remaining bytes can hold. Throws Error (failure) with
/// the file and the byte offset otherwise.
class Input {
 public:
  /// `file` must outlive the object; `position` is the offset of `bytes` in the file.
  Input(std::span<const std::byte> bytes, const std::string& file, uint64_t position = 0)
      : bytes_(bytes), file_(&file), position_(position) {}

  /// Sets the array that later errors also name. The text must outlive the object.
  void set_array(std::string_view name) { array_ = name; }

  Kind peek(std::string_view what) const { return look(what).kind; }
  uint64_t array(std::string_view what) { return counted(Kind::array, what, 1, "elements"); }
  uint64_t map(std::string_view what) { return counted(Kind::map, what, 2, "keys"); }
  void array_of(uint64_t count, std::string_view what);
  uint64_t natural(std::string_view what) { return take(Kind::natural, what).value; }
  /// Returns a natural number that an int64_t holds.
  int64_t size(std::string_view what);
  bool boolean(std::string_view what) { return take(Kind::boolean, what).value != 0; }
  void nil(std::string_view what) { take(Kind::nil, what); }
  std::string_view string(std::string_view what);
  std::span<const std::byte> binary(std::string_view what);
  /// Each returns a cursor over the objects within binary data, or an extension of this type.
  Input packed(std::string_view what) { return inside(binary(what)); }
  Input extension(int type, std::string_view what);

  /// Throws Error (failure) if any bytes are left.
  void end(std::string_view what) const;

  /// Returns the offset of the next object in the file, in bytes.
  uint64_t position() const noexcept { return position_; }

  template <class... A>
  [[noreturn]] void refuse(uint64_t position, fmt::format_string<A...> format, A&&... a) const {
    fail("{}: byte {}: {}{}", *file_, position,
         array_.empty() ? "" : fmt::format("array {}: ", printable(array_)),
         fmt::format(format, std::forward<A>(a)...));
  }

 private:
  struct Token {
    Kind kind = Kind::nil;
    uint64_t value = 0;  // Number, element count, or length in bytes.
    int type = 0;        // Type of an extension.
    std::size_t size = 0;
  };

  Token look(std::string_view what) const;
  Token take(Kind kind, std::string_view what);
  uint64_t counted(Kind kind, std::string_view what, uint64_t least_bytes, const char* unit);
  std::span<const std::byte> take_bytes(uint64_t count, std::string_view what);
  Input inside(std::span<const std::byte> body) const;  // `body` was taken last.

  std::span<const std::byte> bytes_;
  const std::string* file_;
  std::string_view array_;
  uint64_t position_;
};

/// Appends objects to a buffer, each in its shortest encoding.
class Output {
 public:
  Output& array(uint64_t count) { return put(Kind::array, count); }
  Output& map(uint64_t count) { return put(Kind::map, count); }
  Output& natural(uint64_t value) { return put(Kind::natural, value); }
  Output& boolean(bool value) { return put(Kind::boolean, value ? 1 : 0); }
  Output& nil() { return put(Kind::nil, 0); }
  Output& string(std::string_view text) { return put(Kind::string, text.size()).add(text); }
  Output& binary(std::string_view body) { return binary_header(body.size()).add(body); }
  Output& extension(int type, std::string_view body) {
    return extension_header(type, body.size()).add(body);
  }
  /// Appends only the header; `length` bytes of body must follow.
  Output& binary_header(uint64_t length) { return put(Kind::binary, length); }
  Output& extension_header(int type, uint64_t length) { return put(Kind::extension, length, type); }

  const std::string& text() const noexcept { return text_; }

 private:
  Output& put(Kind kind, uint64_t value, int type = 0);
  Output& add(std::string_view text) {
    text_ += text;
    return *this;
  }

  std::string text_;
};

}  // namespace moesaic::message_pack
