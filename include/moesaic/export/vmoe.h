// SPDX-License-Identifier: Apache-2.0
// Networks become checkpoints of google-research/vmoe.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "moesaic/export/formats.h"
#include "moesaic/formats/vmoe_checkpoint.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// Throws Error(usage) where `prefix`.index or a `prefix`.data-... is there already.
void check_new_vmoe_prefix(const std::filesystem::path& prefix, std::string_view what);

/// Writes a V-MoE's parameters under the reference's names, in its layouts, at the top level of the
/// tree: as float32, or as what `array_dtypes` has for a name (float16, bfloat16, float64). Of a
/// pruned network, experts that are gone are written as zeros: routed to them, a token gets
/// nothing, as here; the reference has no other way to say it. Throws Error(usage) for another
/// family, and for experts that were pruned so that tokens reroute.
void export_vmoe(const Model& model, const std::filesystem::path& prefix,
                 const vmoe_checkpoint::WriteOptions& options = {},
                 const std::map<std::string, std::string>& array_dtypes = {});

inline constexpr const char* kVMoEFormat = "vmoe";
ExportFormat vmoe_format();

}  // namespace moesaic
