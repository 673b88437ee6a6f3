// SPDX-License-Identifier: Apache-2.0
// Checkpoints of google-research/vmoe. The first byte gives the number of shards; each of the files
// follows its length in two bytes, the index first.
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "fuzz.h"
#include "moesaic/base/error.h"
#include "moesaic/formats/vmoe_checkpoint.h"

namespace moesaic::fuzz {
namespace {

/// Takes the next file off the input.
Bytes next_file(Bytes& input) {
  if (input.size() < 2) return {};
  const size_t length = std::min<size_t>(input[0] + 256u * input[1], input.size() - 2);
  const Bytes file = input.subspan(2, length);
  input = input.subspan(2 + length);
  return file;
}

void put(const std::string& path, Bytes content) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(content.data()),
             static_cast<std::streamsize>(content.size()));
}

}  // namespace

void read_input(Bytes input) {
  if (input.empty()) return;
  const int shards = 1 + input[0] % 4;
  input = input.subspan(1);
  static const std::string prefix = "/dev/shm/moesaic-fuzz-" + std::to_string(::getpid());
  put(prefix + ".index", next_file(input));
  for (int i = 0; i < shards; ++i) {
    put(fmt::format("{}.data-{:05}-of-{:05}", prefix, i, shards), next_file(input));
  }
  const vmoe_checkpoint::Reader reader(prefix);
  for (const vmoe_checkpoint::Entry& entry : reader.entries()) byte_count(entry);
}

}  // namespace moesaic::fuzz
