// SPDX-License-Identifier: Apache-2.0
#include "integration/served.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moesaic/checkpoint/store.h"
#include "moesaic/data/source.h"

namespace moesaic::testing {

ServedImages served_images(const std::filesystem::path& run) {
  const Checkpoint checkpoint = load_newest_checkpoint(run, {.load_optimizer = false});
  const auto network = model_of(checkpoint);
  const InputSpec input = input_spec_of(checkpoint, *network);
  const auto data = open_dataset("fashion-mnist-footwear", "test");
  const at::Tensor bytes = at::empty({20, 1, 28, 28}, at::kByte);
  for (int64_t i = 0; i < bytes.size(0); ++i) data->image(i, bytes[i].mutable_data_ptr<uint8_t>());
  const at::Tensor images = (bytes.to(at::kFloat) / 255 - input.mean[0]) / input.std[0];
  const at::Tensor best = network->forward(images).logits.argmax(1);
  EXPECT_FALSE(best.eq(best[0]).all().item<bool>()) << "all of one class, which tells nothing";
  const auto* const numbers = best.const_data_ptr<int64_t>();
  return {.bytes = {static_cast<const char*>(bytes.const_data_ptr()),
                    static_cast<size_t>(bytes.numel())},
          .best = {numbers, numbers + best.numel()},
          .classes = input.classes};
}

}  // namespace moesaic::testing
