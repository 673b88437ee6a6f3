// SPDX-License-Identifier: Apache-2.0
// Conversion of enumerators to and from names.
#pragma once

#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"

namespace moesaic::ops {

/// Returns the enumerator whose number is the index of its name in `names`. Throws Error (usage)
/// with the nearest name.
template <class Enum>
Enum enum_from_name(const char* what, std::string_view name,
                    const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  fail_usage("unknown {} '{}'; {}", what, name, did_you_mean(name, names));
}

/// Throws Error unless `code` is the number of one of `names`.
inline void check_enum(const char* op, const char* what, int64_t code,
                       const std::vector<std::string>& names) {
  if (code >= 0 && code < static_cast<int64_t>(names.size())) return;
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    list += fmt::format("{}{} ({})", i > 0 ? ", " : "", i, names[i]);
  }
  fail("{}: {} {} is unknown; choose {}", op, what, code, list);
}

}  // namespace moesaic::ops
