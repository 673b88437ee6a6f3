// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/validation.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "subset.h"

namespace moesaic {
namespace {

/// Returns the held-out examples, the last ones of every class, or the others. Up to the end of
/// each class their number is its fraction of `held_out`, rounded, so that the rounding errors of
/// classes do not add up; but each split has at least one of a class that has two.
std::vector<Subset::Item> chosen_by_class(const Dataset& all, int64_t held_out, bool validation) {
  const int64_t count = all.size();
  const auto held_until = [&](int64_t end) {
    return std::llround(static_cast<double>(held_out) * static_cast<double>(end) /
                        static_cast<double>(count));
  };
  std::vector<Subset::Item> items;
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    const int64_t label = all.label(begin);
    while (end < count && all.label(end) == label) ++end;
    // Of two examples of a class each split has one.
    const int64_t held = std::max<int64_t>(1, held_until(end) - held_until(begin));
    const int64_t boundary = std::max(begin + 1, end - held);
    const int64_t first = validation ? boundary : begin, last = validation ? end : boundary;
    for (int64_t i = first; i < last; ++i) items.push_back({i, label});
  }
  return items;
}

}  // namespace

int64_t training_count(int64_t count, double validation) {
  const double boundary = 100.0 - 100.0 * validation;
  return static_cast<int64_t>(std::nearbyint(boundary * static_cast<double>(count) / 100.0));
}

std::shared_ptr<const Dataset> hold_out(std::shared_ptr<const Dataset> all, double validation,
                                        const std::string& split, bool by_class) {
  if (all->endless()) {
    fail_usage("dataset '{}' is endless: nothing can be held out of it", all->info().name);
  }
  const bool held = split == "validation";
  const int64_t train = training_count(all->size(), validation);
  std::vector<Subset::Item> items;
  if (by_class) items = chosen_by_class(*all, all->size() - train, held);
  const int64_t count = by_class ? static_cast<int64_t>(items.size())
                        : held   ? all->size() - train
                                 : train;
  DatasetInfo info = all->info();
  if (count == 0) {
    fail("dataset '{}': of {} training examples a validation fraction of {} leaves none for '{}'",
         info.name, all->size(), validation, split);
  }
  info.split = split;
  if (!by_class) {
    return std::make_shared<Range>(std::move(info), std::move(all), held ? train : 0, count);
  }
  return std::make_shared<Subset>(std::move(info), std::move(all), std::move(items));
}

}  // namespace moesaic
