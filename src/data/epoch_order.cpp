// SPDX-License-Identifier: Apache-2.0
#include "epoch_order.h"

#include <algorithm>
#include <iterator>

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

}  // namespace moesaic
