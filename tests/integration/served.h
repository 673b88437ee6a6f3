// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace moesaic::testing {

/// Images of uint8 one after the other, and the network's class of each.
struct ServedImages {
  std::string bytes;
  std::vector<int64_t> best;
  std::vector<std::string> classes;  ///< Names by number.
};

/// Returns test images of the smoke recipe's network, not all of one class.
ServedImages served_images(const std::filesystem::path& run);

}  // namespace moesaic::testing
