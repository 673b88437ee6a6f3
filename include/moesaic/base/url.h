// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace moesaic {

/// Returns whether a web address holds a user's name or password, or a query with a token.
bool has_secret(std::string_view url);

/// Returns a word of a message, with "..." for the secrets of an address in it.
std::string without_secrets(std::string word);

}  // namespace moesaic
