// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "moesaic/data/loader.h"

namespace moesaic {

class Processes;

/// Adds the damaged images that a batch replaced (Batch::replaced) to `known`, which is sorted.
/// Several processes add those of all their parts, count them together by their loaders (which have
/// the option `shared`), and the first one that met an image warns of it. Throws Error (failure)
/// where they are too many. Returns the largest `signal` of all processes, by the same exchange.
int note_replaced(const std::map<int64_t, std::string>& replaced, Loader& loader,
                  const Processes* processes, std::vector<int64_t>& known, int signal = 0);

}  // namespace moesaic
