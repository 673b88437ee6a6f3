// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/foreign.h"

namespace moesaic {

Registry<ForeignCheckpoint>& foreign_checkpoints() {
  static Registry<ForeignCheckpoint> list("kind of checkpoint", {});
  return list;
}

const ForeignCheckpoint* find_foreign(const std::filesystem::path& path) {
  for (const auto& [name, kind] : foreign_checkpoints().entries()) {
    if (kind.is_one(path)) return &kind;
  }
  return nullptr;
}

}  // namespace moesaic
