// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moesaic/config/schema.h"

namespace moesaic {

/// How processes share the work of a run.
struct ParallelConfig {
  int64_t data = 0, experts = 1;
  bool shard_optimizer = false;
  int64_t init_timeout = 300, timeout = 600;
};
template <class Fields>
void describe(Fields& f, ParallelConfig& c) {
  f("data", c.data,
    "D, replicas of the experts among the processes of torchrun; 0: as many as there are processes "
    "for",
    between(0, 1 << 20));
  f("experts", c.experts,
    "K, processes that share the experts of a replica; the processes are D x K, and each takes its "
    "part of every batch",
    between(1, 1 << 20));
  f("shard_optimizer", c.shard_optimizer,
    "each process keeps its part of the optimizer's state of what is not experts (ZeRO-1)");
  f("init_timeout", c.init_timeout,
    "seconds that the processes wait for each other where they meet, at the start",
    between(5, 86400));
  f("timeout", c.timeout,
    "seconds that a step, an evaluation's batch or a save waits for another process that makes no "
    "progress",
    between(5, 86400));
}

}  // namespace moesaic
