// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "moesaic/config/document.h"

namespace moesaic::config_detail {

struct ReadOptions {
  bool lines = true;     // Origins have line and column, not the source alone.
  bool comments = true;  // Comments, `//` and `/* */`, are allowed.
  uint64_t max_bytes = kMaxDocumentBytes;
};

/// Parses JSON text; all other readers of JSON, but that of safetensors' headers, call it. Time and
/// memory grow with the length of the text. Throws Error (usage) with the position for syntax
/// errors, duplicate keys, invalid UTF-8, NUL bytes, numbers beyond double's range, nesting beyond
/// Value::kMaxDepth, and more than kMaxDocumentNodes values.
Value read_json(std::string_view text, const std::string& source, const ReadOptions& options = {});

}  // namespace moesaic::config_detail
