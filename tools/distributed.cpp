// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/ops/memory.h"
#include "moesaic/parallel/process_group.h"
#include "runtime.h"

namespace moesaic::tools {
namespace {

using std::chrono_literals::operator""s;

/// Tells the others and the user why this process ends, unless another has said the same.
void tell(const ProcessMesh& processes, const std::string& what, bool of_all = false) {
  record_error(what);
  if (!processes.publish_failure(what)) return;
  const std::string who = fmt::format("process {} of {}: ", processes.rank(), processes.size());
  log_error("{}{}", of_all ? "" : who, what);
}

void tell_loss(const ProcessMesh& processes, const std::string& what) {
  const std::string loss = processes.describe_failure(what);
  if (!loss.empty()) log_error("{}", loss);  // Otherwise another process says it.
}

/// How this process ends, which one of its threads decides.
struct Ending {
  std::mutex mutex;
  bool is_done = false;
};

[[noreturn]] void end(const ProcessMesh& processes, int exit_code) {
  processes.shut_down_after_failure();
  // Threads of collectives that wait for failed processes would hold up an ordinary end.
  std::_Exit(exit_code);
}

}  // namespace

std::shared_ptr<const ProcessMesh> init_process_mesh(const ParallelConfig& config,
                                                     const std::string& device) {
  const Launch launch = read_launch(process_environment());
  limit_cached_memory(launch.local_world_size);
  if (!launch.is_single_process()) return ProcessMesh::connect(launch, config, device == "cuda");
  if (config.expert_parallel_size > 1 || config.num_replicas > 1) {
    fail_usage(
        "one process was started, but parallel.expert_parallel_size (--expert-parallel) and "
        "parallel.num_replicas ask "
        "for {}; start as many by torchrun, mpirun or srun, or leave both settings out",
        config.expert_parallel_size * std::max<int64_t>(1, config.num_replicas));
  }
  return nullptr;
}

void run_distributed(const std::string& verb, const std::shared_ptr<const ProcessMesh>& processes,
                     const std::function<void()>& action) {
  if (!processes) return action();
  int exit_code = 1;
  const auto ending = std::make_shared<Ending>();
  processes->on_peer_failure([&others = *processes, ending] {
    const std::lock_guard lock(ending->mutex);
    if (ending->is_done) return;
    tell_loss(others, "another process ends");
    end(others, 1);
  });
  try {
    processes->check_same("subcommand", verb);
    action();
    processes->finish();
    const std::lock_guard lock(ending->mutex);
    ending->is_done = true;
    return;
  } catch (const PeerFailure& error) {
    ending->mutex.lock();
    tell_loss(*processes, error.what());
  } catch (const Error& error) {
    exit_code = error.exit_code();
    ending->mutex.lock();
    // What is wrong for all of them process 0 says.
    if (error.kind() == ErrorKind::usage && !processes->is_rank_zero())
      std::this_thread::sleep_for(1s);
    tell(*processes, error.what(), error.kind() == ErrorKind::usage && processes->is_rank_zero());
  } catch (const std::exception& error) {
    ending->mutex.lock();
    tell(*processes, one_line(error.what(), 300));
  }
  end(*processes, exit_code);
}

void require_single_process(std::string_view verb) {
  const Launch launch = read_launch(process_environment());
  if (launch.is_single_process()) return;
  fail_usage("{} runs in one process, but {} were started; start one", verb, launch.world_size);
}

}  // namespace moesaic::tools
