// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "moesaic/config/schema.h"
#include "moesaic/ops/link.h"

namespace moesaic {

inline constexpr char kGatedMoE[] = "gated-moe";

struct GatedMoEConfig {
  std::string name = kGatedMoE;
  int64_t width = 10, experts = 2;
  std::string link = kLinkNames.front();
  double noise = 0.05;
  std::string regressors = "random", gates = "zero";
};
template <class Fields>
void describe(Fields& f, GatedMoEConfig& c) {
  f("name", c.name, "which model", required, one_of({kGatedMoE}));
  f("width", c.width, "d of an input", between(1, 65536));
  f("experts", c.experts, "k", between(1, 1024));
  f("link", c.link, "g: expert i outputs g(<a_i, x>)",
    one_of({kLinkNames.begin(), kLinkNames.end()}));
  f("noise", c.noise, "sigma of the data's outputs, as losses assume it", between(1e-6, 1e3));
  f("regressors", c.regressors, "initial a_i: random unit vectors, or e_i",
    one_of({"random", "axes"}));
  f("gates", c.gates, "initial w_i: 0, or random unit vectors", one_of({"zero", "random"}));
}
ConfigProblem config_problem(const GatedMoEConfig& config);

}  // namespace moesaic
