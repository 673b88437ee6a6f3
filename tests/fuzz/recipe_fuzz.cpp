// SPDX-License-Identifier: Apache-2.0
// Recipes with overrides: a document, a blank line, and an argument a line.
#include <sstream>

#include "fuzz.h"
#include "moesaic/config/document.h"
#include "moesaic/config/rules.h"

void moesaic::fuzz::read_input(Bytes input) {
  const auto [text, overrides] = halves(input);
  Document document = Document::from_text(text, "recipe.json");
  std::istringstream lines(overrides);
  for (std::string line; std::getline(lines, line);) document.set(line);
  arguments_in(document.root());
  document.root().to_json();
}
