// SPDX-License-Identifier: Apache-2.0
#include "moesaic/parallel/launch.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "moesaic/base/error.h"
#include "moesaic/base/posix.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

constexpr uint16_t kPort = 29500;

/// The variables in which a launcher tells its processes who they are.
struct Names {
  const char *rank, *size, *local_rank, *local_size;
  bool rank_alone = false;  ///< Whether one process may have a rank and no size.
};

constexpr Names kTorchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOthers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    // Only within a step: a batch script has SLURM_PROCID too, and is one process.
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", true},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

int64_t number_in(const std::string& name, const std::string& text, int64_t min, int64_t max) {
  const auto value = parsed_number<int64_t>(text);
  if (value && *value >= min && *value <= max) return *value;
  fail_usage("environment: {} must be a number from {} to {}, not '{}'", name, min, max, text);
}

std::string required(const Environment& environment, const std::string& name,
                     const std::string& given) {
  const std::optional<std::string> value = environment(name);
  if (value) return *value;
  fail_usage(
      "environment: {} is set and {} is not; start several processes by torchrun, mpirun or srun, "
      "which set both, or unset {}",
      given, name, given);
}

/// Returns the first host of a list such as "rack[0-1]gpu[03-07,09]-ib,login1".
std::string first_host(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t end = list.find_first_of("-,]", i);
    host += list.substr(i + 1, end - i - 1);
    i = std::min(list.find(']', i), list.size() - 1);
  }
  return host;
}

void find_rendezvous(const Environment& environment, const Names& names, Launch& launch) {
  const std::optional<std::string> address = environment("MASTER_ADDR");
  const std::optional<std::string> port = environment("MASTER_PORT");
  const std::optional<std::string> hosts = environment("SLURM_STEP_NODELIST");
  const std::optional<std::string> local_size = environment(names.local_size);
  launch.port = port ? static_cast<uint16_t>(number_in("MASTER_PORT", *port, 1, 65535)) : kPort;
  if (address) {
    launch.address = *address;
  } else if (local_size && *local_size == std::to_string(launch.world_size)) {
    launch.address = "127.0.0.1";
  } else if (hosts) {
    launch.address = first_host(*hosts);
  } else {
    fail_usage("environment: {} is {} and MASTER_ADDR is not set; set it to the host of process 0",
               names.size, launch.world_size);
  }
}

/// Returns the names that the process was started with; null where it was started alone.
const Names* names_in(const Environment& environment) {
  if (environment(kTorchrun.rank) || environment(kTorchrun.size)) return &kTorchrun;
  for (const Names& names : kOthers) {
    const bool named = environment(names.rank) && !names.rank_alone;
    if (named || environment(names.size)) return &names;
  }
  return nullptr;
}

/// Returns which process this is, without the rendezvous.
Launch numbers_in(const Environment& environment, const Names& names) {
  constexpr int64_t kMax = 65536;  // Far above what a store and its sockets can serve.
  Launch launch;
  launch.world_size = number_in(names.size, required(environment, names.size, names.rank), 1, kMax);
  launch.rank = number_in(names.rank, required(environment, names.rank, names.size), 0,
                          launch.world_size - 1);
  const std::optional<std::string> local = environment(names.local_rank);
  launch.local_rank = local ? number_in(names.local_rank, *local, 0, kMax) : launch.rank;
  const std::string local_size = environment(names.local_size).value_or("");  // SLURM's: "4(x2)".
  std::from_chars(local_size.data(), local_size.data() + local_size.size(),
                  launch.local_world_size);
  launch.local_world_size = std::clamp<int64_t>(launch.local_world_size, 1, launch.world_size);
  return launch;
}

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

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

Launch read_launch(const Environment& environment) {
  const Names* const names = names_in(environment);
  if (names == nullptr) return {};
  Launch launch = numbers_in(environment, *names);
  if (!launch.is_single_process()) find_rendezvous(environment, *names, launch);
  if (names != &kTorchrun) return launch;
  launch.has_external_store = environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.attempt = environment("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return launch;
}

int64_t rank_of(const Environment& environment) {
  const Names* const names = names_in(environment);
  return names == nullptr ? 0 : numbers_in(environment, *names).rank;
}

bool is_local_rank_zero(const Environment& environment) {
  const Names* const names = names_in(environment);
  return names == nullptr || environment(names->local_rank).value_or("0") == "0";
}

std::string local_address_for(const std::string& host, uint16_t port) {
  const Addresses list = addresses_of(host, port, SOCK_DGRAM);
  for (const addrinfo* way = list.get(); way != nullptr; way = way->ai_next) {
    if (std::string own = local_end(*way); !own.empty()) return own;
  }
  return "";
}

bool is_loopback_host(const std::string& host) {
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
