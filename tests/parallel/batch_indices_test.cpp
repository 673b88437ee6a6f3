// SPDX-License-Identifier: Apache-2.0
#include "moesaic/parallel/process_group.h"

#include "base/support.h"

namespace moesaic {
namespace {

TEST(BatchIndicesOfRank, AreEqualPartsOfEachPartOfABatch) {
  using Places = std::vector<int64_t>;
  EXPECT_EQ(batch_indices_of_rank(8, 1, false, 1, 2), (Places{4, 5, 6, 7}));
  EXPECT_EQ(batch_indices_of_rank(8, 2, false, 0, 2), (Places{0, 1, 4, 5}));
  EXPECT_EQ(batch_indices_of_rank(8, 2, false, 1, 2), (Places{2, 3, 6, 7}));
  EXPECT_EQ(batch_indices_of_rank(8, 2, true, 1, 2), (Places{4, 5, 6, 7}));
  EXPECT_THROW(batch_indices_of_rank(8, 2, false, 0, 3), Error);
}

TEST(EqualParts, AreRefusedWithTheNearestChoice) {
  const auto refusal = [](int64_t batch, int64_t num_micro_batches, int64_t processes) {
    return test::usage_of(
        [&] { check_batch_divisible("here: ", batch, num_micro_batches, processes); });
  };
  EXPECT_NO_THROW(check_batch_divisible("here: ", 12, 2, 3));
  EXPECT_EQ(refusal(12, 1, 5),
            "here: a batch of 12 images cannot be divided equally among 5 processes; choose a "
            "batch of 10 images, or 4 processes");
  EXPECT_EQ(refusal(2, 1, 5),
            "here: a batch of 2 images cannot be divided equally among 5 processes; choose a batch "
            "of 5 images, or 2 processes");
  EXPECT_EQ(refusal(12, 4, 6),
            "here: a batch of 12 images in 4 micro-batches cannot be divided equally among 6 "
            "processes; choose gradient_accumulation_steps=2");
}

}  // namespace
}  // namespace moesaic
