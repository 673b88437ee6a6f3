// SPDX-License-Identifier: Apache-2.0
// Files of tensors, also in archives.
#include "fuzz.h"
#include "moesaic/formats/safetensors.h"

void moesaic::fuzz::read_input(Bytes input) {
  const MemoryFile memory(input);
  const safetensors::File file(memory.path());
  size_t sum = 0;
  for (const safetensors::Entry& entry : file.entries()) {
    for (const std::byte byte : file.bytes(entry)) sum += static_cast<size_t>(byte);
    if (file.find(entry.name) == nullptr) std::abort();
  }
  static volatile size_t seen;
  seen = sum;
}
