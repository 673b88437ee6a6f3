// SPDX-License-Identifier: Apache-2.0
// The polynomials of outputs in the loss L4 of "Learning in Gated Neural Networks" (eq. 6).
#pragma once

#include <array>

#include "moesaic/ops/link.h"

namespace moesaic {

/// Q4(y) = y^4 + alpha y^3 + beta y^2 + gamma y + e4 and Q2(y) = y^2 + delta y + e2. The constants
/// e4 and e2 give both mean 0, which changes no expectation of the loss and takes variance away.
struct OutputTransforms {
  double alpha = 0.0, beta = 0.0, gamma = 0.0, e4 = 0.0, delta = 0.0, e2 = 0.0;
  double c4 = 0.0;  ///< c_g = E[S4(Z) (Z^4 - 6 Z^2 + 3)], S4(Z) = E[Q4(y) | Z].
  double c2 = 0.0;  ///< c'_g = E[S2(Z) (Z^2 - 1)], S2(Z) = E[Q2(y) | Z].
};

/// Solves Conditions 1 and 2 (appendix B) for y | Z ~ N(g(Z), noise^2), Z ~ N(0, 1): S4 is
/// orthogonal to the Hermite polynomials of degrees 1 to 3, S2 to that of degree 1. The moments
/// are integrals over each half of the line, since links have kinks at 0. Throws Error (usage) with
/// the reason where the link has no such polynomials.
OutputTransforms output_transforms(Link link, double noise);

}  // namespace moesaic
