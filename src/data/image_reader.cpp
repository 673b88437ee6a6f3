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

DamagedImages::DamagedImages(const Dataset& dataset, bool shared)
    : dataset_(dataset), shared_(shared), size_(dataset.size()), max_(max_damaged(size_)) {}

std::optional<std::string> DamagedImages::find(int64_t index) {
  const std::lock_guard lock(mutex_);
  check();
  const auto found = known_.find(index);
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

std::string DamagedImages::add(int64_t index, const ImageError& error) {
  const std::lock_guard lock(mutex_);
  const auto [entry, fresh] = known_.emplace(index, error.logged() ? "" : error.what());
  if (!fresh) return entry->second;
  last_ = error.what();
  if (!shared_) tell(index, entry->second, /*warn=*/true);
  check();
  return entry->second;
}

void DamagedImages::count(int64_t index, const std::string& what, bool warn) {
  const std::lock_guard lock(mutex_);
  known_.emplace(index, what);
  if (!what.empty()) last_ = what;
  tell(index, what, warn);
  check();
}

void DamagedImages::check() const {
  const auto count = static_cast<int64_t>(known_.size());
  if (count > max_ || count == size_) {
    fail("{} of {} images cannot be read{}{}", count, size_, of_one_class(),
         last_.empty() ? "" : ", the last one being " + last_);
  }
}

void DamagedImages::tell(int64_t index, const std::string& what, bool warn) {
  if (warn && !what.empty()) log_warning("{}; the next image takes its place", what);
  if (dataset_.endless() || dataset_.info().classes.empty()) return;
  if (!dataset_.blocks().empty()) return;  // Their labels may have to be fetched.
  if (sound_.empty()) {
    sound_.resize(dataset_.info().classes.size());
    for (int64_t i = 0; i < size_; ++i) ++sound_[static_cast<size_t>(dataset_.label(i))];
  }
  const auto label = static_cast<size_t>(dataset_.label(index));
  if (--sound_[label] > 0 || !warn) return;
  log_warning("dataset '{}': no image of class '{}' can be read", dataset_.info().name,
              dataset_.info().classes[label]);
}

std::string DamagedImages::of_one_class() const {
  if (sound_.size() < 2) return "";
  const int64_t label = dataset_.label(known_.begin()->first);
  const bool one = std::all_of(known_.begin(), known_.end(), [&](const auto& image) {
    return dataset_.label(image.first) == label;
  });
  const std::string& name = dataset_.info().classes[static_cast<size_t>(label)];
  return one ? fmt::format(" (all of class '{}')", name) : "";
}

std::optional<std::string> ImageReader::try_read(int64_t index, CounterRng& rng) {
  if (auto problem = damaged_.find(index)) return problem;
  try {
    if (augment_.crop) {
      const auto choose = [&](int64_t h, int64_t w) {
        return random_part(*augment_.crop, h, w, rng);
      };
      dataset_.part(index, choose, bytes_.data());
    } else {
      dataset_.image(index, bytes_.data());
    }
    return std::nullopt;
  } catch (const ImageError& error) {
    return damaged_.add(index, error);
  }
}

}  // namespace moesaic
