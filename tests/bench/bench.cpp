// SPDX-License-Identifier: Apache-2.0
#include "bench.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "moesaic/base/process.h"
#include "moesaic/report/throughput.h"

namespace moesaic::bench {
namespace {

constexpr int kTurns = 11;
constexpr double kTurnSeconds = 0.05;  // at least, for each side
constexpr double kSideSeconds = 4.0;   // long enough for a median of fewer turns

double seconds(const std::function<void()>& work, int repeats) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats;
}

int repeats_for(double once) {
  return std::clamp(static_cast<int>(kTurnSeconds / std::max(once, 1e-7)), 1, 2000);
}

}  // namespace

Times alternate(const std::function<void()>& ours, const std::function<void()>& peer) {
  ours();
  peer();
  const int ours_repeats = repeats_for(seconds(ours, 1));
  const int peer_repeats = repeats_for(seconds(peer, 1));
  std::vector<double> a, b;
  double spent = 0;
  for (int turn = 0; turn < kTurns && (turn < 5 || spent < 2 * kSideSeconds); ++turn) {
    // Who begins changes from turn to turn.
    if (turn % 2 == 0) a.push_back(seconds(ours, ours_repeats));
    b.push_back(seconds(peer, peer_repeats));
    if (turn % 2 == 1) a.push_back(seconds(ours, ours_repeats));
    spent += a.back() * ours_repeats + b.back() * peer_repeats;
  }
  return {median(a), median(b)};
}

Race alternate_with_fastest(const std::function<void()>& ours,
                            const std::vector<std::function<void()>>& peers) {
  constexpr int kHeats = 5;
  std::vector<std::vector<double>> times(peers.size());
  for (const auto& peer : peers) peer();
  for (int heat = 0; heat < kHeats; ++heat) {
    for (size_t i = 0; i < peers.size(); ++i) times[i].push_back(seconds(peers[i], 1));
  }
  size_t fastest = 0;
  for (size_t i = 1; i < peers.size(); ++i) {
    if (median(times[i]) < median(times[fastest])) fastest = i;
  }
  return {alternate(ours, peers[fastest]), fastest};
}

void bind_threads() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &allowed)) processors.push_back(i);
  }
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(processors[static_cast<size_t>(at::get_thread_num()) % processors.size()], &own);
    ::sched_setaffinity(0, sizeof own, &own);
  });
}

Row faster(const Times& times, std::optional<double> goal, std::string description) {
  return {times.ours * 1e3,      times.peer * 1e3, "ms", times.peer / times.ours, goal, {},
          std::move(description)};
}
Row at_least(double ours, double peer, std::string unit, std::optional<double> goal,
             std::string description) {
  return {ours, peer, std::move(unit), ours / peer, goal, {}, std::move(description)};
}
Row at_most(double ours, double peer, std::string unit, double goal, std::string description) {
  return {ours, peer, std::move(unit), ours / peer, {}, goal, std::move(description)};
}
Row at_most(const Times& times, double goal, const std::string& description) {
  return at_most(times.ours * 1e3, times.peer * 1e3, "ms", goal,
                 description + "; ratio: ours / baseline");
}

void touch_memory() {
  constexpr size_t kMaxBytes = size_t{2} << 30, kPage = 4096;
  const size_t bytes = std::min(kMaxBytes, static_cast<size_t>(memory_limit() / 8));
  const auto memory = std::make_unique_for_overwrite<char[]>(bytes);
  for (size_t at = 0; at < bytes; at += kPage) static_cast<volatile char*>(memory.get())[at] = 1;
}

const std::vector<Benchmark>& benchmarks() {
  const auto nothing_left_out = [] { return std::string(); };
  static const std::vector<Benchmark> all = {
      {"data", "reading photos for training against Python's DataLoader", bench_data,
       data_left_out},
      {"latent",
       "single-sample steps of the latent paper's algorithm, sampling included, against plain ATen",
       bench_latent, nothing_left_out},
      {"operators", "routing, dispatch, experts and combine against plain ATen",
       [](const Report& report) {
         report.section("cpu/", [&] { bench_operators(report); });
         bench_operators_gpu(report);
       },
       operators_left_out},
      {"pmoe",
       "training steps of a wide residual network with patch-level experts (WRN-pMoE) against "
       "plain ATen",
       bench_wrn, nothing_left_out},
      {"processes",
       "training on two processes against one, and overlap of computation and communication",
       bench_processes, nothing_left_out},
      {"vmoe", "training steps and inference of V-MoE against plain ATen", bench_vmoe,
       operators_left_out},
  };
  return all;
}

}  // namespace moesaic::bench
