// SPDX-License-Identifier: Apache-2.0
// IDX files, compressed and not.
#include "fuzz.h"
#include "moesaic/formats/idx.h"

void moesaic::fuzz::read_input(Bytes input) {
  const MemoryFile file(input);
  idx::read(file.path());
}
