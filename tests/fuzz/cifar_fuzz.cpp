// SPDX-License-Identifier: Apache-2.0
// Batches of CIFAR; the first two bytes say how many records and label bytes are described.
#include "fuzz.h"
#include "moesaic/formats/cifar.h"

void moesaic::fuzz::read_input(Bytes input) {
  if (input.size() < 2) return;
  const cifar::Layout layout{1 + input[1] % 2, input[1] / 2 % (1 + input[1] % 2)};
  const int64_t record = layout.num_label_bytes + cifar::kChannels * cifar::kHeight * cifar::kWidth;
  const MemoryFile file(input.subspan(2));
  cifar::Records records;
  cifar::read(file.path(), input[0] * record, layout, records);
}
