// SPDX-License-Identifier: Apache-2.0
// What `moesaic bench` runs. A benchmark is not a test: it prints figures and never fails for them.
#pragma once

#include "report.h"

namespace moesaic::bench {

/// Median times in seconds of two sides that run in turn, so that a slow moment of the machine
/// meets both; short ones are repeated within a turn. The first turns are not counted.
struct Times {
  double ours, peer;
};
Times alternate(const std::function<void()>& ours, const std::function<void()>& peer);

/// Returns the row of two times in milliseconds; `goal` is the least baseline / ours.
Row faster(const Times& times, std::optional<double> goal, std::string description);
/// Returns the row of two rates, whose ratio is ours / baseline, at least `goal`.
Row at_least(double ours, double peer, std::string unit, std::optional<double> goal,
             std::string description);
/// Returns the row of two figures whose ratio is ours / baseline, at most `goal`.
Row at_most(double ours, double peer, std::string unit, double goal, std::string description);
/// Does the same for times in milliseconds, and says so behind the description.
Row at_most(const Times& times, double goal, const std::string& description);

/// Alternates with the fastest of several baselines, whose index is returned.
struct Race {
  Times times;
  size_t fastest;
};
Race alternate_with_fastest(const std::function<void()>& ours,
                            const std::vector<std::function<void()>>& peers);

/// Binds each thread to a processor of its own. Threads that move disturb short times.
void bind_threads();

/// Writes to up to 2 GiB of memory, once. A virtual machine gets memory from its host at
/// the first touch, which takes longer than training steps do.
void touch_memory();

struct Benchmark {
  std::string name, description;
  std::function<void(const Report&)> run;
  std::function<std::string()> skipped;  ///< a line on what this machine cannot time, or ""
};

/// All there are, by name.
const std::vector<Benchmark>& benchmarks();

/// Routing, dispatch, experts and combine against plain ATen.
void bench_operators(const Report& report);
/// The same on a GPU; nothing without one.
void bench_operators_gpu(const Report& report);
std::string operators_left_out();

/// Training steps and inference of whole networks against plain ATen.
void bench_vmoe(const Report& report);

/// Single-sample steps of the latent clusters paper against plain ATen.
void bench_latent(const Report& report);
/// The pMoE paper's wide residual networks: the mixture's experts against plain ATen, and steps of
/// both.
void bench_wrn(const Report& report);

/// Loading of photos against PyTorch's DataLoader; nothing without photos.
void bench_data(const Report& report);
std::string data_left_out();

/// Training on several processes against one.
void bench_processes(const Report& report);

/// Name of the processor.
std::string processor();
/// What was timed: the GPU where there is one, else the processor.
std::string chip();

}  // namespace moesaic::bench
