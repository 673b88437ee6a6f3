// SPDX-License-Identifier: Apache-2.0
// Documents that a program wrote: manifests, states, exports.
#include "fuzz.h"
#include "moesaic/config/document.h"

void moesaic::fuzz::read_input(Bytes input) {
  const Value value = parse_stored(text_of(input), "input");
  const Value again = parse_stored(value.to_json().dump(), "again");
  // A number may be written in another form, but it is the same document.
  if (again.to_json().dump() != value.to_json().dump()) std::abort();
}
