// SPDX-License-Identifier: Apache-2.0
#include "local_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
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

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Returns the addresses of a host, null where it has none.
Addresses addresses_of(const std::string& host, uint16_t port, int kind) {
  addrinfo hints = {};
  hints.ai_socktype = kind;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  return {error == 0 ? list : nullptr, &::freeaddrinfo};
}

bool is_loopback(const addrinfo& address) {
  if (address.ai_family == AF_INET) {
    const auto* const ip4 = reinterpret_cast<const sockaddr_in*>(address.ai_addr);
    return ntohl(ip4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  const auto* const ip6 = reinterpret_cast<const sockaddr_in6*>(address.ai_addr);
  return address.ai_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&ip6->sin6_addr);
}

}  // namespace

std::string local_address_towards(const std::string& host, uint16_t port) {
  const Addresses list = addresses_of(host, port, SOCK_DGRAM);
  for (const addrinfo* way = list.get(); way != nullptr; way = way->ai_next) {
    if (std::string own = local_end(*way); !own.empty()) return own;
  }
  return "";
}

bool names_loopback(const std::string& host) {
  in_addr ip4 = {};
  if (::inet_pton(AF_INET, host.c_str(), &ip4) == 1) {
    return ntohl(ip4.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  return host == "localhost" || host == "::1";
}

std::optional<int> listen_on_loopback(const std::string& host, uint16_t port) {
  const Addresses all = addresses_of(host, port, SOCK_STREAM);
  const addrinfo* list = all.get();
  if (list == nullptr || !is_loopback(*list)) return std::nullopt;
  // Some call it "localhost", which has both kinds of address, and others 127.0.0.1.
  for (const addrinfo* way = list; way != nullptr; way = way->ai_next) {
    if (way->ai_family == AF_INET && is_loopback(*way)) list = way;
  }
  UniqueFd fd(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (fd.get() < 0 || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(fd.get(), list->ai_addr, list->ai_addrlen) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    return std::nullopt;
  }
  return fd.release();
}

}  // namespace moesaic
