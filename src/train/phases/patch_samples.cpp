// SPDX-License-Identifier: Apache-2.0
#include "patch_samples.h"

#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/random.h"
#include "moesaic/data/dataset_inputs.h"
#include "moesaic/data/sample.h"
#include "moesaic/data/transforms.h"
#include "moesaic/nn/patches.h"

namespace moesaic {
namespace {

/// Returns images as a network sees them, [N, C, H, W].
at::Tensor read_images(const Dataset& data, int64_t first, int64_t count) {
  const DatasetInfo& info = data.info();
  at::Tensor images = at::empty({count, info.channels, info.height, info.width}, at::kFloat);
  std::vector<uint8_t> bytes(static_cast<size_t>(data.image_size()));
  const ImageTransform transform(info, {});
  for (int64_t i = 0; i < count; ++i) {
    data.image(first + i, bytes.data());
    CounterRng unused(0, 0, 0);  // Nothing is augmented.
    transform(bytes.data(), unused, images.mutable_data_ptr<float>() + i * data.image_size());
  }
  return images;
}

}  // namespace

int64_t first_patch_sample(const Dataset& data, uint64_t run_seed) {
  return data.endless() ? stream_begin(run_seed) : 0;
}

PatchSamples read_patch_samples(const Dataset& data, int64_t first, int64_t count,
                                const Sides& patch) {
  PatchSamples samples;
  if (data.has_images()) {
    samples.label_N = at::empty({count}, at::kLong);
    for (int64_t i = 0; i < count; ++i) {
      samples.label_N.mutable_data_ptr<int64_t>()[i] = data.label(first + i);
    }
    samples.x_Nnd = nn::patches_of(read_images(data, first, count), patch).contiguous();
    return samples;
  }
  const DatasetInputs inputs = data.generate(first, count);
  samples.label_N = inputs.labels_N.contiguous();
  samples.x_Nnd = nn::patches_of(inputs.values_NCHW, patch).contiguous();
  return samples;
}

std::vector<std::vector<int64_t>> patch_batches(int64_t samples, int64_t batch, StepRange steps,
                                                uint64_t seed) {
  const int64_t in_epoch = (samples + batch - 1) / batch;
  std::vector<std::vector<int64_t>> batches;
  std::vector<int64_t> order;
  for (int64_t step = steps.first; step < steps.first + steps.count; ++step) {
    if (order.empty() || step % in_epoch == 0) {
      const auto epoch = static_cast<uint64_t>(step / in_epoch);
      order = permutation(samples, seed, mix64(stream_id("patch_sgd.order") + epoch));
    }
    const int64_t first = step % in_epoch * batch, end = std::min(samples, first + batch);
    batches.emplace_back(order.begin() + first, order.begin() + end);
  }
  return batches;
}

}  // namespace moesaic
