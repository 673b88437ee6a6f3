// SPDX-License-Identifier: Apache-2.0
#include "moesaic/parallel/process_group.h"

#include <fmt/format.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"

namespace moesaic {

std::string traffic_name(Traffic traffic) {
  constexpr std::array kNames = {
      "gradients", "expert_gradients", "logits",  "logits_gradient", "row_counts",
      "rows",      "batch_norm",       "metrics", "parameters",      "other"};
  static_assert(kNames.size() == static_cast<size_t>(Traffic::other) + 1);
  return kNames.at(static_cast<size_t>(traffic));
}

double all_reduce_bytes(double bytes, int64_t size) {
  return 2.0 * bytes * static_cast<double>(size - 1) / static_cast<double>(size);
}

void TrafficCounter::add(Traffic traffic, double bytes, int64_t calls) {
  const std::lock_guard lock(mutex_);
  TrafficTotal& sent = sent_[traffic];
  sent.calls += calls;
  sent.bytes += bytes;
}

std::map<Traffic, TrafficTotal> TrafficCounter::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(sent_, {});
}

namespace {

/// Returns the bytes that each sends to give its own `bytes` to all the others in a ring.
double all_gather_bytes(double bytes, int64_t size) {
  return bytes * static_cast<double>(size - 1);
}

/// Returns what a call of c10d does. What it throws where a peer fails becomes PeerFailure.
auto with_loss(const auto& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw PeerFailure(error.what());
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

constexpr size_t kFirstBucket = size_t{1} << 20;  // As in c10d's DDP.

class SilentHandler : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using GroupPointer = std::shared_ptr<const ProcessGroup>;

at::Tensor summed(const at::Tensor& x, const ProcessGroup& group, Traffic traffic) {
  at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  group.all_reduce(sum, traffic);
  return sum;
}

/// Computes `of_values` of x; the gradient of x is what `of_gradients` makes of the result's.
struct WithGradient : torch::autograd::Function<WithGradient> {
  using Call = std::function<at::Tensor(const at::Tensor&)>;
  struct Kept : torch::CustomClassHolder {
    explicit Kept(Call call) : of_gradients(std::move(call)) {}
    Call of_gradients;
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Call& of_values,
                            const Call& of_gradients) {
    context->saved_data["kept"] =
        c10::IValue::make_capsule(c10::make_intrusive<Kept>(of_gradients));
    return of_values(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto kept = context->saved_data.at("kept").toCapsule();
    return {static_cast<const Kept&>(*kept).of_gradients(gradients[0]), {}, {}};
  }
};

}  // namespace

ProcessGroup::ProcessGroup(c10::intrusive_ptr<c10d::ProcessGroup> group,
                           std::shared_ptr<TrafficCounter> counter)
    : group_(std::move(group)),
      rank_(group_->getRank()),
      size_(group_->getSize()),
      counter_(std::move(counter)) {}
ProcessGroup::ProcessGroup(int64_t size, std::shared_ptr<TrafficCounter> counter)
    : size_(size), counter_(std::move(counter)) {}
ProcessGroup::~ProcessGroup() = default;

void ProcessGroup::run_collective(const auto& begin) const {
  if (group_) with_loss([&] { begin()->wait(); });
}

void ProcessGroup::all_reduce(const at::Tensor& x, Traffic traffic, bool takes_max) const {
  if (size() == 1) return;
  std::vector<at::Tensor> list = {x};
  c10d::AllreduceOptions options;
  if (takes_max) options.reduceOp = c10d::ReduceOp::MAX;
  run_collective([&] { return group_->allreduce(list, options); });
  counter_->add(traffic, all_reduce_bytes(bytes_of(x), size()));
}

at::Tensor ProcessGroup::all_gather(const at::Tensor& x, Traffic traffic) const {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.at(0) *= size();
  at::Tensor own = sendable(x), all = at::empty(shape, x.options());
  if (size() == 1) return own;
  if (x.size(0) == 0) return all;
  std::vector<std::vector<at::Tensor>> parts = {all.chunk(size())};
  std::vector<at::Tensor> list = {own};
  run_collective([&] { return group_->allgather(parts, list); });
  counter_->add(traffic, all_gather_bytes(bytes_of(x), size()));
  return all;
}

at::Tensor ProcessGroup::all_to_all(const at::Tensor& x, const std::vector<int64_t>& send,
                                    const std::vector<int64_t>& receive, Traffic traffic) const {
  std::vector<int64_t> shape = x.sizes().vec();
  const int64_t own = send.at(static_cast<size_t>(rank())), all = sum_of(send);
  if (x.size(0) < all) fail("all_to_all: send has {} rows, but x has {}", all, x.size(0));
  shape.at(0) = sum_of(receive);
  at::Tensor sent = sendable(x.narrow(0, 0, all)), received = at::empty(shape, x.options());
  if (size() == 1) return sent;
  std::vector<int64_t> send_sizes = send, receive_sizes = receive;
  run_collective([&] { return group_->alltoall_base(received, sent, receive_sizes, send_sizes); });
  const double rows = static_cast<double>(std::max<int64_t>(all, 1));
  counter_->add(traffic, bytes_of(sent) * static_cast<double>(all - own) / rows);
  return received;
}

void ProcessGroup::broadcast(const at::Tensor& x, int64_t root, Traffic traffic) const {
  if (size() == 1 || x.numel() == 0) return;
  std::vector<at::Tensor> list = {x};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  run_collective([&] { return group_->broadcast(list, options); });
  if (rank() == root) counter_->add(traffic, all_gather_bytes(bytes_of(x), size()));
}

void ProcessGroup::broadcast_each(const std::vector<at::Tensor>& per_rank, Traffic traffic) const {
  if (size() == 1) return;
  if (!group_) {
    double all = 0.0;
    for (const at::Tensor& x : per_rank) all += bytes_of(x);
    counter_->add(traffic, all_gather_bytes(all / static_cast<double>(size()), size()));
    return;
  }
  std::vector<std::vector<at::Tensor>> lists;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (const at::Tensor& x : per_rank) lists.push_back({x});
  for (size_t root = 0; root < lists.size(); ++root) {
    if (lists[root][0].numel() == 0) continue;
    c10d::BroadcastOptions options;
    options.rootRank = static_cast<int64_t>(root);
    works.push_back(with_loss([&] { return group_->broadcast(lists[root], options); }));
  }
  for (const auto& work : works) run_collective([&] { return work; });
  counter_->add(traffic, all_gather_bytes(bytes_of(per_rank[static_cast<size_t>(rank())]), size()));
}

// c10d's own assigns to a static tensor, which corrupts memory where threads of a program wait side
// by side.
void ProcessGroup::barrier(bool waits_forever) const {
  if (size() == 1) return;
  std::vector<at::Tensor> list = {at::zeros({1})};
  c10d::AllreduceOptions options;
  if (waits_forever) options.timeout = std::chrono::hours(24 * 365);
  run_collective([&] { return group_->allreduce(list, options); });
}

std::vector<std::string> ProcessGroup::all_gather_strings(const std::string& text) const {
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

at::Tensor all_gather_rows(const at::Tensor& x, const GroupPointer& group) {
  if (group->size() == 1) return x;
  const auto gather = [&](const at::Tensor& own) {
    return group->all_gather(own, Traffic::logits);
  };
  const auto own_part = [group](const at::Tensor& gradient) {
    const at::Tensor sum = summed(gradient, *group, Traffic::logits_gradient);
    const int64_t rows = sum.size(0) / group->size();
    return sum.narrow(0, group->rank() * rows, rows);
  };
  return WithGradient::apply(x, WithGradient::Call(gather), WithGradient::Call(own_part));
}

at::Tensor all_reduce_sum(const at::Tensor& x, const GroupPointer& group, Traffic traffic) {
  if (group->size() == 1) return x;
  const WithGradient::Call sum = [group, traffic](const at::Tensor& own) {
    return summed(own, *group, traffic);
  };
  return WithGradient::apply(x, sum, sum);
}

at::Tensor all_to_all_rows(const at::Tensor& x, const std::vector<int64_t>& send,
                           const std::vector<int64_t>& receive, const GroupPointer& group) {
  const auto exchange = [&](const at::Tensor& own) {
    return group->all_to_all(own, send, receive, Traffic::rows);
  };
  const auto send_back = [group, send, receive, all = x.size(0)](const at::Tensor& gradient) {
    const at::Tensor back = group->all_to_all(gradient, receive, send, Traffic::rows);
    std::vector<int64_t> shape = back.sizes().vec();
    shape[0] = all - back.size(0);  // Unused rows of a routing's buffer.
    return shape[0] == 0 ? back : at::cat({back, at::zeros(shape, back.options())});
  };
  return WithGradient::apply(x, WithGradient::Call(exchange), WithGradient::Call(send_back));
}

GradientReducer::GradientReducer(std::vector<at::Tensor> parameters, const ProcessGroup& group,
                                 Traffic traffic, size_t bucket_bytes)
    : traffic_(traffic) {
  if (group.size() == 1 || parameters.empty()) return;
  // The last parameters have their gradients first.
  std::reverse(parameters.begin(), parameters.end());
  const auto [buckets, limits] =
      c10d::compute_bucket_assignment_by_size(parameters, {kFirstBucket, bucket_bytes});
  double bytes = 0.0;
  for (const at::Tensor& parameter : parameters) bytes += static_cast<double>(parameter.nbytes());
  counter_ = &group.counter();
  bytes_ = all_reduce_bytes(bytes, group.size());
  buckets_ = static_cast<int64_t>(buckets.size());
  if (!group.c10d()) return;
  const std::vector<bool> sparse(parameters.size(), false);
  reducer_ = std::make_unique<c10d::Reducer>(
      std::move(parameters), buckets, group.c10d(), sparse, static_cast<int64_t>(bucket_bytes),
      /*find_unused_parameters=*/true, /*gradient_as_bucket_view=*/true,
      std::unordered_map<size_t, std::string>(), kFirstBucket,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      std::vector<int64_t>());
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::prepare(const at::Tensor& loss) {
  if (counter_ == nullptr) return;
  counter_->add(traffic_, bytes_, buckets_);
  if (!reducer_) return;
  // It warns where no parameter is unused, which is not known before.
  SilentHandler silent;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  reducer_->prepare_for_backward({loss});
}

void check_batch_divisible(const std::string& where, int64_t batch, int64_t num_micro_batches,
                           int64_t processes) {
  const int64_t unit = num_micro_batches * processes;
  if (batch % unit == 0) return;
  std::string choice =
      fmt::format("a batch of {}, or {}",
                  count_text(std::max<int64_t>(1, (batch + unit / 2) / unit) * unit, "image"),
                  count_text(nearest_divisor(batch / num_micro_batches, processes), "process"));
  if (batch % processes == 0) {
    choice = fmt::format("gradient_accumulation_steps={}",
                         nearest_divisor(batch / processes, num_micro_batches));
  }
  fail_usage("{0}a batch of {2}{3} cannot be divided equally among {1}; choose {4}", where,
             count_text(processes, "process"), count_text(batch, "image"),
             num_micro_batches == 1 ? "" : fmt::format(" in {} micro-batches", num_micro_batches),
             choice);
}

std::vector<int64_t> batch_indices_of_rank(int64_t batch, int64_t num_micro_batches,
                                           bool is_strided, int64_t rank, int64_t size) {
  check_batch_divisible("", batch, num_micro_batches, size);
  const int64_t own = batch / size, ranges = is_strided ? 1 : num_micro_batches;
  std::vector<int64_t> indices;
  for (int64_t range = 0; range < ranges; ++range) {
    const int64_t first = range * (batch / ranges) + rank * (own / ranges);
    for (int64_t i = 0; i < own / ranges; ++i) indices.push_back(first + i);
  }
  return indices;
}

}  // namespace moesaic
