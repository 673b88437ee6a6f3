// SPDX-License-Identifier: Apache-2.0
#include "grouped_product.cuh"

namespace moesaic::ops::kernels {

MOESAIC_INSTANTIATE_PRODUCTS(BFloat16)

}  // namespace moesaic::ops::kernels
