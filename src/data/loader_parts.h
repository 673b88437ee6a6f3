// SPDX-License-Identifier: Apache-2.0
// What a loader is made of: the order of the examples in shuffled epochs, and the images of them
// that are corrupt.
#pragma once

#include <mutex>
#include <utility>

#include "moesaic/data/dataset.h"

namespace moesaic {

using Order = std::shared_ptr<const std::vector<int64_t>>;

/// Cache of the orders of the last few epochs, each drawn once for all threads. Without blocks an
/// order is a permutation of all examples. With blocks (Dataset::blocks) it is block_order().
class EpochOrders {
 public:
  EpochOrders(int64_t size, uint64_t seed, std::vector<int64_t> blocks = {}, int64_t batch_size = 1)
      : size_(size), seed_(seed), blocks_(std::move(blocks)), batch_size_(batch_size) {}

  Order at(int64_t epoch);

 private:
  int64_t size_;
  uint64_t seed_;
  std::vector<int64_t> blocks_;
  int64_t batch_size_;
  std::mutex mutex_;
  std::map<int64_t, Order> orders_;
};

/// Returns the number of lanes that fill each batch: the greatest power of two that divides
/// `batch_size` and is at most `blocks` and 64.
int64_t lanes_of(int64_t blocks, int64_t batch_size);

/// Returns an order that reads few blocks at a time. The blocks are permuted, and the examples
/// within each; their concatenation, as far as it fills whole batches, is cut into L = lanes_of()
/// equal lanes, and place p of every batch comes from lane p * L / batch_size. So one of W
/// processes that makes places [w, w + 1) * batch_size / W of each batch reads its own part of the
/// blocks, and the order does not depend on W. What fills no batch comes last. `blocks` are the
/// numbers of consecutive examples of each block.
std::vector<int64_t> block_order(const std::vector<int64_t>& blocks, int64_t batch_size,
                                 uint64_t seed, uint64_t stream);

/// Returns how many images of a dataset may be corrupt: 1 %, and one of a small one.
int64_t max_damaged(int64_t size);

/// The corrupt images of a dataset, of all threads.
class DamagedImages {
 public:
  /// With `is_shared` add() leaves it to count() to warn.
  DamagedImages(const Dataset& dataset, bool is_shared);

  /// Returns what is wrong with an image, "" where that was said already; nothing for one that is
  /// not known as corrupt. Throws, like add() and count(), if too many are.
  std::optional<std::string> find(int64_t index);
  /// Adds an image that this process met; returns what find() does.
  std::string add(int64_t index, const ImageError& error);
  /// Adds an image that any process met, or that is known from before; `warns`: says so.
  void count(int64_t index, const std::string& what, bool warns);

 private:
  void check() const;
  /// Takes the image from the readable ones of its class; with `warns` says what is wrong with it,
  /// and where it was the last one.
  void tell(int64_t index, const std::string& what, bool warns);
  /// Returns " (all of class 'cat')" where that is so.
  std::string of_one_class() const;

  const Dataset& dataset_;
  bool is_shared_;
  int64_t size_, max_;
  std::mutex mutex_;
  std::map<int64_t, std::string> known_;  ///< What is wrong with each.
  std::vector<int64_t> sound_;  ///< Number of images by class that are not corrupt, once needed.
  std::string last_;
};

}  // namespace moesaic
