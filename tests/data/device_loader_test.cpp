// SPDX-License-Identifier: Apache-2.0
// The meta device stands for any that is not the CPU: shapes, dtypes and order. The values are
// tested where bytes are normalised and mixed (loader_test, mixup_test) and in gpu/.
#include "moesaic/data/loader.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "data/data_fixture.h"
#include "data/device_loader_fixture.h"
#include "moesaic/data/dataset.h"

namespace moesaic {
namespace {

std::shared_ptr<const Dataset> inputs(int64_t size) {
  const DatasetInfo info{"inputs", "train", "", {"a", "b"}, 1, 1, 2, {}, {}};
  return make_input_dataset(info,
                            {.values_NCHW = at::arange(2 * size, at::kFloat).view({-1, 1, 1, 2}),
                             .labels_N = at::arange(size).remainder(2)});
}

TEST(DeviceLoader, OnTheCpuItIsTheLoader) {
  DeviceLoader loader(images(10), options(0.4), at::kCPU);
  Loader plain(images(10), options(0.4));
  EXPECT_EQ(loader.batches_per_epoch(), 3);
  for (int i = 0; i < 6; ++i) {
    const Batch a = loader.next(), b = plain.next();
    EXPECT_TRUE(at::equal(a.inputs, b.inputs));
    EXPECT_TRUE(at::equal(a.soft_labels, b.soft_labels));
  }
}

TEST(DeviceLoader, GivesWhatTheNetworkTakes) {
  for (const double mixup : {0.0, 0.4}) {
    DeviceLoader loader(images(10), options(mixup), at::kMeta);
    const Batch batch = loader.next();
    EXPECT_TRUE(batch.inputs.is_meta() && batch.labels.is_meta());
    EXPECT_EQ(batch.inputs.sizes(), at::IntArrayRef({4, 2, 3, 4}));
    EXPECT_EQ(batch.inputs.scalar_type(), at::kFloat);
    EXPECT_EQ(batch.soft_labels.defined(), mixup > 0.0);
    if (mixup > 0.0) {
      EXPECT_EQ(batch.soft_labels.sizes(), at::IntArrayRef({4, 3}));
    }
    EXPECT_EQ(batch.mixup_weight, 1.0);
  }
}

TEST(DeviceLoader, KeepsTheOrderAndSeeks) {
  for (const int64_t threads : {0, 2}) {
    DeviceLoader loader(images(10), options(0.0, threads), at::kMeta);
    for (const int64_t from : {0, 5, 2, 2}) {
      loader.seek(from / 3, from % 3);
      for (int64_t number = from; number < from + 4; ++number) {
        const Batch batch = loader.next();
        EXPECT_EQ(batch.epoch * 3 + batch.position, number);
        EXPECT_EQ(batch.inputs.size(0), number % 3 == 2 ? 2 : 4);
      }
    }
  }
}

TEST(DeviceLoader, AFullDatasetIsCopiedOnce) {
  LoaderOptions whole{.batch_size = 6, .shuffle = true};
  DeviceLoader loader(inputs(6), whole, at::kMeta);
  const Batch first = loader.next(), second = loader.next();
  EXPECT_TRUE(first.inputs.is_meta());
  EXPECT_TRUE(second.inputs.is_same(first.inputs));
  EXPECT_EQ(second.epoch, 1);
  whole.batch_size = 3;
  DeviceLoader parts(inputs(6), whole, at::kMeta);
  EXPECT_FALSE(parts.next().inputs.is_same(parts.next().inputs));
}

}  // namespace
}  // namespace moesaic
