// SPDX-License-Identifier: Apache-2.0
// Reads MessagePack from untrusted bytes and writes it, one object at a time. The caller of the
// reader states what must come next, so nothing is built from the file's own structure.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic::message_pack {

enum class Kind { nil, boolean, natural, negative, real, array, map, binary, string, extension };

struct Extension {
  int type = 0;  // Extension type, as an unsigned byte.
  uint64_t position = 0;
  std::span<const std::byte> body;
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

  Kind peek(std::string_view what) const;
  uint64_t array(std::string_view what);
  void array_of(uint64_t count, std::string_view what);
  uint64_t map(std::string_view what);
  uint64_t natural(std::string_view what);
  bool boolean(std::string_view what);
  void nil(std::string_view what);
  std::string_view string(std::string_view what);
  std::span<const std::byte> binary(std::string_view what);
  Extension extension(std::string_view what);

  /// Returns a cursor over what binary() or an extension returned.
  Input inside(std::span<const std::byte> body) const;
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
  std::span<const std::byte> take_bytes(uint64_t count, std::string_view what);

  std::span<const std::byte> bytes_;
  const std::string* file_;
  std::string_view array_;
  uint64_t position_;
};

/// Appends objects to a buffer, each in its shortest encoding.
class Output {
 public:
  Output& array(uint64_t count);
  Output& map(uint64_t count);
  Output& natural(uint64_t value);
  Output& boolean(bool value);
  Output& nil();
  Output& string(std::string_view text);
  Output& binary(std::string_view body);
  Output& extension(int type, std::string_view body);
  /// Appends only the header; `length` bytes of body must follow.
  Output& binary_header(uint64_t length);
  Output& extension_header(int type, uint64_t length);

  const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
};

}  // namespace moesaic::message_pack
