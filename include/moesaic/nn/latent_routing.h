// SPDX-License-Identifier: Apache-2.0
// The two ways in which the latent paper routes (section 3.2).
#pragma once

#include "moesaic/nn/router.h"

namespace moesaic::nn {

inline constexpr const char *kTopOne = "top1", *kEveryAboveZero = "adaptive";

/// Returns the options of a router for one of these: "top1", F_1: the expert of the largest logit,
/// weighted with its softmax over all, ties at random; "adaptive", F^_M: every expert whose logit
/// is at least 0, with gate 1.
RouterOptions latent_router_options(int64_t width, int64_t experts, const std::string& routing,
                                    const std::vector<int64_t>& kept);

/// Returns which of both a router's rule is.
std::string latent_routing(const RouterOptions& options);

}  // namespace moesaic::nn
