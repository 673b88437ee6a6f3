// SPDX-License-Identifier: Apache-2.0
// Zip archives, as far as the files that lie in one uncompressed. Archives are untrusted: nothing
// is dereferenced before it is checked, and nothing is unpacked.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "moesaic/formats/archive.h"

namespace moesaic {

/// Returns whether a file begins as a zip archive does.
bool is_zip(std::span<const std::byte> file);

/// Returns whether there is a member FOLDER/`name`, packed or not; throws as find_in_zip().
bool is_in_zip(std::span<const std::byte> archive, std::string_view name, const std::string& where);

}  // namespace moesaic
