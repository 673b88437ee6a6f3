// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

/// Treatment of the rows of a pruned expert by the router.
enum class PrunedSelection : int64_t {
  zero,     ///< Keeps the row: the expert is selected and gated as ever, costs nothing and adds
            ///< zero, so that the others' gates do not change (pruning paper, eqs. 5-6).
  reroute,  ///< Removes the row: selection, softmax and capacity see the kept experts only.
};

/// Throws Error (usage) naming the nearest valid name for an unknown one.
PrunedSelection pruned_selection_from_name(std::string_view name);
/// Returns the enumerators' names in their order.
std::vector<std::string> pruned_selection_names();

}  // namespace moesaic
