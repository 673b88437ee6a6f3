// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Context.h>

namespace moesaic::testing {

/// While this lives, LibTorch fills what at::empty() gives with NaN or the largest integer, so that
/// what a kernel does not write shows.
class Poison {
 public:
  Poison() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  ~Poison() { at::globalContext().setDeterministicAlgorithms(false, false); }
  Poison(const Poison&) = delete;
  Poison& operator=(const Poison&) = delete;
};

}  // namespace moesaic::testing
