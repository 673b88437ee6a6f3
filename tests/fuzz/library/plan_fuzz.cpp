// SPDX-License-Identifier: Apache-2.0
// Plans of pruning, and files that say what is kept of each layer.
#include "fuzz.h"
#include "moesaic/base/error.h"
#include "moesaic/prune/plan.h"

void moesaic::fuzz::read_input(Bytes input) {
  const std::string file = put_file("input.json", input).string();
  try {
    to_json(read_plan(file)).dump();
  } catch (const Error&) {
    KeepSpec::parse(file);
  }
}
