// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/throughput.h"

#include "support/small_vmoe.h"

namespace moesaic {
namespace {

constexpr int64_t kMega = 1 << 20;

TEST(PeakTensorBytes, IsTheMostThatIsThereAtOnce) {
  const int64_t peak = peak_tensor_bytes([] {
    at::Tensor first = at::empty({3 * kMega}, at::kByte);
    const at::Tensor second = at::empty({2 * kMega}, at::kByte);
    first = at::Tensor();
    const at::Tensor third = at::empty({kMega}, at::kByte);
  });
  EXPECT_EQ(peak, 5 * kMega);
  EXPECT_EQ(peak_tensor_bytes([] {}), 0);
}

TEST(MeasureLatency, CountsWeightsImagesAndWhatAPassMakes) {
  const auto model = testing::small_vmoe();
  model->train();
  const auto weights = static_cast<double>(model->num_parameters()) * sizeof(float);
  double before = 0.0;
  for (const int64_t batch_size : {1, 4, 64}) {
    const Latency found = measure_latency(*model, {.batch_size = batch_size, .seconds = 0.0});
    EXPECT_EQ(found.batch_size, batch_size);
    EXPECT_EQ(found.num_passes, 5);
    EXPECT_GT(found.median_ms, 0.0);
    EXPECT_GE(found.p95_ms, found.median_ms);
    EXPECT_DOUBLE_EQ(found.images_per_second,
                     1e3 * static_cast<double>(batch_size) / found.median_ms);
    EXPECT_GT(found.bytes, weights + static_cast<double>(batch_size * 8 * 8 * 4));
    EXPECT_GT(found.bytes, before);
    before = found.bytes;
  }
  EXPECT_FALSE(model->is_training());
}

}  // namespace
}  // namespace moesaic
