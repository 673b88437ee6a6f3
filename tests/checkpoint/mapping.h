// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <sstream>
#include <string>

namespace moesaic::testing {

/// Whether the numbers lie in a mapping of this file, by what the system says of the process.
inline bool lies_in_file(const at::Tensor& tensor, const std::filesystem::path& file) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    std::istringstream range(line);
    char dash = 0;
    range >> std::hex >> begin >> dash >> end;
    if (address >= begin && address < end) {
      return line.find(std::filesystem::canonical(file).string()) != std::string::npos;
    }
  }
  return false;
}

}  // namespace moesaic::testing
