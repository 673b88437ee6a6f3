// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace moesaic {

/// Throws Error(failure) that begins with `where` and names the image unless every label has a
/// class.
void check_labels(std::span<const uint8_t> labels, size_t classes, const std::string& where);

}  // namespace moesaic
