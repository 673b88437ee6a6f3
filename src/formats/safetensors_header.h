// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file, for formats/safetensors.cpp only.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/formats/safetensors.h"

namespace moesaic::safetensors {

inline constexpr std::string_view kMetadata = "__metadata__";  // the one key that is no tensor

struct Header {
  std::vector<Entry> entries;  // as they stand there; offsets not yet compared with the data
  std::map<std::string, std::string> metadata;
};

/// Parses untrusted text; `file` is for the messages. Memory stays in proportion to the text.
Header parse_header(std::string_view text, const std::string& file);

}  // namespace moesaic::safetensors
