// SPDX-License-Identifier: Apache-2.0
// How processes divide the work of a run, and how they were started: by torchrun, mpirun or srun,
// from the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "moesaic/config/schema.h"

namespace moesaic {

/// What a launcher (torchrun, mpirun, srun) sets for a process.
struct Launch {
  int64_t rank = 0;              ///< Rank of this process, 0 to world_size - 1.
  int64_t world_size = 1;        ///< Number of processes, W.
  int64_t local_rank = 0;        ///< Rank on this machine, which chooses the GPU.
  int64_t local_world_size = 1;  ///< Number of processes on this machine; 1 where unknown.
  std::string address;           ///< Host of the rendezvous.
  uint16_t port = 0;
  bool has_external_store = false;  ///< The launcher serves the store; otherwise process 0 does.
  std::string attempt = "0";        ///< Number of restarts, a prefix of the store's keys.

  /// Returns whether this process is alone.
  bool is_single_process() const { return world_size == 1; }
};

/// Returns the value of a variable of the environment, nothing where it is unset.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// Returns the environment of this process.
Environment process_environment();

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (torchrun), or the variables of
/// Open MPI, MPICH or a step of SLURM; where they share one machine the rendezvous is on it,
/// and else at MASTER_ADDR or, with SLURM, on the step's first host. Without any of them the
/// process is alone. Throws Error (usage) that names the variable that is missing or no valid
/// number.
Launch read_launch(const Environment& environment);
/// Returns the rank of this process, also where the rendezvous is unknown. Throws as read_launch()
/// where the rank is unknown.
int64_t rank_of(const Environment& environment);
/// Returns whether the launcher names no process of this machine before this one.
bool is_local_rank_zero(const Environment& environment);

/// Returns whether process 0 came to the rendezvous, within a few seconds. If it did not,
/// it most likely ended with the same error as this one.
bool is_rank_zero_reachable(const Launch& launch) noexcept;

/// Returns the numeric address of this machine from which it reaches a host, "" where it has no
/// route. Nothing is sent.
std::string local_address_for(const std::string& host, uint16_t port);

/// Returns whether a name means the machine that it is used on, wherever that is: "localhost" and
/// addresses of the loopback interface. A host's own name may have such an address on that host
/// alone.
bool is_loopback_host(const std::string& host);

/// Returns a socket that listens on a port of the loopback interface, where `host` is an address of
/// that: no other machine can reach it. Nothing where the host is another or the port is in use.
std::optional<int> listen_on_loopback(const std::string& host, uint16_t port);

/// How processes divide the work of a run.
struct ParallelConfig {
  int64_t num_replicas = 0, expert_parallel_size = 1;
  bool shard_optimizer = false;
  int64_t init_timeout = 300, timeout = 600;
};
void describe(auto& f, ParallelConfig& c) {
  f("num_replicas", c.num_replicas,
    "number of replicas of the experts; num_replicas * expert_parallel_size is the number of "
    "processes; 0: number of processes / expert_parallel_size",
    between(0, 1 << 20), renamed_from("data"));
  f("expert_parallel_size", c.expert_parallel_size,
    "number of processes that shard a replica's experts; each process of the run takes an equal "
    "part of every batch",
    between(1, 1 << 20), renamed_from("experts"));
  f("shard_optimizer", c.shard_optimizer,
    "sharding of the optimizer state, except that of experts, over the processes (ZeRO-1)");
  f("init_timeout", c.init_timeout,
    "longest time in seconds for all processes to connect at the start", between(5, 86400));
  f("timeout", c.timeout,
    "longest time in seconds without progress of another process, in a step, a batch of an "
    "evaluation or a save, before the run ends",
    between(5, 86400));
}

}  // namespace moesaic
