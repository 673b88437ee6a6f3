// SPDX-License-Identifier: Apache-2.0
#include "message_pack.h"

// This C header would redefine `bool` as a macro.
extern "C" {
#define bool bool
#include <mpack.h>
#undef bool
}

#include <array>

namespace moesaic::message_pack {
namespace {

static_assert(static_cast<int>(Kind::nil) == MPACK_TOKEN_NIL);
static_assert(static_cast<int>(Kind::extension) == MPACK_TOKEN_EXT);

// libmpack gives a chunk only where a token is continued, which nothing here does.
constexpr std::string_view kKindNames[MPACK_TOKEN_EXT + 1] = {"",
                                                              "nil",
                                                              "a boolean",
                                                              "a whole number from 0",
                                                              "a negative number",
                                                              "a fraction",
                                                              "a chunk",
                                                              "an array",
                                                              "a map",
                                                              "binary data",
                                                              "a string",
                                                              "an extension"};

std::string_view name_of(Kind kind) {
  return kKindNames[static_cast<std::size_t>(kind)];
}

bool is_number(Kind kind) {
  return kind == Kind::natural || kind == Kind::boolean;
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
  const auto kind = static_cast<Kind>(token.type);
  const auto [low, high] = token.data.value;
  return {.kind = kind,
          .value = is_number(kind) ? uint64_t{high} << 32 | low : token.length,
          .type = kind == Kind::extension ? token.data.ext_type : 0,
          .size = bytes_.size() - left};
}

Input::Token Input::take(Kind kind, std::string_view what) {
  const Token token = look(what);
  if (token.kind != kind) {
    refuse(position_, "{} must be {}, found {}", what, name_of(kind), name_of(token.kind));
  }
  bytes_ = bytes_.subspan(token.size);
  position_ += token.size;
  return token;
}

uint64_t Input::counted(Kind kind, std::string_view what, uint64_t least_bytes, const char* unit) {
  const uint64_t start = position_, count = take(kind, what).value;
  if (count > bytes_.size() / least_bytes) {
    refuse(start, "truncated: {} would have {} {} in {} bytes", what, count, unit, bytes_.size());
  }
  return count;
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

void Input::array_of(uint64_t count, std::string_view what) {
  const uint64_t start = position_, found = array(what);
  if (found != count) refuse(start, "{} must have {} elements, found {}", what, count, found);
}

int64_t Input::size(std::string_view what) {
  const uint64_t start = position_, size = natural(what);
  if (size > INT64_MAX) refuse(start, "{} {} is too large", what, size);
  return static_cast<int64_t>(size);
}

std::string_view Input::string(std::string_view what) {
  const auto text = take_bytes(take(Kind::string, what).value, what);
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

std::span<const std::byte> Input::binary(std::string_view what) {
  return take_bytes(take(Kind::binary, what).value, what);
}

Input Input::extension(int type, std::string_view what) {
  const uint64_t start = position_;
  const Token token = take(Kind::extension, what);
  const auto body = take_bytes(token.value, what);
  if (token.type != type) {
    refuse(start, "unknown extension type {}, {} has {}", token.type, what, type);
  }
  return inside(body);
}

Input Input::inside(std::span<const std::byte> body) const {
  Input input(body, *file_, position_ - body.size());
  input.array_ = array_;
  return input;
}

void Input::end(std::string_view what) const {
  if (!bytes_.empty()) refuse(position_, "{} bytes after {}", bytes_.size(), what);
}

Output& Output::put(Kind kind, uint64_t value, int type) {
  mpack_token_t token{};
  token.type = static_cast<mpack_token_type_t>(kind);
  if (is_number(kind)) {
    token.data.value = {static_cast<mpack_uint32_t>(value),
                        static_cast<mpack_uint32_t>(value >> 32)};
  } else {
    if (value > UINT32_MAX) fail("MessagePack cannot hold {} elements or bytes", value);
    token.length = static_cast<mpack_uint32_t>(value);
    token.data.ext_type = type;
  }
  std::array<char, MPACK_MAX_TOKEN_LEN> piece;
  char* end = piece.data();
  std::size_t room = piece.size();
  mpack_tokbuf_t state;
  mpack_tokbuf_init(&state);
  mpack_write(&state, &end, &room, &token);
  return add({piece.data(), piece.size() - room});
}

}  // namespace moesaic::message_pack
