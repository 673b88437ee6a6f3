// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "moesaic/config/value.h"

namespace moesaic::config_detail {

struct ReadOptions {
  bool lines = true;     // origins say line and column; otherwise the source alone
  bool comments = true;  // `//` and `/* */` are skipped
};

/// JSON text as a Value. Throws Error(usage) with the place: syntax, duplicate keys, invalid UTF-8,
/// NUL bytes, numbers beyond double's range, nesting beyond Value::kMaxDepth.
Value read_json(std::string_view text, const std::string& source, const ReadOptions& options = {});

}  // namespace moesaic::config_detail
