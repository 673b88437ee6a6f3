// SPDX-License-Identifier: Apache-2.0
// A recipe that may extend itself, as the file that it lies in is named.
#include "fuzz.h"
#include "moesaic/config/document.h"

void moesaic::fuzz::read_input(Bytes input) {
  const MemoryFile file(input);
  Document::from_file(file.path()).root().to_json();
}
