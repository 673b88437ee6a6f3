// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"

namespace moesaic {

inline constexpr char kPatternMoE[] = "pattern-moe";

struct PatternMoEConfig {
  std::string name = kPatternMoE;
  int64_t patterns = 200, tokens = 100, experts = 20, hidden = 20, selected = 5;
  double router_std = 1e-4, neuron_std = 1e-2;
  std::vector<int64_t> kept_experts;
};
template <class Fields>
void describe(Fields& f, PatternMoEConfig& c) {
  f("name", c.name, "which model", required, one_of({kPatternMoE}));
  f("patterns", c.patterns, "d", between(3, 65536));
  f("tokens", c.tokens, "n of an example", between(1, 65536));
  f("experts", c.experts, "k; the first half adds to the output, the others subtract",
    between(2, 4096));
  f("hidden", c.hidden, "m, neurons of an expert", between(1, 65536));
  f("selected", c.selected, "l, tokens that an expert selects", between(1, 65536));
  f("router_std", c.router_std, "of the routers' initial values", above(0.0));
  f("neuron_std", c.neuron_std, "of the neurons' initial values", above(0.0));
  f("kept_experts", c.kept_experts, "the experts that pruning left; empty: all");
}
ConfigProblem config_problem(const PatternMoEConfig& config);

}  // namespace moesaic
