// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "moesaic/config/schema.h"
#include "moesaic/nn/gru_mixture.h"

namespace moesaic {

inline constexpr char kGru[] = "gru";

struct GruConfig {
  std::string name = kGru;
  int64_t steps = 28, width = 28, hidden = 64, classes = 10;
  std::string view = nn::kGruViewNames.front();
};
template <class Fields>
void describe(Fields& f, GruConfig& c) {
  f("name", c.name, "which model", required, one_of({kGru}));
  f("steps", c.steps, "T, rows of an image, which are read one after the other", between(1, 4096));
  f("width", c.width, "d, numbers of a row", between(1, 65536));
  f("hidden", c.hidden, "m, numbers of the state", between(1, 65536));
  f("classes", c.classes, "outputs of the head", between(1, 65536));
  f("view", c.view, "the candidate state as a mixture of experts, or as torch.nn.GRU has it",
    one_of({nn::kGruViewNames.begin(), nn::kGruViewNames.end()}));
}

}  // namespace moesaic
