// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace moesaic {

/// A setting that two configurations have with different values, null where one lacks it.
struct Difference {
  std::string path;
  nlohmann::ordered_json before, after;
};

/// How differences() writes what it finds.
struct DifferenceOptions {
  char separator = '.';               ///< Between the names of a path.
  bool compares_whole_lists = false;  ///< Compares lists as a whole, not item by item.
};

/// Returns what differs, in the order of `before`. The time grows with the size of both, up to a
/// logarithm.
std::vector<Difference> differences(const nlohmann::ordered_json& before,
                                    const nlohmann::ordered_json& after,
                                    const DifferenceOptions& form = {});

/// Returns text for a message: "'seed' was 1 and is 2 now, 'model.num_classes' was 3 and is 4 now",
/// the first few and how many more there are; of configurations that stand side by side "'seed' is
/// 2, not 1".
std::string describe(const std::vector<Difference>& differences, bool is_side_by_side = false);

}  // namespace moesaic
