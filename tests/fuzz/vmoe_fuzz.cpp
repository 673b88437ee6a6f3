// SPDX-License-Identifier: Apache-2.0
// Checkpoints of google-research/vmoe. The first byte gives the number of shards; each of the files
// follows its length in two bytes, the index first.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "fuzz.h"
#include "import/vmoe/files/checkpoint.h"

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

}  // namespace

void read_input(Bytes input) {
  if (input.empty()) return;
  const int shards = 1 + input[0] % 8;
  input = input.subspan(1);
  const std::filesystem::path index = put_file("input.index", next_file(input));
  for (int i = 0; i < shards; ++i) {
    put_file(fmt::format("input.data-{:05}-of-{:05}", i, shards), next_file(input));
  }
  const vmoe_checkpoint::Reader reader(index.parent_path() / "input");
  for (const vmoe_checkpoint::Entry& entry : reader.entries()) {
    if (reader.find(entry.name) != &entry) std::abort();
    std::vector<std::byte> bytes(vmoe_checkpoint::byte_count(entry));
    reader.read(entry, bytes);
  }
}

}  // namespace moesaic::fuzz
