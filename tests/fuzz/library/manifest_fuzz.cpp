// SPDX-License-Identifier: Apache-2.0
// What lists the files of a checkpoint: its manifest, an index of tensors, and what a process says
// of the part that it wrote.
#include <cstdlib>

#include "checkpoint/manifest.h"
#include "fuzz.h"
#include "moesaic/base/error.h"

namespace moesaic::fuzz {
namespace {

/// Reads the input in one of its meanings; in the others it may be right.
template <class Read>
void may_refuse(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::failure) std::abort();  // No user wrote these.
  }
}

}  // namespace

void read_input(Bytes input) {
  may_refuse([&] { read_manifest(put_file("MANIFEST.json", input).parent_path()); });
  may_refuse([&] { read_index(put_file("input.safetensors.index.json", input)); });
  may_refuse([&] { parse_written_shard(text_of(input)); });
}

}  // namespace moesaic::fuzz
