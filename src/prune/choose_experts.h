// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/models/model.h"

namespace moesaic {

/// Returns what is wrong with keeping only these experts of a block, "" if nothing is: fewer of a
/// group than a token selects.
std::string too_few_problem(const MoEBlock& block, const std::vector<int64_t>& kept);

}  // namespace moesaic
