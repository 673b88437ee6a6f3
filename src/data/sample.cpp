// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/sample.h"

#include "subset.h"

namespace moesaic {

std::shared_ptr<const Dataset> make_sample(std::shared_ptr<const Dataset> base, int64_t count,
                                           uint64_t seed) {
  DatasetInfo info = base->info();
  if (base->endless()) {
    return std::make_shared<Range>(std::move(info), std::move(base), stream_begin(seed), count);
  }
  if (count > base->size()) {
    fail("dataset '{}': {} samples are more than its {}", info.name, count, base->size());
  }
  const std::vector<int64_t> order = permutation(base->size(), seed, stream_id("sample"));
  std::vector<Subset::Item> items;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = order[static_cast<size_t>(i)];
    items.push_back({index, base->label(index)});
  }
  return std::make_shared<Subset>(std::move(info), std::move(base), std::move(items));
}

}  // namespace moesaic
