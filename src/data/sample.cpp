// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/sample.h"

#include <deque>

#include "subset.h"

namespace moesaic {

std::shared_ptr<const Dataset> make_sample(std::shared_ptr<const Dataset> base, int64_t count,
                                           uint64_t seed) {
  DatasetInfo info = base->info();
  if (base->endless()) {
    return std::make_shared<Range>(std::move(info), std::move(base), stream_begin(seed), count);
  }
  int64_t known = 0;  // Images of damaged shards have lost their labels.
  std::vector<std::deque<Subset::Item>> by_class(info.classes.size());
  for (const int64_t index : permutation(base->size(), seed, stream_id("sample"))) {
    const std::optional<int64_t> label = known_label(*base, index);
    if (!label) continue;
    by_class[static_cast<size_t>(*label)].push_back({index, *label});
    ++known;
  }
  if (count > known) fail("dataset '{}': {} samples are more than its {}", info.name, count, known);
  std::vector<Subset::Item> items;
  for (size_t turn = 0; static_cast<int64_t>(items.size()) < count; ++turn) {
    std::deque<Subset::Item>& left = by_class[turn % by_class.size()];
    if (left.empty()) continue;
    items.push_back(left.front());
    left.pop_front();
  }
  return std::make_shared<Subset>(std::move(info), std::move(base), std::move(items));
}

}  // namespace moesaic
