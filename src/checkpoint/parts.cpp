// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/parts.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

#include "manifest.h"
#include "moesaic/base/error.h"
#include "moesaic/config/document.h"
#include "moesaic/config/schema.h"

namespace moesaic {
namespace {

/// Reads a number that is the whole text.
std::optional<int64_t> whole_number(std::string_view text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

}  // namespace

template <class Fields>
void describe(Fields& f, WrittenPart& c) {
  f("index", c.index, "of the part, from 0", required, at_least(0));
  f("count", c.count, "of parts", required, at_least(1));
  f("files", c.files, "that it wrote", required);
}

std::string slice_name(const TensorSlice& slice) {
  return fmt::format("{}[{}:{}]", slice.name, slice.first, slice.end);
}

std::optional<TensorSlice> parse_slice(std::string_view name) {
  const size_t open = name.rfind('['), colon = name.rfind(':');
  if (!name.ends_with(']') || open == name.npos || colon == name.npos || colon < open) return {};
  const auto first = whole_number(name.substr(open + 1, colon - open - 1));
  const auto end = whole_number(name.substr(colon + 1, name.size() - colon - 2));
  if (!first || !end || *first < 0 || *end <= *first) return {};
  TensorSlice slice{std::string(name.substr(0, open)), *first, *end};
  // A slice has one name, so "w[00:2]" is not another one of w[0:2].
  return slice_name(slice) == name ? std::optional(std::move(slice)) : std::nullopt;
}

std::string text_of(const WrittenPart& part) {
  return to_json(part).dump();
}

WrittenPart part_of(const std::string& text) {
  try {
    return parse<WrittenPart>(parse_stored(text, "a part of a checkpoint"));
  } catch (const Error& error) {
    throw Error(ErrorKind::failure, error.what());  // Not written by users: it is damaged.
  }
}

}  // namespace moesaic
