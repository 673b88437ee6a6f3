// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "moesaic/data/dataset.h"

namespace moesaic {

/// Finds files that a dataset reads by several names, by hard or symbolic links, in two splits or
/// as images of two classes.
class SameFiles {
 public:
  /// Adds a split; add() is of the last one.
  void begin(std::shared_ptr<const Dataset> split) { splits_.push_back(std::move(split)); }
  void add(const ImageFile& file, int64_t index);

  /// Returns a line that counts them and names some, "" if there are none.
  std::string text() &&;

 private:
  struct Entry {
    uint64_t device, inode;
    int64_t index;
    size_t split;
  };
  std::string named(const Entry& entry) const;

  std::vector<std::shared_ptr<const Dataset>> splits_;
  std::vector<Entry> entries_;
};

}  // namespace moesaic
