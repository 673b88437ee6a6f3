// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/url.h"

#include <algorithm>
#include <cctype>

namespace moesaic {
namespace {

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

}  // namespace

bool has_secret(std::string_view url) {
  return user_of(url).size() > 0 || secret_query_of(url).size() > 0;
}

std::string without_secrets(std::string word) {
  if (word.find("://") == word.npos) return word;
  for (const auto find : {secret_query_of, user_of}) {
    if (const Part part = find(word); part.size() > 0) word.replace(part.begin, part.size(), "...");
  }
  return word;
}

}  // namespace moesaic
