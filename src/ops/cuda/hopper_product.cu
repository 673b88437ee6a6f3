// SPDX-License-Identifier: Apache-2.0
#include "hopper_launch.cuh"

namespace moesaic::ops::kernels::hopper {

bool available() {
  int device = 0, major = 0, minor = 0;
  const bool known =
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess;
  return known && major == 9 && minor == 0 && has_tensor_maps();
}

bool product_bias(const ExpertRows& at, const BFloat16* a, const BFloat16* w, const BFloat16* bias,
                  int64_t depth, int64_t columns, BFloat16* y, cudaStream_t stream) {
  return with_sharing(columns, [&](auto how) {
    using Product = CoreRowsTimesWeights<AddBias<BFloat16>, decltype(how)::value, false>;
    return launch_product(
        Product{at.offsets, at.experts, at.rows, depth, columns, {y, bias, columns}}, a, w, stream);
  });
}

bool product_transposed(const ExpertRows& at, const BFloat16* a, const BFloat16* w, int64_t depth,
                        int64_t columns, BFloat16* out, cudaStream_t stream) {
  return with_sharing(columns, [&](auto how) {
    using Product = CoreRowsTimesWeights<Plain<BFloat16>, decltype(how)::value, true>;
    return launch_product(Product{at.offsets, at.experts, at.rows, depth, columns, {out, columns}},
                          a, w, stream);
  });
}

bool product_of_rows(const ExpertRows& at, const BFloat16* left, const BFloat16* right, int64_t p,
                     int64_t q, BFloat16* out, cudaStream_t stream) {
  return with_sharing(q, [&](auto how) {
    using Product = CoreRowsTimesRows<decltype(how)::value>;
    return launch_product(Product{at.offsets, at.experts, at.rows, p, q, {out, q}}, left, right,
                          stream);
  });
}

}  // namespace moesaic::ops::kernels::hopper
