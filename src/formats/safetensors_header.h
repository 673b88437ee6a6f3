// SPDX-License-Identifier: Apache-2.0
// JSON header of a safetensors file, for formats/safetensors.cpp only.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/formats/safetensors.h"

namespace moesaic::safetensors {

inline constexpr std::string_view kMetadata = "__metadata__";  // The only key that is not a tensor.

struct Header {
  std::vector<Entry> entries;  // As parsed; offsets are not yet checked against the data.
  std::map<std::string, std::string> metadata;
};

/// Parses untrusted text; `file` is named in errors. Memory is proportional to the text.
Header parse_header(std::string_view text, const std::string& file);

}  // namespace moesaic::safetensors
