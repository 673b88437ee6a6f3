// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/models/vmoe.h"
#include "script_module.h"

namespace moesaic::script {

Module make_vmoe(const Unit& unit, const VMoE& from);

}  // namespace moesaic::script
