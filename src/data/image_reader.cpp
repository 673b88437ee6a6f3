// SPDX-License-Identifier: Apache-2.0
#include "image_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"

namespace moesaic {

int64_t max_damaged(int64_t size) {
  return std::max<int64_t>(1, size / 100);
}

DamagedImages::DamagedImages(const Dataset& dataset)
    : dataset_(dataset), size_(dataset.size()), max_(max_damaged(size_)) {}

bool DamagedImages::contains(int64_t index) {
  const std::lock_guard lock(mutex_);
  check();
  return indices_.contains(index);
}

void DamagedImages::add(int64_t index, const ImageError& error) {
  const std::lock_guard lock(mutex_);
  if (!indices_.insert(index).second) return;
  if (!error.logged()) log_warning("{}; the next image takes its place", error.what());
  last_ = error.what();
  check_class(index);
  check();
}

void DamagedImages::check() const {
  const auto count = static_cast<int64_t>(indices_.size());
  if (count > max_ || count == size_) {
    fail("{} of {} images are damaged{}, the last one being {}", count, size_, of_one_class(),
         last_);
  }
}

void DamagedImages::check_class(int64_t index) {
  if (dataset_.endless() || dataset_.info().classes.empty()) return;
  if (!dataset_.blocks().empty()) return;  // Their labels may have to be fetched.
  if (sound_.empty()) {
    sound_.resize(dataset_.info().classes.size());
    for (int64_t i = 0; i < size_; ++i) ++sound_[static_cast<size_t>(dataset_.label(i))];
  }
  const auto label = static_cast<size_t>(dataset_.label(index));
  if (--sound_[label] > 0) return;
  log_warning("dataset '{}': no image of class '{}' can be read", dataset_.info().name,
              dataset_.info().classes[label]);
}

std::string DamagedImages::of_one_class() const {
  if (sound_.size() < 2) return "";
  const int64_t label = dataset_.label(*indices_.begin());
  const bool one = std::all_of(indices_.begin(), indices_.end(),
                               [&](int64_t index) { return dataset_.label(index) == label; });
  const std::string& name = dataset_.info().classes[static_cast<size_t>(label)];
  return one ? fmt::format(" (all of class '{}')", name) : "";
}

bool ImageReader::try_read(int64_t index, CounterRng& rng) {
  if (damaged_.contains(index)) return false;
  try {
    if (augment_.crop) {
      const auto choose = [&](int64_t h, int64_t w) {
        return random_part(*augment_.crop, h, w, rng);
      };
      dataset_.part(index, choose, bytes_.data());
    } else {
      dataset_.image(index, bytes_.data());
    }
    return true;
  } catch (const ImageError& error) {
    damaged_.add(index, error);
    return false;
  }
}

}  // namespace moesaic
