// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/base/registry.h"

namespace moesaic {

/// A GPU and its links in the node that it is usually sold in: the vendor's figures, without
/// sparsity. docs/scaling.md names the sources.
struct Gpu {
  double float32 = 0.0, tf32 = 0.0, bfloat16 = 0.0;  ///< Peak FLOP/s of matrix products.
  double memory = 0.0;                               ///< Bytes.
  double memory_rate = 0.0;                          ///< Bytes/s read or written.
  double node_rate = 0.0;     ///< Bytes/s sent to the other GPUs of the node.
  double network_rate = 0.0;  ///< Bytes/s sent to other nodes.
};

/// Returns the registry of GPUs that `train --dry-run --gpu` knows; a program may add its own.
Registry<Gpu>& gpus();

}  // namespace moesaic
