// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace moesaic {

/// Returns the numeric address of this machine from which it reaches a host, "" where it knows no
/// way there. Nothing is sent.
std::string local_address_towards(const std::string& host, uint16_t port);

}  // namespace moesaic
