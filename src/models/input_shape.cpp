// SPDX-License-Identifier: Apache-2.0
#include "input_shape.h"

#include <vector>

#include "moesaic/base/error.h"

namespace moesaic {

void check_input_shape(const Model& model, const std::string& name, const char* what,
                       const at::Tensor& inputs_BCHW) {
  const std::vector<int64_t> shape = model.input_shape();
  const bool fits =
      inputs_BCHW.dim() == 4 && inputs_BCHW.sizes().slice(1) == at::IntArrayRef(shape);
  if (fits) return;
  fail("{}: {} must be [B, {}, {}, {}], found {}", name, what, shape[0], shape[1], shape[2],
       c10::str(inputs_BCHW.sizes()));
}

}  // namespace moesaic
