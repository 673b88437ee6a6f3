// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"
#include "moesaic/nn/latent_routing.h"

namespace moesaic {

inline constexpr char kLatentMoE[] = "latent-moe";

struct LatentMoEConfig {
  std::string name = kLatentMoE;
  int64_t width = 200, experts = 8, hidden = 500;
  std::string activation = "relu";
  int64_t min_degree = 3, max_degree = 5;
  double bias = 1.0;
  std::string routing = nn::kEveryAboveZero;
  std::vector<int64_t> kept_experts;
};
template <class Fields>
void describe(Fields& f, LatentMoEConfig& c) {
  f("name", c.name, "which model", required, one_of({kLatentMoE}));
  f("width", c.width, "d of an input", between(1, 65536));
  f("experts", c.experts, "M; 1 is the single, 'vanilla' network", between(1, 4096));
  f("hidden", c.hidden, "J, neurons of an expert", between(1, 1048576));
  f("activation", c.activation,
    "of the neurons: relu, or hermite: a polynomial of Hermite polynomials with random signs for "
    "each neuron (appendix A.3)",
    one_of({"relu", "hermite"}));
  f("min_degree", c.min_degree, "k* of that polynomial", between(1, 16));
  f("max_degree", c.max_degree, "p* of it", between(1, 16));
  f("bias", c.bias, "C_b: biases start in U[-C_b, C_b]", between(0.0, 1e3));
  f("routing", c.routing,
    "top1: the expert of the largest logit, weighted with its softmax, ties at random; adaptive: "
    "every expert whose logit is at least 0; phases of the algorithm choose their own",
    one_of({nn::kTopOne, nn::kEveryAboveZero}));
  f("kept_experts", c.kept_experts, "the experts that pruning left; empty: all");
}
ConfigProblem config_problem(const LatentMoEConfig& config);

}  // namespace moesaic
