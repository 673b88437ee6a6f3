// SPDX-License-Identifier: Apache-2.0
// Shards of images.
#include "fuzz.h"
#include "moesaic/formats/archive.h"

void moesaic::fuzz::read_input(Bytes input) {
  const MemoryFile file(input);
  for (const TarMember& member : index_tar(file.path()).members) {
    const auto size = static_cast<int64_t>(input.size());
    if (member.offset < 0 || member.size < 0 || member.offset + member.size > size) std::abort();
  }
}
