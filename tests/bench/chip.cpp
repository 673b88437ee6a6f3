// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <fstream>
#include <string>

#include "bench.h"

#ifdef MOESAIC_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace moesaic::bench {

std::string processor() {
  std::ifstream processors("/proc/cpuinfo");
  for (std::string line; std::getline(processors, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

std::string chip() {
#ifdef MOESAIC_WITH_CUDA
  if (torch::cuda::is_available()) return at::cuda::getCurrentDeviceProperties()->name;
#endif
  return processor();
}

}  // namespace moesaic::bench
