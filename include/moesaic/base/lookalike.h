// SPDX-License-Identifier: Apache-2.0
// Names that differ and look the same: composed and decomposed letters (NFC, NFD), spaces of other
// kinds, letters of other alphabets, marks without a width.
#pragma once

#include <string>
#include <string_view>

namespace moesaic {

/// Returns whether two different texts may look the same. It is a guess for messages, made without
/// Unicode's tables: letters beyond ASCII count as alike where only one of both is ASCII or only
/// one of both is composed, as long as at least half of all letters are equal.
bool looks_alike(std::string_view a, std::string_view b);

/// Returns the text with every character beyond ASCII as its code point: caf\u{e9}.
std::string spelled_out(std::string_view text);

}  // namespace moesaic
