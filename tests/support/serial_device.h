// SPDX-License-Identifier: Apache-2.0
// A device for ops/cuda/*_on.h that runs GPU kernels on the host, with workspace that holds
// anything.
#pragma once

#include "ops/kernels/serial_block.h"

namespace moesaic::testing {

struct SerialDevice {
  ops::kernels::Order order = ops::kernels::Order::forward;

  template <int Threads, class Kernel>
  void start(const Kernel& kernel, int64_t blocks, int threads, int64_t shared_bytes) const {
    if (threads > Threads) std::abort();  // more than the kernel is compiled for
    ops::kernels::run_serially(kernel, blocks, threads, static_cast<size_t>(shared_bytes), order);
  }
};

constexpr ops::kernels::Order kOrders[] = {
    ops::kernels::Order::forward, ops::kernels::Order::reverse, ops::kernels::Order::shuffled};

}  // namespace moesaic::testing
