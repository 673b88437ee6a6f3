// SPDX-License-Identifier: Apache-2.0
// Images in memory and options of the loaders that device_loader_test and gpu/device_loader_test
// compare.
#pragma once

#include <memory>
#include <vector>

#include "data/data_fixture.h"
#include "moesaic/data/loader.h"

namespace moesaic {

inline std::shared_ptr<const Dataset> images(int64_t size) {
  DatasetInfo info{"images", "train", "", {"a", "b", "c"}, 2, 3, 4, {0.25, 0.5}, {0.3, 0.7}};
  std::vector<uint8_t> pixels(static_cast<size_t>(size * 24)), labels(static_cast<size_t>(size));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * 29 + i / 24);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<uint8_t>(i % 3);
  return make_memory_dataset(info, std::move(pixels), std::move(labels));
}

inline LoaderOptions options(double mixup = 0.0, int64_t threads = 2) {
  LoaderOptions options{.batch_size = 4, .seed = 3, .shuffle = true, .num_threads = threads};
  options.augment.flip = true;
  options.augment.mixup = mixup;
  return options;
}

}  // namespace moesaic
