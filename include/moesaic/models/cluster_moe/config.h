// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"
#include "moesaic/ops/activation.h"
#include "moesaic/ops/route.h"
#include "moesaic/ops/router_noise.h"

namespace moesaic {

inline constexpr char kClusterMoE[] = "cluster-moe";

struct ClusterRouterConfig {
  std::string gate = "logit";
  std::string noise = "uniform";
  double noise_scale = 1.0;
  bool noise_in_evaluation = true;
  int64_t width = 0;
};
template <class Fields>
void describe(Fields& f, ClusterRouterConfig& c) {
  f("gate", c.gate,
    "what an expert's output is multiplied by: logit is the noisy logit itself, softmax_all its "
    "probability",
    one_of({"logit", "softmax_all", "one"}));
  f("noise", c.noise, "added to the logits", one_of(noise_kind_names()));
  f("noise_scale", c.noise_scale,
    "uniform: its range from 0; gaussian: E times its deviation; 0: none", at_least(0.0));
  f("noise_in_evaluation", c.noise_in_evaluation, "draw it outside of training too");
  f("width", c.width,
    "numbers that a filter sees: an input's pieces of this width are summed; 0: whole patches",
    between(0, 65536));
}

struct ClusterMoEConfig {
  std::string name = kClusterMoE;
  int64_t patches = 4, width = 50, classes = 2, experts = 8, filters = 16;
  std::string activation = "cubic";
  double init_scale = 0.001;
  std::optional<ClusterRouterConfig> router = ClusterRouterConfig{};
};
template <class Fields>
void describe(Fields& f, ClusterMoEConfig& c) {
  f("name", c.name, "which model", required, one_of({kClusterMoE}));
  f("patches", c.patches, "P of an input", between(1, 4096));
  f("width", c.width, "d of a patch", between(1, 65536));
  f("classes", c.classes, "outputs of an expert", between(1, 65536));
  f("experts", c.experts, "M, two-layer convolutional networks", between(1, 4096));
  f("filters", c.filters, "J of an expert, shared out among the classes", between(1, 1048576));
  f("activation", c.activation, "what is applied to each filter",
    one_of(std::vector<std::string>(kActivationNames.begin(), kActivationNames.end())));
  f("init_scale", c.init_scale,
    "initial filters are uniform on +- this / sqrt(d); the router starts at 0",
    between(1e-12, 1e6));
  f("router", c.router,
    "top-1 switch over the sum of the patches, or of their pieces; null: a single expert without "
    "one");
}
/// Numbers that the router sees: of a patch, or of the pieces that it is cut into.
int64_t router_width(const ClusterMoEConfig& config);

/// Filters are shared out evenly; without a router there is one expert; its pieces make up a patch.
ConfigProblem config_problem(const ClusterMoEConfig& config);

}  // namespace moesaic
