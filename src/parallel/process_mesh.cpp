// SPDX-License-Identifier: Apache-2.0
#include "moesaic/parallel/process_mesh.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef MOESAIC_WITH_CUDA
#ifndef USE_C10D_NCCL  // LibTorch defines it where it finds NCCL.
#define USE_C10D_NCCL
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <system_error>

#include "moesaic/base/filesystem.h"
#include "moesaic/base/log.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "monitor.h"

namespace moesaic {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

/// How long it may take to find out which process failed.
constexpr std::chrono::seconds kFailureTimeout(8);

using GlooDevices = std::vector<std::shared_ptr<::gloo::transport::Device>>;

/// Returns where this process listens for the others: on the interfaces of GLOO_SOCKET_IFNAME, as
/// torch.distributed does, or else at the address from which it reaches process 0. c10d's default,
/// the address of the host's own name, is often one that no other machine can reach.
GlooDevices gloo_devices(const Launch& launch) {
  const char* const names = std::getenv("GLOO_SOCKET_IFNAME");
  if (names != nullptr && *names != '\0') {
    GlooDevices devices;
    for (const std::string& name : split(names, ',')) {
      try {
        devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
      } catch (const std::exception&) {
        fail_usage("GLOO_SOCKET_IFNAME: there is no network interface '{}'; ip link lists all",
                   name);
      }
    }
    return devices;
  }
  const std::string own = local_address_for(launch.address, launch.port);
  return {own.empty() ? c10d::ProcessGroupGloo::createDefaultDevice()
                      : c10d::ProcessGroupGloo::createDeviceForHostname(own)};
}

/// The store of the rendezvous, and the mesh that the processes form.
struct Rendezvous {
  Store store;
  const Launch& launch;
  const ParallelConfig& config;
  GlooDevices devices;
  bool uses_cuda = false;  ///< Groups exchange tensors of a GPU too.

  /// Returns a group of the processes first, first + step, ..., of which this one is a member. On
  /// GPUs, only one that `on_cpu` exchanges tensors of the CPU too, by sockets to every other.
  c10::intrusive_ptr<c10d::ProcessGroup> group(const std::string& name, int64_t first, int64_t step,
                                               int64_t count, bool on_cpu = true) const {
    const auto prefix =
        c10::make_intrusive<c10d::PrefixStore>(name + "/" + std::to_string(first), store);
    const auto place = static_cast<int>((launch.rank - first) / step),
               members = static_cast<int>(count);
    auto group = c10::make_intrusive<c10d::ProcessGroup>(prefix, place, members);
    if (uses_cuda) add_nccl(*group, prefix);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
    if (uses_cuda && !on_cpu) return group;
    auto options =
        c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(config.init_timeout));
    options->devices = devices;
    const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(prefix, place, members, options);
    gloo->setTimeout(std::chrono::seconds(config.timeout));
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    return group;
  }

  void add_nccl(c10d::ProcessGroup& group, const Store& prefix) const {
#ifdef MOESAIC_WITH_CUDA
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::seconds(config.timeout);
    group.setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL,
                     c10::make_intrusive<c10d::ProcessGroupNCCL>(prefix, group.getRank(),
                                                                 group.getSize(), options));
#else
    fail_usage("this build does not support CUDA, so several processes need --device cpu");
#endif
  }
};

/// Gives this process the GPU of its number on its machine.
void choose_gpu(const Launch& launch) {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  const auto gpus = static_cast<int64_t>(guard.deviceCount());
  if (launch.local_rank >= gpus) {
    fail("process {} has local rank {}, but its machine has {}; start one process per GPU",
         launch.rank, launch.local_rank, count_text(gpus, "GPU"));
  }
  guard.setDevice(
      c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(launch.local_rank)));
}

/// Returns the number of replicas D. Throws Error (usage) where D x K is not the number of
/// processes.
int64_t replicas_of(const ParallelConfig& config, int64_t size) {
  if (config.expert_parallel_size > size || size % config.expert_parallel_size != 0) {
    fail_usage(
        "parallel.expert_parallel_size: {} cannot be divided into groups of {} that share experts; "
        "choose {}",
        count_text(size, "process"), config.expert_parallel_size,
        nearest_divisor(size, config.expert_parallel_size));
  }
  const int64_t replicas = size / config.expert_parallel_size;
  if (config.num_replicas != 0 && config.num_replicas != replicas) {
    fail_usage(
        "parallel.num_replicas: {} x {} (parallel.expert_parallel_size) is {}, but there are {}; "
        "choose parallel.num_replicas={}, or leave it out",
        config.num_replicas, config.expert_parallel_size,
        count_text(config.num_replicas * config.expert_parallel_size, "process"), size, replicas);
  }
  return replicas;
}

/// Returns what `make` does, on a thread that is left alone where it takes longer.
auto within(std::chrono::seconds time, auto make) -> decltype(make()) {
  std::packaged_task<decltype(make())()> task(std::move(make));
  auto made = task.get_future();
  std::thread(std::move(task)).detach();
  if (made.wait_for(time) != std::future_status::ready) throw PeerFailure("no answer");
  return made.get();
}

/// Returns whether an error says that no more files can be open, which needs no other words.
bool names_open_files(const std::string& error) {
  return error.find("Too many open files") != std::string::npos ||
         error.find("EMFILE") != std::string::npos;
}

/// Lets this process have as many files open as it may. Throws Error (failure) where these are not
/// as many as it will need: Gloo accepts connections in a thread of its own, whose failure another
/// process would learn as a reset connection. Counted in /proc/self/fd: a group takes a socket to
/// each other member, a process has four clients of the store, of which process 0 holds both ends
/// where it serves the store, and a run has its own files open besides. All count as process 0
/// does, so that none waits in vain.
void reserve_descriptors(const Launch& launch, const ParallelConfig& config) {
  constexpr int64_t kClients = 4, kOfARun = 32;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  std::error_code error;
  const fs::directory_iterator open("/proc/self/fd", error);
  if (error || limit.rlim_cur == RLIM_INFINITY) return;
  const int64_t size = launch.world_size, experts = config.expert_parallel_size;
  const int64_t groups = 2 * (size - 1) + (experts > 1 ? experts + size / experts : 0);
  const int64_t clients = kClients * (launch.has_external_store ? 1 : size + 1);
  const int64_t needed = std::distance(begin(open), end(open)) + groups + clients + kOfARun;
  const auto allowed = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT32_MAX));
  if (needed <= allowed) return;
  fail("{} need {} files open in each, and this one may have {}; raise the limit (ulimit -n)",
       count_text(size, "process"), needed, allowed);
}

Store open_store(const Launch& launch, std::chrono::seconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.isServer = launch.rank == 0 && !launch.has_external_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (options.isServer &&
      (launch.local_world_size == launch.world_size || is_loopback_host(launch.address))) {
    options.masterListenFd = listen_on_loopback(launch.address, launch.port);
  }
  try {
    // c10d waits for longer than its timeout, and without end for a server of another kind.
    const Store store = within(timeout, [address = launch.address, options]() -> Store {
      return c10::make_intrusive<c10d::TCPStore>(address, options);
    });
    return c10::make_intrusive<c10d::PrefixStore>("moesaic/" + launch.attempt, store);
  } catch (const std::exception& error) {
    if (names_open_files(error.what())) throw;
    const std::string place = launch.address + ":" + std::to_string(launch.port);
    const bool in_use = std::string(error.what()).find("in use") != std::string::npos ||
                        std::string(error.what()).find("EADDRINUSE") != std::string::npos;
    if (in_use) {
      fail_usage(
          "{}: the processes cannot connect: the port is in use; set MASTER_PORT to a free one",
          place);
    }
    if (options.isServer) {
      fail_usage(
          "{}: the processes cannot connect; set MASTER_ADDR to this machine's name or address",
          place);
    }
    fail("{}: process 0 did not answer within {}; check that it runs and that MASTER_ADDR is right",
         place, count_text(timeout.count(), "second"));
  }
}

/// Throws Error (usage) where processes would form other groups, in which they would wait for each
/// other in vain.
void check_same_mesh(const Store& store, const Launch& launch, const ParallelConfig& config) {
  const std::string own =
      fmt::format("{} with parallel.expert_parallel_size={}",
                  count_text(launch.world_size, "process"), config.expert_parallel_size);
  const std::vector<std::string> all = StoreAllGather(
      c10::make_intrusive<c10d::PrefixStore>("mesh", store), launch.rank, launch.world_size)(
      own, std::chrono::seconds(config.init_timeout),
      [](const auto&) { C10_THROW_ERROR(DistStoreError, "too late"); });
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    // The others read the same, and process 0 says it.
    std::this_thread::sleep_for(std::chrono::seconds(launch.rank == 0 ? 1 : 3));
    fail_usage("process {} is one of {}, process 0 of {}; start all by one command", rank,
               all[rank], all[0]);
  }
}

/// Returns the first ranks of the processes that did not come, with commas between them.
std::string missing_from(const Store& store, int64_t size) try {
  constexpr int kMaxNamed = 8;
  std::string missing;
  int named = 0;
  for (int64_t rank = 0; rank < size; ++rank) {
    if (store->check({"here/" + std::to_string(rank)})) continue;
    if (++named > kMaxNamed) return missing + " and others";
    missing += (missing.empty() ? "number " : ", ") + std::to_string(rank);
  }
  return missing;
} catch (const std::exception&) {
  return "";  // Process 0, which serves the store, is gone.
}

}  // namespace

bool is_rank_zero_reachable(const Launch& launch) noexcept {
  constexpr std::chrono::seconds kFew(4);
  try {
    const Store store = open_store(launch, kFew);
    store->wait({"here/0"}, kFew);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::shared_ptr<const ProcessMesh> ProcessMesh::connect(const Launch& launch,
                                                        const ParallelConfig& config,
                                                        bool uses_cuda) {
  replicas_of(config, launch.world_size);
  if (uses_cuda) choose_gpu(launch);
  reserve_descriptors(launch, config);
  const auto store = open_store(launch, std::chrono::seconds(config.init_timeout));
  const std::shared_ptr<ProcessMesh> processes = from_store(store, launch, config, uses_cuda);
  set_warning_handler(
      [monitor = std::weak_ptr<Monitor>(processes->monitor_)](std::string_view text) {
        const std::shared_ptr<Monitor> alive = monitor.lock();
        alive ? alive->warn(text) : write_log_line(LogLevel::warning, text);
      });
  processes->takes_warnings_ = true;
  return processes;
}

std::shared_ptr<ProcessMesh> ProcessMesh::from_store(const Store& store, const Launch& launch,
                                                     const ParallelConfig& config,
                                                     bool uses_cuda) try {
  // c10d's record of collectives is not safe where threads of a process use groups side by side.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  // Groups exchange side by side, in an order that may differ between GPUs unless NCCL keeps it.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  const int64_t rank = launch.rank, size = launch.world_size;
  const int64_t replicas = replicas_of(config, size), experts = config.expert_parallel_size;
  const Rendezvous rendezvous{store, launch, config, gloo_devices(launch), uses_cuda};
  if (store->add("here/" + std::to_string(rank), 1) > 1) {
    fail_usage("two processes have rank {} of {}; check that no other run uses {}:{}", rank, size,
               launch.address, launch.port);
  }
  check_same_mesh(store, launch, config);
  const std::shared_ptr<ProcessMesh> processes(new ProcessMesh());
  processes->config_ = config;
  processes->counter_ = std::make_shared<TrafficCounter>();
  const auto group = [&](auto... of) {
    return std::make_shared<ProcessGroup>(rendezvous.group(of...), processes->counter_);
  };
  processes->world_ = group("world", 0, 1, size);
  processes->gradients_ = group("gradients", 0, 1, size, /*on_cpu=*/false);
  // A group has a socket to each of its processes, so groups that do not work side by side are one.
  processes->experts_ =
      experts == size ? processes->world_ : group("experts", rank / experts * experts, 1, experts);
  processes->replicas_ =
      experts == 1 ? processes->gradients_ : group("replicas", rank % experts, experts, replicas);
  processes->monitor_ = std::make_shared<Monitor>(store->clone(), launch);
  return processes;
} catch (const c10::Error& error) {
  if (names_open_files(error.what_without_backtrace())) throw;
  const int64_t size = launch.world_size;
  const std::string missing = missing_from(store, size);
  if (missing.empty()) {
    fail("some of {} failed at the start: {}", count_text(size, "process"),
         one_line(error.what_without_backtrace(), 200));
  }
  fail("of {}, {} did not connect within {}; check that all run the same command",
       count_text(size, "process"), missing, count_text(config.init_timeout, "second"));
}

std::shared_ptr<const ProcessMesh> ProcessMesh::make_fake(int64_t size,
                                                          const ParallelConfig& config) {
  const std::shared_ptr<ProcessMesh> processes(new ProcessMesh());
  processes->config_ = config;
  const auto of = [](int64_t members) {
    return std::make_shared<ProcessGroup>(members, std::make_shared<TrafficCounter>());
  };
  processes->world_ = of(size);
  processes->gradients_ = of(size);
  processes->experts_ = of(config.expert_parallel_size);
  processes->replicas_ = of(replicas_of(config, size));
  return processes;
}

ProcessMesh::~ProcessMesh() {
  if (takes_warnings_) set_warning_handler({});
}

void ProcessMesh::barrier() const {
  try {
    // What process 0 warns of is known before the others say what only they warn of.
    if (is_rank_zero()) monitor_->publish(/*includes_all_warnings=*/true);
    world_->barrier(/*waits_forever=*/true);
    if (!is_rank_zero()) monitor_->publish(/*includes_all_warnings=*/true);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerFailure(error.what());
  }
}

std::vector<std::string> ProcessMesh::all_gather_text(const std::string& text,
                                                      std::chrono::seconds timeout) const {
  return monitor_->exchange(text, timeout);
}

void ProcessMesh::report_progress() const noexcept {
  monitor_->progress();
}

double ProcessMesh::broadcast_from_rank_zero(double value) const {
  const at::Tensor sent = at::full({1}, value, at::kDouble);
  world_->broadcast(sent, 0, Traffic::other);
  return sent.item<double>();
}

int64_t ProcessMesh::all_reduce_max(int64_t value) const {
  const at::Tensor largest = at::full({1}, value, at::kLong);
  world_->all_reduce(largest, Traffic::other, /*takes_max=*/true);
  return largest.item<int64_t>();
}

void ProcessMesh::check_same(const std::string& what, const std::string& value) const {
  const std::vector<std::string> values = world_->all_gather_strings(value);
  for (size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] == values[0]) continue;
    fail_usage("process {} has another {} than process 0 ({} and {})", rank, what,
               one_line(values[rank], 80), one_line(values[0], 80));
  }
}

// Process 0 may serve the store, to which the others still tell their warnings after the first
// wait.
void ProcessMesh::finish() const {
  barrier();
  monitor_->mark_done();
  barrier();
}

// A store that does not answer would hold these up: that of a process 0 which is stopped.
bool ProcessMesh::publish_failure(const std::string& message) const noexcept {
  try {
    return within(kFailureTimeout,
                  [monitor = monitor_, message] { return monitor->publish_failure(message); });
  } catch (const std::exception&) {
    return true;  // Nobody else can say it.
  }
}

std::string ProcessMesh::describe_failure(const std::string& message) const {
  try {
    return within(kFailureTimeout,
                  [monitor = monitor_, message] { return monitor->describe_failure(message); });
  } catch (const std::exception&) {
    return monitor_->without_store();
  }
}

void ProcessMesh::on_peer_failure(std::function<void()> action) const {
  monitor_->on_peer_failure(std::move(action));
}

void ProcessMesh::shut_down_after_failure() const noexcept {
  try {
    within(kFailureTimeout, [monitor = monitor_] { monitor->shut_down_after_failure(); });
  } catch (const std::exception&) {
    // Nobody is left to wait for, or the store does not answer.
  }
}

void ProcessMesh::set_activity(const std::string& activity) const {
  monitor_->set_activity(activity);
}

}  // namespace moesaic
