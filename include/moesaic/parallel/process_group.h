// SPDX-License-Identifier: Apache-2.0
// A group of processes and its collectives, those of c10d; those that gradients flow through, and
// the mean of gradients that is taken while the backward pass goes on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "moesaic/base/error.h"

namespace c10d {
class ProcessGroup;
class Reducer;
}  // namespace c10d

namespace moesaic {

/// What a collective is for, under which its bytes are counted. From `logits` to `batch_norm` they
/// are those of a forward or backward pass.
enum class Traffic {
  gradients,
  expert_gradients,
  logits,
  logits_gradient,
  row_counts,
  rows,
  batch_norm,
  metrics,
  parameters,
  other
};

/// Returns the name of a purpose, e.g. "expert_gradients".
std::string traffic_name(Traffic traffic);

/// Returns the bytes that each process of a group of `size` sends where all of them reduce `bytes`:
/// in a ring, the sum passes each link once and comes back once.
double all_reduce_bytes(double bytes, int64_t size);

/// Collectives of one purpose, and the bytes that this process sends in all of them.
struct TrafficTotal {
  int64_t calls = 0;
  double bytes = 0.0;
};

/// Counts collectives and the bytes that this process sends, by purpose. Thread-safe.
class TrafficCounter {
 public:
  /// Adds `calls` collectives that send `bytes` together.
  void add(Traffic traffic, double bytes, int64_t calls = 1);
  /// Returns what was counted since the last call.
  std::map<Traffic, TrafficTotal> take();

 private:
  std::mutex mutex_;
  std::map<Traffic, TrafficTotal> sent_;
};

/// Processes that compute together. All of them call the same collectives in the same order, with
/// tensors of the same shape and type unless said otherwise. A collective throws Error (failure)
/// where a peer fails or does not come within the group's timeout.
class ProcessGroup {
 public:
  /// Wraps a group of c10d; what it sends is added to `counter`.
  ProcessGroup(c10::intrusive_ptr<c10d::ProcessGroup> group,
               std::shared_ptr<TrafficCounter> counter);
  /// Makes process 0 of a group of `size` that only counts: nothing is sent, and what would be
  /// received has its shape and no values. Meant for tensors on the meta device.
  ProcessGroup(int64_t size, std::shared_ptr<TrafficCounter> counter);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// Returns the rank of this process in the group.
  int64_t rank() const { return rank_; }
  /// Returns the number of processes in the group.
  int64_t size() const { return size_; }

  /// Sums `x`, which must be contiguous, over all processes in place, or takes the largest of each
  /// of its numbers.
  void all_reduce(const at::Tensor& x, Traffic traffic, bool takes_max = false) const;
  /// Returns the rows of all processes by rank: [size * N, ...] of [N, ...].
  at::Tensor all_gather(const at::Tensor& x, Traffic traffic) const;
  /// Sends rows of `x`, the first `send[0]` to process 0 and so on, and returns those received,
  /// ordered by sender. Numbers of rows differ; those received from each are `receive`.
  at::Tensor all_to_all(const at::Tensor& x, const std::vector<int64_t>& send,
                        const std::vector<int64_t>& receive, Traffic traffic) const;
  /// Overwrites `x` with that of process `root`.
  void broadcast(const at::Tensor& x, int64_t root, Traffic traffic) const;
  /// Overwrites tensor r with that of process r, for all of them at once. A group that only counts
  /// counts the mean of what its processes send.
  void broadcast_each(const std::vector<at::Tensor>& per_rank, Traffic traffic) const;
  /// Waits for all processes, within the group's timeout or without a limit.
  void barrier(bool waits_forever = false) const;
  /// Returns the texts of all processes by rank.
  std::vector<std::string> all_gather_strings(const std::string& text) const;

  /// Returns c10d's group, null where this one only counts.
  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d() const { return group_; }
  /// Returns the counter of what is sent.
  TrafficCounter& counter() const { return *counter_; }

 private:
  /// Runs a collective of c10d's and waits for it; does nothing where this group only counts.
  void run_collective(const auto& begin) const;

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  int64_t rank_ = 0, size_ = 1;
  std::shared_ptr<TrafficCounter> counter_;
};

/// A collective failed, since a peer failed or did not come in time.
class PeerFailure : public Error {
 public:
  /// `what` names the peer, where it is known.
  explicit PeerFailure(const std::string& what) : Error(ErrorKind::failure, what) {}
};

// Collectives that gradients flow through. As in c10d, each process has a loss of its own, and the
// gradient of all their sum flows back.

/// Returns the rows of all processes by rank, [W N, ...] of x [N, ...].
at::Tensor all_gather_rows(const at::Tensor& x, const std::shared_ptr<const ProcessGroup>& group);

/// Returns the sum of x over all processes.
at::Tensor all_reduce_sum(const at::Tensor& x, const std::shared_ptr<const ProcessGroup>& group,
                          Traffic traffic);

/// Sends rows of x and returns those received, see ProcessGroup::all_to_all().
at::Tensor all_to_all_rows(const at::Tensor& x, const std::vector<int64_t>& send,
                           const std::vector<int64_t>& receive,
                           const std::shared_ptr<const ProcessGroup>& group);

/// Takes the mean of gradients over the processes of a group while the backward pass still
/// computes others: in buckets, by c10d's Reducer.
class GradientReducer {
 public:
  static constexpr size_t kBucketBytes = size_t{25}
                                         << 20;  ///< Size of a bucket, that of c10d's DDP.

  /// `parameters` that require gradients, in the order in which the network uses them. With a group
  /// of one process nothing is reduced, with one that only counts nothing but counted.
  GradientReducer(std::vector<at::Tensor> parameters, const ProcessGroup& group, Traffic traffic,
                  size_t bucket_bytes = kBucketBytes);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Makes the backward pass of `loss` reduce the gradients, with what earlier passes accumulated;
  /// they are reduced when it ends.
  void prepare(const at::Tensor& loss);

 private:
  std::unique_ptr<c10d::Reducer> reducer_;  ///< Null where nothing is reduced.
  TrafficCounter* counter_ = nullptr;       ///< Null where nothing is counted, either.
  Traffic traffic_;
  double bytes_ = 0.0;
  int64_t buckets_ = 0;
};

/// Throws Error (usage), with the nearest choices, unless so many processes can take equal shards
/// of each of the `num_micro_batches` of a batch that go through the network one after the other.
/// `where` begins the message.
void check_batch_divisible(const std::string& where, int64_t batch, int64_t num_micro_batches,
                           int64_t processes);

/// Returns the indices in a batch of the images of process `rank` of `size`, ascending. Where the
/// network takes a batch in `num_micro_batches`, they are ordered by micro-batch: an equal range of
/// each. With `is_strided`, micro-batch i has the indices i, i + num_micro_batches, ...
std::vector<int64_t> batch_indices_of_rank(int64_t batch, int64_t num_micro_batches,
                                           bool is_strided, int64_t rank, int64_t size);

}  // namespace moesaic
