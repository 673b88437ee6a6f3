// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <set>

namespace moesaic {

namespace {

/// Returns the number of bytes of the character at `begin`; 0 where they are not UTF-8.
size_t character_bytes(std::string_view text, size_t begin) {
  const auto byte = [&](size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
  };
  const unsigned first = byte(begin);
  if (first < 0x80u) return 1;
  // The range of the second byte excludes overlong forms, surrogates and values above U+10FFFF.
  size_t length = 0;
  unsigned low = 0x80u, high = 0xBFu;
  if (first >= 0xC2u && first <= 0xDFu) length = 2;
  if (first >= 0xE0u && first <= 0xEFu) length = 3;
  if (first >= 0xF0u && first <= 0xF4u) length = 4;
  if (first == 0xE0u) low = 0xA0u;
  if (first == 0xEDu) high = 0x9Fu;
  if (first == 0xF0u) low = 0x90u;
  if (first == 0xF4u) high = 0x8Fu;
  if (length == 0 || byte(begin + 1) < low || byte(begin + 1) > high) return 0;
  for (size_t k = 2; k < length; ++k) {
    if (begin + k >= text.size() || starts_character(text[begin + k])) return 0;
  }
  return length;
}

/// Returns whether a character is one of Unicode's controls: U+0000 to U+001F, U+007F to U+009F.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (first < 0x20u || first == 0x7Fu) return true;
  if (first == 0xC2u) return static_cast<unsigned char>(character[1]) < 0xA0u;
  // Marks that reverse the direction of what follows, and ends of lines and paragraphs.
  constexpr std::string_view kInvisible[] = {"\u200e", "\u200f", "\u2028", "\u2029", "\u202a",
                                             "\u202b", "\u202c", "\u202d", "\u202e", "\u2066",
                                             "\u2067", "\u2068", "\u2069"};
  return std::find(std::begin(kInvisible), std::end(kInvisible), character) != std::end(kInvisible);
}

std::string without_middle(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes / 2, begin = text.size() - max_bytes / 4;
  while (end > 0 && !starts_character(text[end])) --end;
  while (begin < text.size() && !starts_character(text[begin])) ++begin;
  return fmt::format("{}...{}", text.substr(0, end), text.substr(begin));
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

/// A part of an address; empty where `end` is not behind `begin`.
struct Part {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
};

/// Returns where an address names a user: from its host to the last '@' before a path.
Part user_of(std::string_view url) {
  const size_t scheme = url.find("://");
  const size_t host = scheme == url.npos ? 0 : scheme + 3;
  const size_t at = url.substr(0, url.find_first_of("/?#", host)).rfind('@');
  return at == url.npos || at < host ? Part{} : Part{host, at};
}

/// Returns the query of an address if it has a key of a token or password.
Part secret_query_of(std::string_view url) {
  const size_t begin = std::min(url.find('?'), url.size());
  std::string query(url.substr(begin));
  std::ranges::transform(query, query.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* key : {"token", "passw", "secret", "?key=", "&key=", "api_key=", "apikey="}) {
    if (query.find(key) == query.npos) continue;
    return {begin + 1, begin + std::min(query.find_first_of("'\" "), query.size())};
  }
  return {};
}

/// Returns a word of a message, with "..." for the secrets of an address in it.
std::string without_secrets(std::string word) {
  if (word.find("://") == word.npos) return word;
  for (const auto find : {secret_query_of, user_of}) {
    if (const Part part = find(word); part.size() > 0) word.replace(part.begin, part.size(), "...");
  }
  return word;
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = character_bytes(text, i);
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

std::string_view without_byte_order_mark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), starts_character));
}

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

std::string_view first_bytes(std::string_view text, size_t max_bytes) {
  size_t cut = std::min(text.size(), max_bytes);
  while (cut > 0 && cut < text.size() && !starts_character(text[cut])) --cut;
  return text.substr(0, cut);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string wrapped(const std::string& text, size_t columns, const std::string& indent) {
  std::string lines, line;
  for (const std::string& word : split(text, ' ')) {
    if (!line.empty() && count_characters(line) + 1 + count_characters(word) > columns) {
      lines += line + "\n" + indent;
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return lines + line;
}

std::string escaped(std::string_view text, std::string_view kept) {
  std::string line;
  line.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = character_bytes(text, i);
    const std::string_view character = text.substr(i, std::max<size_t>(1, length));
    const bool stays = length > 0 && (!is_control(character) || kept.find(character) != kept.npos);
    if (stays) {
      line += character;
    } else if (character == "\n") {
      line += "\\n";
    } else {
      for (const char c : character) {
        line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    }
    i += character.size();
  }
  return line;
}

std::string one_line(std::string_view text, size_t max_bytes) {
  const std::string_view shown = first_bytes(text, max_bytes);
  return escaped(shown) + (shown.size() < text.size() ? "..." : "");
}

std::string printable(std::string_view text) {
  constexpr size_t kMaxName = 80;
  return "'" + one_line(text, kMaxName) + "'";
}

std::string abridged(std::string_view message) {
  constexpr size_t kMaxWord = 200, kMaxMessage = 4000;
  if (message.size() <= kMaxWord && message.find("://") == message.npos) {
    return std::string(message);
  }
  std::vector<std::string> words = split(message, ' ');
  for (std::string& word : words) word = without_middle(without_secrets(word), kMaxWord);
  return without_middle(fmt::format("{}", fmt::join(words, " ")), kMaxMessage);
}

std::string quoted_names(std::vector<std::string> names) {
  constexpr size_t kMax = 5;
  std::sort(names.begin(), names.end());
  const bool more = names.size() > kMax;
  if (more) names.resize(kMax);
  return fmt::format("'{}'{}", fmt::join(names, "', '"), more ? ", ..." : "");
}

const std::string* repeated_name(const std::vector<std::string>& names) {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) return &name;
  }
  return nullptr;
}

std::vector<std::string> numbered(const std::string& prefix, int64_t count) {
  std::vector<std::string> names;
  for (int64_t i = 1; i <= count; ++i) names.push_back(prefix + std::to_string(i));
  return names;
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::string line;
  for (const std::string& field : fields) {
    line += (&field == &fields.front() ? "" : ",") + csv_field(field);
  }
  return line + "\n";
}

std::string count_text(int64_t count, std::string_view noun) {
  const bool ies = noun.ends_with("s") && count != 1;  // a class
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : ies ? "es" : "s");
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool has_secret(std::string_view url) {
  return user_of(url).size() > 0 || secret_query_of(url).size() > 0;
}

std::string bytes_text(double bytes) {
  if (bytes < 999.5) return fmt::format("{:.0f} B", bytes);
  constexpr std::array kUnits = {"KB", "MB", "GB", "TB", "PB", "EB"};
  double value = bytes / 1000.0;
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000.0;
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, kUnits[unit]);
}

}  // namespace moesaic
