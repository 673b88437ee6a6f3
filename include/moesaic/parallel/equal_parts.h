// SPDX-License-Identifier: Apache-2.0
// Which part of a batch is whose.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moesaic {

/// Returns the divisor of `number` that is nearest to `wanted`.
int64_t nearest_divisor(int64_t number, int64_t wanted);

/// Throws Error (usage), with the nearest choices, unless so many processes can take equal parts of
/// each of the `parts` of a batch that go through the network one after the other. `where` begins
/// the message.
void check_equal_parts(const std::string& where, int64_t batch, int64_t parts, int64_t processes);

/// Returns the places in a batch of the images that process `rank` of `size` takes, ascending or,
/// where a batch goes through the network in `parts` one after the other, part by part: of each
/// part an equal range. With `strided`, part i has the places i, i + parts, ...
std::vector<int64_t> places_of_process(int64_t batch, int64_t parts, bool strided, int64_t rank,
                                       int64_t size);

}  // namespace moesaic
