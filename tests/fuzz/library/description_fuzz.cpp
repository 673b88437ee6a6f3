// SPDX-License-Identifier: Apache-2.0
// Descriptions of data of every format; "input" is the name that they have to have.
#include "fuzz.h"
#include "moesaic/data/format.h"

void moesaic::fuzz::read_input(Bytes input) {
  const DatasetSpec spec = load_dataset_spec(put_file("input.json", input).string());
  if (!spec.base.empty()) return;
  for (const std::string& split : spec.stored_splits()) info_from_spec(spec, split);
}
