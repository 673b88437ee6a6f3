// SPDX-License-Identifier: Apache-2.0
// Processes that train one network together: a mesh of data x expert groups.
#pragma once

#include <chrono>

#include "moesaic/parallel/launch.h"
#include "moesaic/parallel/process_group.h"

namespace c10d {
class Store;
}

namespace moesaic {

/// The processes of a run, and the groups in which they compute. Each takes a part of every batch;
/// processes r with the same r / K share the experts of one replica, those with the same r % K hold
/// the same experts.
class ProcessMesh {
 public:
  /// Joins the other processes. With `uses_cuda` each process takes the GPU of its local rank, and
  /// tensors on GPUs are exchanged by NCCL. Throws Error: usage where D x K is not the number of
  /// processes; failure where they do not connect within the timeout, or the port is in use.
  static std::shared_ptr<const ProcessMesh> connect(const Launch& launch,
                                                    const ParallelConfig& config,
                                                    bool uses_cuda = false);
  /// Joins the others through a store that all of them hold, e.g. c10d::HashStore for threads.
  static std::shared_ptr<const ProcessMesh> from_store(const c10::intrusive_ptr<c10d::Store>& store,
                                                       int64_t rank, int64_t size,
                                                       const ParallelConfig& config) {
    const Launch launch{.rank = rank, .world_size = size, .local_rank = rank};
    return from_store(store, launch, config, /*uses_cuda=*/false);
  }
  /// Makes process 0 of so many that only count what they would send: each group has a counter of
  /// its own, also where connect() makes one group of two. Nothing but groups may be used.
  static std::shared_ptr<const ProcessMesh> make_fake(int64_t size, const ParallelConfig& config);
  ~ProcessMesh();

  /// Returns the number of this process.
  int64_t rank() const { return world_->rank(); }
  /// Returns the number of processes.
  int64_t size() const { return world_->size(); }
  /// Returns whether this process writes the files.
  bool is_rank_zero() const { return rank() == 0; }
  /// Returns the settings.
  const ParallelConfig& config() const { return config_; }

  /// Returns the group of all processes for what the network's layers exchange and, on the CPU, for
  /// what does not belong to the order of a step. No two threads begin its collectives at once.
  const ProcessGroup& world() const { return *world_; }
  /// Returns the group of all processes for gradients, which are reduced during the backward pass.
  const ProcessGroup& gradient_group() const { return *gradients_; }
  /// Returns the group of the K processes that share the experts of this replica.
  const ProcessGroup& expert_group() const { return *experts_; }
  /// Returns the group of the D processes that hold the same experts as this one.
  const ProcessGroup& replica_group() const { return *replicas_; }

  /// Returns the counter of what all groups send.
  TrafficCounter& counter() const { return *counter_; }

  /// Waits for all processes as long as it takes: what one of them reads or writes may be slow.
  /// Throws PeerFailure where one ends meanwhile.
  void barrier() const;
  /// Returns the texts of all processes by rank, beside collectives of another thread. Throws
  /// PeerFailure where another process says that it ends, and Error (failure), which names it,
  /// where one that is waited for neither comes nor calls report_progress() within `timeout`. One
  /// thread of each process calls it, as often as the others.
  std::vector<std::string> all_gather_text(const std::string& text,
                                           std::chrono::seconds timeout) const;
  /// Signals to processes that wait in all_gather_text() that this one makes progress.
  void report_progress() const noexcept;
  /// Returns the value of process 0.
  double broadcast_from_rank_zero(double value) const;
  /// Returns the largest of the values of all processes.
  int64_t all_reduce_max(int64_t value) const;
  /// Throws Error (usage) where a value, such as a hash of the recipe, is not that of process 0:
  /// "process 2 has another <what> than process 0 (<value> and <value>)".
  void check_same(const std::string& what, const std::string& value) const;

  /// Reports to the others that this process failed, which ends them. Returns whether this is the
  /// first such report.
  bool publish_failure(const std::string& message) const noexcept;
  /// Returns a line on the peer that failed, after a collective failed with `message`; ""
  /// where one says why it failed, or another process returns the line. The call may take some
  /// seconds, in which other processes report.
  std::string describe_failure(const std::string& message) const;
  /// Ends the work of all processes: waits for them, and lets them log their warnings.
  void finish() const;
  /// Has `action` called, on another thread, once another process ends or misses one: this one
  /// would wait for it without end.
  void on_peer_failure(std::function<void()> action) const;
  /// Ends this process' part after a failure: it waits a few seconds for the others to learn of it
  /// if it serves their store.
  void shut_down_after_failure() const noexcept;
  /// Text for `describe_failure` of other processes about this one's work.
  void set_activity(const std::string& activity) const;

 private:
  class Monitor;

  ProcessMesh() = default;
  static std::shared_ptr<ProcessMesh> from_store(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const Launch& launch, const ParallelConfig& config,
                                                 bool uses_cuda);

  ParallelConfig config_;
  std::shared_ptr<TrafficCounter> counter_;
  bool takes_warnings_ = false;
  std::shared_ptr<ProcessGroup> world_, gradients_, experts_, replicas_;
  std::shared_ptr<Monitor> monitor_;  ///< Shared with a thread that may wait for a store forever.
};

}  // namespace moesaic
