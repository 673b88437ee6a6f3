// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/pruned_selection.h"

#include "names.h"

namespace moesaic {

std::vector<std::string> pruned_selection_names() {
  return {"zero", "reroute"};
}

PrunedSelection pruned_selection_from_name(std::string_view name) {
  return ops::enum_from_name<PrunedSelection>("treatment of pruned experts", name,
                                              pruned_selection_names());
}

}  // namespace moesaic
