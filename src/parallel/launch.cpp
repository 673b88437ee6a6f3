// SPDX-License-Identifier: Apache-2.0
#include "moesaic/parallel/launch.h"

#include <charconv>
#include <cstdlib>

#include "moesaic/base/error.h"

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
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    fail_usage("environment: {} must be a number from {} to {}, not '{}'", name, min, max, text);
  }
  return value;
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

/// Returns the first host of a list such as "gpu[03-07,09],login1".
std::string first_host(const std::string& list) {
  const size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const size_t end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

/// Completes where the processes meet.
void find_meeting(const Environment& environment, const Names& names, Launch& launch) {
  const std::optional<std::string> address = environment("MASTER_ADDR");
  const std::optional<std::string> port = environment("MASTER_PORT");
  const std::optional<std::string> hosts = environment("SLURM_STEP_NODELIST");
  const std::optional<std::string> local_size = environment(names.local_size);
  launch.port = port ? static_cast<uint16_t>(number_in("MASTER_PORT", *port, 1, 65535)) : kPort;
  if (address) {
    launch.address = *address;
  } else if (local_size && *local_size == std::to_string(launch.size)) {
    launch.address = "127.0.0.1";
  } else if (hosts) {
    launch.address = first_host(*hosts);
  } else {
    fail_usage("environment: {} is {} and MASTER_ADDR is not set; set it to the host of process 0",
               names.size, launch.size);
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

/// Returns which process this is, and not where it meets the others.
Launch numbers_in(const Environment& environment, const Names& names) {
  constexpr int64_t kMax = 65536;  // Far above what a store and its sockets can serve.
  const std::optional<std::string> rank = environment(names.rank), size = environment(names.size);
  Launch launch;
  launch.size =
      number_in(names.size, size ? *size : required(environment, names.size, names.rank), 1, kMax);
  launch.rank = number_in(names.rank, rank ? *rank : required(environment, names.rank, names.size),
                          0, launch.size - 1);
  const std::optional<std::string> local = environment(names.local_rank);
  launch.local_rank = local ? number_in(names.local_rank, *local, 0, kMax) : launch.rank;
  const std::string local_size = environment(names.local_size).value_or("");  // SLURM's: "4(x2)".
  std::from_chars(local_size.data(), local_size.data() + local_size.size(), launch.local_size);
  launch.local_size = std::clamp<int64_t>(launch.local_size, 1, launch.size);
  return launch;
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

Launch launch_of(const Environment& environment) {
  const Names* const names = names_in(environment);
  if (names == nullptr) return {};
  Launch launch = numbers_in(environment, *names);
  if (!launch.alone()) find_meeting(environment, *names, launch);
  if (names != &kTorchrun) return launch;
  launch.store_is_served = environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.attempt = environment("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return launch;
}

int64_t rank_of(const Environment& environment) {
  const Names* const names = names_in(environment);
  return names == nullptr ? 0 : numbers_in(environment, *names).rank;
}

bool is_first_of_machine(const Environment& environment) {
  const Names* const names = names_in(environment);
  return names == nullptr || environment(names->local_rank).value_or("0") == "0";
}

}  // namespace moesaic
