// SPDX-License-Identifier: Apache-2.0
#include "loader_parts.h"

#include <algorithm>
#include <iterator>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/random.h"

namespace moesaic {
namespace {

constexpr size_t kCachedOrders = 4;
constexpr int64_t kMaxLanes = 64;

/// Returns the examples block by block, both in a random order.
std::vector<int64_t> shuffled_blocks(const std::vector<int64_t>& blocks, uint64_t seed,
                                     uint64_t stream) {
  std::vector<int64_t> begins;
  int64_t size = 0;
  for (const int64_t block : blocks) {
    begins.push_back(size);
    size += block;
  }
  std::vector<int64_t> list;
  list.reserve(static_cast<size_t>(size));
  for (const int64_t block : permutation(static_cast<int64_t>(blocks.size()), seed, stream)) {
    const auto number = static_cast<size_t>(block);
    const uint64_t within = mix64(stream + 1 + static_cast<uint64_t>(block));
    for (const int64_t i : permutation(blocks[number], seed, within)) {
      list.push_back(begins[number] + i);
    }
  }
  return list;
}

}  // namespace

Order EpochOrders::at(int64_t epoch) {
  const std::lock_guard lock(mutex_);
  Order& order = orders_[epoch];
  if (order == nullptr) {
    const uint64_t stream = mix64(stream_id("loader.shuffle") + static_cast<uint64_t>(epoch));
    order = std::make_shared<const std::vector<int64_t>>(
        blocks_.empty() ? permutation(size_, seed_, stream)
                        : block_order(blocks_, batch_size_, seed_, stream));
  }
  const Order found = order;
  while (orders_.size() > kCachedOrders) {
    orders_.erase(orders_.begin()->first == epoch ? std::prev(orders_.end()) : orders_.begin());
  }
  return found;
}

int64_t lanes_of(int64_t blocks, int64_t batch_size) {
  const int64_t max = std::min({blocks, batch_size, kMaxLanes});
  int64_t lanes = 1;
  while (2 * lanes <= max && batch_size % (2 * lanes) == 0) lanes *= 2;
  return lanes;
}

std::vector<int64_t> block_order(const std::vector<int64_t>& blocks, int64_t batch_size,
                                 uint64_t seed, uint64_t stream) {
  const std::vector<int64_t> list = shuffled_blocks(blocks, seed, stream);
  const int64_t lanes = lanes_of(static_cast<int64_t>(blocks.size()), batch_size);
  const int64_t of_lane = batch_size / lanes;  // Places of a batch.
  const int64_t batches = static_cast<int64_t>(list.size()) / batch_size;
  std::vector<int64_t> order;
  order.reserve(list.size());
  for (int64_t batch = 0; batch < batches; ++batch) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const auto begin = list.begin() + (lane * batches + batch) * of_lane;
      order.insert(order.end(), begin, begin + of_lane);
    }
  }
  order.insert(order.end(), list.begin() + batches * batch_size, list.end());
  return order;
}

int64_t max_damaged(int64_t size) {
  return std::max<int64_t>(1, size / 100);
}

DamagedImages::DamagedImages(const Dataset& dataset, bool is_shared)
    : dataset_(dataset), is_shared_(is_shared), size_(dataset.size()), max_(max_damaged(size_)) {}

std::optional<std::string> DamagedImages::find(int64_t index) {
  const std::lock_guard lock(mutex_);
  check();
  const auto found = known_.find(index);
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

std::string DamagedImages::add(int64_t index, const ImageError& error) {
  const std::lock_guard lock(mutex_);
  const auto [entry, fresh] = known_.emplace(index, error.is_logged() ? "" : error.what());
  if (!fresh) return entry->second;
  last_ = error.what();
  if (!is_shared_) tell(index, entry->second, /*warns=*/true);
  check();
  return entry->second;
}

void DamagedImages::count(int64_t index, const std::string& what, bool warns) {
  const std::lock_guard lock(mutex_);
  known_.emplace(index, what);
  if (!what.empty()) last_ = what;
  tell(index, what, warns);
  check();
}

void DamagedImages::check() const {
  const auto count = static_cast<int64_t>(known_.size());
  if (count > max_ || count == size_) {
    fail("{} of {} images cannot be read{}{}", count, size_, of_one_class(),
         last_.empty() ? "" : ", the last one being " + last_);
  }
}

void DamagedImages::tell(int64_t index, const std::string& what, bool warns) {
  if (warns && !what.empty()) log_warning("{}; the next image replaces it", what);
  if (dataset_.is_endless() || dataset_.info().classes.empty()) return;
  if (!dataset_.blocks().empty()) return;  // Their labels may have to be fetched.
  if (sound_.empty()) {
    sound_.resize(dataset_.info().classes.size());
    for (int64_t i = 0; i < size_; ++i) ++sound_[static_cast<size_t>(dataset_.label(i))];
  }
  const auto label = static_cast<size_t>(dataset_.label(index));
  if (--sound_[label] > 0 || !warns) return;
  log_warning("dataset '{}': no image of class '{}' can be read", dataset_.info().name,
              dataset_.info().classes[label]);
}

std::string DamagedImages::of_one_class() const {
  if (sound_.size() < 2) return "";
  const int64_t label = dataset_.label(known_.begin()->first);
  const bool one = std::ranges::all_of(
      known_, [&](const auto& image) { return dataset_.label(image.first) == label; });
  const std::string& name = dataset_.info().classes[static_cast<size_t>(label)];
  return one ? fmt::format(" (all of class '{}')", name) : "";
}

}  // namespace moesaic
