// SPDX-License-Identifier: Apache-2.0
// Export to checkpoints of google-research/vmoe.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "files/checkpoint.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// Throws Error (usage) if `prefix`.index or a `prefix`.data-... exists already.
void check_new_vmoe_prefix(const std::filesystem::path& prefix, std::string_view what);

/// Writes a V-MoE's parameters under the reference's names and in its layouts, at the top level of
/// the tree: as float32, or as the dtype in `array_dtypes` (float16, bfloat16, float64). Pruned
/// experts are written as zeros, since the reference has no other form for them: a token routed to
/// them gets nothing, as here. Throws Error (usage) for another family, and for experts that were
/// pruned so that tokens reroute.
void export_vmoe(const Model& model, const std::filesystem::path& prefix,
                 const vmoe_checkpoint::WriteOptions& options = {},
                 const std::map<std::string, std::string>& array_dtypes = {});

}  // namespace moesaic
