// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"
#include "moesaic/models/pmoe/config.h"

namespace moesaic {

inline constexpr char kWrnPMoE[] = "wrn-pmoe";

struct WrnMixtureConfig {
  int64_t experts = 4, patch_size = 1, kernel = 1;
  PMoERouterConfig router = {.selected = 16, .gate = "softmax_tokens"};
};
template <class Fields>
void describe(Fields& f, WrnMixtureConfig& c) {
  f("experts", c.experts, "k, which share out the last group's channels", between(1, 4096), common);
  f("patch_size", c.patch_size, "side of a patch of the feature map", between(1, 1024), common);
  f("kernel", c.kernel, "side of the kernel of an expert's convolution, odd", between(1, 15));
  f("router", c.router, "of each expert");
}

struct WrnPMoEConfig {
  std::string name = kWrnPMoE;
  int64_t channels = 3, image_size = 32, classes = 10, blocks = 1;
  double widening = 10.0;
  std::optional<WrnMixtureConfig> moe = WrnMixtureConfig{};

  /// Side of the last feature map: two groups halve it.
  int64_t map_size() const { return (image_size + 3) / 4; }
};
template <class Fields>
void describe(Fields& f, WrnPMoEConfig& c) {
  f("name", c.name, "which model", required, one_of({kWrnPMoE}));
  f("channels", c.channels, "of an image", between(1, 4096));
  f("image_size", c.image_size, "side of the images", between(4, 4096));
  f("classes", c.classes, "two: one output, whose sign is the class; more: an output each",
    between(2, 65536));
  f("blocks", c.blocks, "residual blocks of a group: the network has 6 blocks + 4 layers",
    between(1, 64));
  f("widening", c.widening, "factor on the groups' 16, 32 and 64 channels, rounded down",
    between(0.0625, 64.0), common);
  f("moe", c.moe, "mixture in place of the last group's second convolution; null: the plain WRN",
    common);
}
/// Checks that patches divide the feature map, that there are as many as an expert selects, that
/// experts share out the channels, and that the kernel is odd.
ConfigProblem config_problem(const WrnPMoEConfig& config);

}  // namespace moesaic
