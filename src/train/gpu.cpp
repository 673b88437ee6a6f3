// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/gpu.h"

namespace moesaic {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9;

// Datasheets give links as the sum of both directions; here it is one. Networks are those of the
// vendor's own nodes, one port a GPU: 200 Gbit/s for a100, 400 Gbit/s from Hopper on; of L40S there
// is no such node, so 200 Gbit/s is a guess, and what links its GPUs is PCIe.
Registry<Gpu>::Entries known_gpus() {
  Registry<Gpu>::Entries entries;
  entries["a100"] = {.float32 = 19.5 * kTera,
                     .tf32 = 156 * kTera,
                     .bfloat16 = 312 * kTera,
                     .memory = 80 * kGiga,
                     .memory_rate = 2.039 * kTera,
                     .node_rate = 300 * kGiga,
                     .network_rate = 25 * kGiga};
  entries["h100"] = {.float32 = 67 * kTera,
                     .tf32 = 494.7 * kTera,
                     .bfloat16 = 989.4 * kTera,
                     .memory = 80 * kGiga,
                     .memory_rate = 3.35 * kTera,
                     .node_rate = 450 * kGiga,
                     .network_rate = 50 * kGiga};
  entries["h200"] = entries["h100"];
  entries["h200"].memory = 141 * kGiga;
  entries["h200"].memory_rate = 4.8 * kTera;
  entries["b200"] = {.float32 = 75 * kTera,
                     .tf32 = 1125 * kTera,
                     .bfloat16 = 2250 * kTera,
                     .memory = 180 * kGiga,
                     .memory_rate = 7.7 * kTera,
                     .node_rate = 900 * kGiga,
                     .network_rate = 50 * kGiga};
  entries["l40s"] = {.float32 = 91.6 * kTera,
                     .tf32 = 183 * kTera,
                     .bfloat16 = 362 * kTera,
                     .memory = 48 * kGiga,
                     .memory_rate = 0.864 * kTera,
                     .node_rate = 32 * kGiga,
                     .network_rate = 25 * kGiga};
  return entries;
}

}  // namespace

Registry<Gpu>& gpus() {
  static Registry<Gpu> registry("GPU", known_gpus());
  return registry;
}

}  // namespace moesaic
