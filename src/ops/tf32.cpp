// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/tf32.h"

#include <ATen/Context.h>

namespace moesaic {

Tf32::Tf32(bool allowed)
    : products_(at::globalContext().allowTF32CuBLAS()),
      convolutions_(at::globalContext().allowTF32CuDNN()) {
  at::globalContext().setAllowTF32CuBLAS(allowed);
  at::globalContext().setAllowTF32CuDNN(allowed);
}

Tf32::~Tf32() {
  at::globalContext().setAllowTF32CuBLAS(products_);
  at::globalContext().setAllowTF32CuDNN(convolutions_);
}

}  // namespace moesaic
