// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace moesaic {

/// Returns the numeric address of this machine from which it reaches a host, "" where it knows no
/// way there. Nothing is sent.
std::string local_address_towards(const std::string& host, uint16_t port);

/// Returns whether a name means the machine that it is used on, wherever that is: "localhost" and
/// addresses of the loopback interface. A host's own name may have such an address on that host
/// alone.
bool names_loopback(const std::string& host);

/// Returns a socket that listens on a port of the loopback interface, where `host` is an address of
/// that: no other machine can reach it. Nothing where the host is another or the port is in use.
std::optional<int> listen_on_loopback(const std::string& host, uint16_t port);

}  // namespace moesaic
