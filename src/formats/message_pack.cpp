// SPDX-License-Identifier: Apache-2.0
#include "message_pack.h"

// This C header would redefine `bool` as a macro.
extern "C" {
#define bool bool
#include <mpack.h>
#undef bool
}

#include <array>
#include <cstdint>

namespace moesaic::message_pack {
namespace {

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::nil:
      return "nil";
    case Kind::boolean:
      return "a boolean";
    case Kind::natural:
      return "a whole number from 0";
    case Kind::negative:
      return "a negative number";
    case Kind::real:
      return "a fraction";
    case Kind::array:
      return "an array";
    case Kind::map:
      return "a map";
    case Kind::binary:
      return "binary data";
    case Kind::string:
      return "a string";
    case Kind::extension:
      return "an extension";
  }
  return "something else";
}

Kind kind_of(mpack_token_type_t type) {
  switch (type) {
    case MPACK_TOKEN_NIL:
      return Kind::nil;
    case MPACK_TOKEN_BOOLEAN:
      return Kind::boolean;
    case MPACK_TOKEN_UINT:
      return Kind::natural;
    case MPACK_TOKEN_SINT:
      return Kind::negative;
    case MPACK_TOKEN_FLOAT:
    case MPACK_TOKEN_CHUNK:  // Cannot occur: every look() starts anew.
      return Kind::real;
    case MPACK_TOKEN_ARRAY:
      return Kind::array;
    case MPACK_TOKEN_MAP:
      return Kind::map;
    case MPACK_TOKEN_BIN:
      return Kind::binary;
    case MPACK_TOKEN_STR:
      return Kind::string;
    case MPACK_TOKEN_EXT:
      return Kind::extension;
  }
  return Kind::real;
}

bool is_number(Kind kind) {
  return kind == Kind::natural || kind == Kind::boolean;
}

uint64_t number_of(const mpack_token_t& token) {
  return uint64_t{token.data.value.hi} << 32 | token.data.value.lo;
}

void append_token(std::string& text, const mpack_token_t& token) {
  std::array<char, MPACK_MAX_TOKEN_LEN> piece;
  char* end = piece.data();
  std::size_t room = piece.size();
  mpack_tokbuf_t state;
  mpack_tokbuf_init(&state);
  mpack_write(&state, &end, &room, &token);
  text.append(piece.data(), piece.size() - room);
}

mpack_uint32_t length32(uint64_t length) {
  if (length > UINT32_MAX) fail("MessagePack cannot hold {} elements or bytes", length);
  return static_cast<mpack_uint32_t>(length);
}

}  // namespace

Input::Token Input::look(std::string_view what) const {
  const char* next = reinterpret_cast<const char*>(bytes_.data());
  std::size_t left = bytes_.size();
  mpack_tokbuf_t state;
  mpack_tokbuf_init(&state);
  mpack_token_t token{};
  const int result = left == 0 ? int{MPACK_EOF} : mpack_read(&state, &next, &left, &token);
  if (result == MPACK_EOF) refuse(position_, "truncated: {} expected", what);
  if (result != MPACK_OK) refuse(position_, "{} expected, found no MessagePack", what);
  const Kind kind = kind_of(token.type);
  return {.kind = kind,
          .value = is_number(kind) ? number_of(token) : token.length,
          .type = kind == Kind::extension ? token.data.ext_type : 0,
          .size = bytes_.size() - left};
}

Input::Token Input::take(Kind kind, std::string_view what) {
  const Token token = look(what);
  if (token.kind != kind) {
    refuse(position_, "{} must be {}, found {}", what, kind_name(kind), kind_name(token.kind));
  }
  bytes_ = bytes_.subspan(token.size);
  position_ += token.size;
  return token;
}

std::span<const std::byte> Input::take_bytes(uint64_t count, std::string_view what) {
  if (count > bytes_.size()) {
    refuse(position_, "truncated: {} needs {} bytes, found {}", what, count, bytes_.size());
  }
  const auto taken = bytes_.first(count);
  bytes_ = bytes_.subspan(count);
  position_ += count;
  return taken;
}

Kind Input::peek(std::string_view what) const {
  return look(what).kind;
}

uint64_t Input::array(std::string_view what) {
  const uint64_t start = position_;
  const uint64_t count = take(Kind::array, what).value;
  if (count > bytes_.size()) {
    refuse(start, "truncated: {} would have {} elements in {} bytes", what, count, bytes_.size());
  }
  return count;
}

void Input::array_of(uint64_t count, std::string_view what) {
  const uint64_t start = position_;
  const uint64_t found = array(what);
  if (found != count) refuse(start, "{} must have {} elements, found {}", what, count, found);
}

uint64_t Input::map(std::string_view what) {
  const uint64_t start = position_;
  const uint64_t count = take(Kind::map, what).value;
  if (count > bytes_.size() / 2) {
    refuse(start, "truncated: {} would have {} keys in {} bytes", what, count, bytes_.size());
  }
  return count;
}

uint64_t Input::natural(std::string_view what) {
  return take(Kind::natural, what).value;
}

bool Input::boolean(std::string_view what) {
  return take(Kind::boolean, what).value != 0;
}

void Input::nil(std::string_view what) {
  take(Kind::nil, what);
}

std::string_view Input::string(std::string_view what) {
  const auto text = take_bytes(take(Kind::string, what).value, what);
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

std::span<const std::byte> Input::binary(std::string_view what) {
  return take_bytes(take(Kind::binary, what).value, what);
}

Extension Input::extension(std::string_view what) {
  const uint64_t start = position_;
  const Token token = take(Kind::extension, what);
  return {.type = token.type, .position = start, .body = take_bytes(token.value, what)};
}

Input Input::inside(std::span<const std::byte> body) const {
  // The body lies directly before the remaining bytes.
  const auto back = static_cast<uint64_t>(bytes_.data() - body.data());
  Input input(body, *file_, position_ - back);
  input.array_ = array_;
  return input;
}

void Input::end(std::string_view what) const {
  if (!bytes_.empty()) refuse(position_, "{} bytes behind {}", bytes_.size(), what);
}

Output& Output::array(uint64_t count) {
  append_token(text_, mpack_pack_array(length32(count)));
  return *this;
}

Output& Output::map(uint64_t count) {
  append_token(text_, mpack_pack_map(length32(count)));
  return *this;
}

Output& Output::natural(uint64_t value) {
  append_token(text_, mpack_pack_uint(value));
  return *this;
}

Output& Output::boolean(bool value) {
  append_token(text_, mpack_pack_boolean(value ? 1 : 0));
  return *this;
}

Output& Output::nil() {
  append_token(text_, mpack_pack_nil());
  return *this;
}

Output& Output::string(std::string_view text) {
  append_token(text_, mpack_pack_str(length32(text.size())));
  text_ += text;
  return *this;
}

Output& Output::binary(std::string_view body) {
  binary_header(body.size());
  text_ += body;
  return *this;
}

Output& Output::extension(int type, std::string_view body) {
  extension_header(type, body.size());
  text_ += body;
  return *this;
}

Output& Output::binary_header(uint64_t length) {
  append_token(text_, mpack_pack_bin(length32(length)));
  return *this;
}

Output& Output::extension_header(int type, uint64_t length) {
  append_token(text_, mpack_pack_ext(type, length32(length)));
  return *this;
}

}  // namespace moesaic::message_pack
