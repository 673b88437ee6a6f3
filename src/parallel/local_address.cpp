// SPDX-License-Identifier: Apache-2.0
#include "local_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <memory>

#include "moesaic/base/posix.h"

namespace moesaic {
namespace {

/// Returns the local end of a datagram socket that is connected to an address, "" without a way.
std::string local_end(const addrinfo& towards) {
  const UniqueFd fd(::socket(towards.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own = {};
  socklen_t size = sizeof own;
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  std::array<char, NI_MAXHOST> name = {};
  const bool found =
      fd.get() >= 0 && ::connect(fd.get(), towards.ai_addr, towards.ai_addrlen) == 0 &&
      ::getsockname(fd.get(), address, &size) == 0 &&
      ::getnameinfo(address, size, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  return found ? name.data() : "";
}

}  // namespace

std::string local_address_towards(const std::string& host, uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  for (const addrinfo* way = list; way != nullptr; way = way->ai_next) {
    if (std::string own = local_end(*way); !own.empty()) return own;
  }
  return "";
}

}  // namespace moesaic
