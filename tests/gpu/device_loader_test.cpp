// SPDX-License-Identifier: Apache-2.0
// Batches on a GPU have the bits of those on the CPU.
#include "moesaic/data/loader.h"

#include "data/device_loader_fixture.h"
#include "support/cuda.h"

namespace moesaic {
namespace {

class DeviceLoaderCuda : public testing::CudaTest {};

TEST_F(DeviceLoaderCuda, GivesTheBitsOfTheCpu) {
  DeviceLoader loader(images(50), options(), at::kCUDA);
  Loader plain(images(50), options());
  for (int i = 0; i < 30; ++i) {
    const Batch a = loader.next(), b = plain.next();
    EXPECT_TRUE(at::equal(a.inputs.cpu(), b.inputs));
    EXPECT_TRUE(at::equal(a.labels.cpu(), b.labels));
  }
  DeviceLoader mixed(images(50), options(0.4), at::kCUDA);
  Loader mixed_plain(images(50), options(0.4));
  for (int i = 0; i < 30; ++i) {
    const Batch a = mixed.next(), b = mixed_plain.next();
    EXPECT_TRUE(at::allclose(a.inputs.cpu(), b.inputs, 1e-5, 1e-6));
    EXPECT_TRUE(at::equal(a.soft_labels.cpu(), b.soft_labels));
  }
}

}  // namespace
}  // namespace moesaic
