// SPDX-License-Identifier: Apache-2.0
#include "moesaic/parallel/group.h"

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "moesaic/base/error.h"
#include "moesaic/parallel/lost_process.h"

namespace moesaic {

std::string traffic_name(Traffic traffic) {
  switch (traffic) {
    case Traffic::gradients:
      return "gradients";
    case Traffic::expert_gradients:
      return "expert_gradients";
    case Traffic::logits:
      return "logits";
    case Traffic::logits_gradient:
      return "logits_gradient";
    case Traffic::rows:
      return "rows";
    case Traffic::row_counts:
      return "row_counts";
    case Traffic::batch_norm:
      return "batch_norm";
    case Traffic::metrics:
      return "metrics";
    case Traffic::parameters:
      return "parameters";
    case Traffic::other:
      return "other";
  }
  fail("unknown traffic {}", static_cast<int>(traffic));
}

double all_reduce_bytes(double bytes, int64_t size) {
  return 2.0 * bytes * static_cast<double>(size - 1) / static_cast<double>(size);
}

double all_gather_bytes(double bytes, int64_t size) {
  return bytes * static_cast<double>(size - 1);
}

struct TrafficCounter::State {
  std::mutex mutex;
  std::map<Traffic, Sent> sent;
};

TrafficCounter::TrafficCounter() : state_(std::make_unique<State>()) {}
TrafficCounter::~TrafficCounter() = default;

void TrafficCounter::add(Traffic traffic, double bytes, int64_t calls) {
  const std::lock_guard lock(state_->mutex);
  Sent& sent = state_->sent[traffic];
  sent.calls += calls;
  sent.bytes += bytes;
}

std::map<Traffic, Sent> TrafficCounter::take() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->sent, {});
}

namespace {

/// Returns what a call of c10d does. What it throws where a process is lost becomes LostProcess.
template <class Call>
auto with_loss(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw LostProcess(error.what());
  }
}

int64_t sum_of(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

/// A thread of c10d's holds what was sent until after the collective has ended. It must not be the
/// last to hold a graph, whose nodes keep the processes and so that thread alive.
at::Tensor sendable(const at::Tensor& x) {
  return x.detach().contiguous();
}

double bytes_of(const at::Tensor& x) {
  return static_cast<double>(x.nbytes());
}

}  // namespace

Group::Group(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<TrafficCounter> counter)
    : group_(std::move(group)),
      rank_(group_->getRank()),
      size_(group_->getSize()),
      counter_(std::move(counter)) {}
Group::Group(int64_t size, std::shared_ptr<TrafficCounter> counter)
    : size_(size), counter_(std::move(counter)) {}
Group::~Group() = default;

template <class Begin>
void Group::finish(const Begin& begin) const {
  if (group_) with_loss([&] { begin()->wait(); });
}

void Group::all_reduce(const at::Tensor& x, Traffic traffic) const {
  if (size() == 1) return;
  std::vector<at::Tensor> list = {x};
  finish([&] { return group_->allreduce(list); });
  counter_->add(traffic, all_reduce_bytes(bytes_of(x), size()));
}

void Group::all_reduce_max(const at::Tensor& x, Traffic traffic) const {
  if (size() == 1) return;
  std::vector<at::Tensor> list = {x};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  finish([&] { return group_->allreduce(list, options); });
  counter_->add(traffic, all_reduce_bytes(bytes_of(x), size()));
}

at::Tensor Group::all_gather(const at::Tensor& x, Traffic traffic) const {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.at(0) *= size();
  at::Tensor own = sendable(x), all = at::empty(shape, x.options());
  if (size() == 1) return own;
  if (x.size(0) == 0) return all;
  std::vector<std::vector<at::Tensor>> parts = {all.chunk(size())};
  std::vector<at::Tensor> list = {own};
  finish([&] { return group_->allgather(parts, list); });
  counter_->add(traffic, all_gather_bytes(bytes_of(x), size()));
  return all;
}

at::Tensor Group::all_to_all(const at::Tensor& x, const std::vector<int64_t>& send,
                             const std::vector<int64_t>& receive, Traffic traffic) const {
  std::vector<int64_t> shape = x.sizes().vec();
  const int64_t own = send.at(static_cast<size_t>(rank())), all = sum_of(send);
  if (x.size(0) < all) fail("all_to_all: {} rows are to be sent of {}", all, x.size(0));
  shape.at(0) = sum_of(receive);
  at::Tensor sent = sendable(x.narrow(0, 0, all)), received = at::empty(shape, x.options());
  if (size() == 1) return sent;
  std::vector<int64_t> send_sizes = send, receive_sizes = receive;
  finish([&] { return group_->alltoall_base(received, sent, receive_sizes, send_sizes); });
  const double rows = static_cast<double>(std::max<int64_t>(all, 1));
  counter_->add(traffic, bytes_of(sent) * static_cast<double>(all - own) / rows);
  return received;
}

void Group::broadcast(const at::Tensor& x, int64_t root, Traffic traffic) const {
  if (size() == 1 || x.numel() == 0) return;
  std::vector<at::Tensor> list = {x};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  finish([&] { return group_->broadcast(list, options); });
  if (rank() == root) counter_->add(traffic, all_gather_bytes(bytes_of(x), size()));
}

void Group::broadcast_each(const std::vector<at::Tensor>& of_processes, Traffic traffic) const {
  if (size() == 1) return;
  if (!group_) {
    double all = 0.0;
    for (const at::Tensor& x : of_processes) all += bytes_of(x);
    counter_->add(traffic, all_gather_bytes(all / static_cast<double>(size()), size()));
    return;
  }
  std::vector<std::vector<at::Tensor>> lists;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (const at::Tensor& x : of_processes) lists.push_back({x});
  for (size_t root = 0; root < lists.size(); ++root) {
    if (lists[root][0].numel() == 0) continue;
    c10d::BroadcastOptions options;
    options.rootRank = static_cast<int64_t>(root);
    works.push_back(with_loss([&] { return group_->broadcast(lists[root], options); }));
  }
  for (const auto& work : works) finish([&] { return work; });
  counter_->add(traffic,
                all_gather_bytes(bytes_of(of_processes[static_cast<size_t>(rank())]), size()));
}

// c10d's own assigns to a static tensor, which damages memory where threads of a program wait side
// by side.
void Group::barrier(bool endless) const {
  if (size() == 1) return;
  std::vector<at::Tensor> list = {at::zeros({1})};
  c10d::AllreduceOptions options;
  if (endless) options.timeout = std::chrono::hours(24 * 365);
  finish([&] { return group_->allreduce(list, options); });
}

std::vector<std::string> Group::all_gather_text(const std::string& text) const {
  const at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  const at::Tensor lengths = all_gather(length, Traffic::other);
  const int64_t longest = std::max<int64_t>(1, lengths.max().item<int64_t>());
  at::Tensor bytes = at::zeros({1, longest}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  const at::Tensor all = all_gather(bytes, Traffic::other);
  std::vector<std::string> texts;
  for (int64_t i = 0; i < size(); ++i) {
    const auto* begin = reinterpret_cast<const char*>(all[i].const_data_ptr<uint8_t>());
    texts.emplace_back(begin, static_cast<size_t>(lengths[i].item<int64_t>()));
  }
  return texts;
}

}  // namespace moesaic
