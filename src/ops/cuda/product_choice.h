// SPDX-License-Identifier: Apache-2.0
// Choice of the products of the grouped MLP on a GPU. Tests run this header without a GPU.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"

namespace moesaic::ops {

/// `library` is LibTorch's grouped product where it has a fast one (bfloat16 on Hopper and later).
/// Everything else, and all of `portable`, uses this library's products for any chip.
enum class ProductChoice { library, portable };

/// Returns the products that the environment variable MOESAIC_CUDA_PRODUCT=library|portable asks
/// for, by default `library`. Reads it at every call, so that one program can compare them. Throws
/// Error (usage) for another value.
inline ProductChoice product_choice() {
  const char* const value = std::getenv("MOESAIC_CUDA_PRODUCT");
  if (value == nullptr || *value == '\0') return ProductChoice::library;
  const std::string asked = value;
  const std::vector<std::string> names = {"library", "portable"};
  for (size_t i = 0; i < names.size(); ++i) {
    if (asked == names[i]) return static_cast<ProductChoice>(i);
  }
  fail_usage("MOESAIC_CUDA_PRODUCT: unknown product '{}'; {}", asked, did_you_mean(asked, names));
}

}  // namespace moesaic::ops
