// SPDX-License-Identifier: Apache-2.0
#include "shards.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

#include "loader_parts.h"
#include "moesaic/base/background_task.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/progress.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

/// Twice as many as a shuffled epoch reads at a time.
constexpr size_t kMaxOpenShards = 128;
/// Indexing waits for the disk, not for a processor.
constexpr size_t kIndexingThreads = 8;

bool is_here(const fs::path& path) {
  return fs::is_regular_file(status_of(path));
}

}  // namespace

ShardImages::ShardImages(DatasetInfo info, std::vector<PlacedShard> shards, Fetch fetch,
                         SleepFunction pause, const std::string& labels)
    : StoredImages(std::move(info), std::move(pause)),
      classes_(this->info().classes, labels),
      fetch_(std::move(fetch)),
      open_(shards.size()) {
  for (PlacedShard& placed : shards) {
    shards_.push_back(std::make_unique<Shard>());
    shards_.back()->placed = std::move(placed);
  }
  index_present();
  begins_ = {0};
  for (size_t i = 0; i < shards_.size(); ++i) {
    const int64_t described = shards_[i]->placed.described.num_images;
    const int64_t images = described > 0 ? described : std::ssize(shards_[i]->index->images);
    begins_.push_back(begins_.back() + images);
  }
  check_lost();
}

void ShardImages::index_present() {
  std::mutex mutex;
  Progress progress({.label = "index of " + info().name,
                     .total = static_cast<int64_t>(shards_.size()),
                     .unit = "shards",
                     .has_summary = false});
  on_threads(shards_.size(), kIndexingThreads, [&](size_t i) {
    const PlacedShard& placed = shards_[i]->placed;
    if (placed.described.num_images == 0 || is_here(placed.path)) indexed(i);
    const std::lock_guard lock(mutex);
    progress.advance(1);
  });
}

const ShardIndex& ShardImages::indexed(size_t number) const {
  const Shard& shard = *shards_[number];
  const std::lock_guard lock(shard.mutex);
  if (shard.index) return *shard.index;
  const UniqueFd held = shard.placed.is_removable ? hold(number) : UniqueFd();
  if (!is_here(shard.placed.path)) fetch_(shard.placed);
  shard.index = retry_io(
      [&] { return index_shard(shard.placed.path, shard.placed.described, classes_); }, pause());
  if (!shard.index->problem.empty()) count_lost(number);
  return *shard.index;
}

void ShardImages::count_lost(size_t number) const {
  const Shard& shard = *shards_[number];
  const int64_t described = shard.placed.described.num_images;
  const auto found = static_cast<int64_t>(shard.index->images.size());
  const int64_t lost = described > 0 ? described - found : shard.index->skipped;
  log_warning("{}; {} of it left out", shard.index->problem, count_text(lost, "image"));
  {
    const std::lock_guard lock(lost_mutex_);
    lost_ += lost;
    if (described == 0) uncounted_ += lost;
    last_problem_ = shard.index->problem;
  }
  if (!begins_.empty()) check_lost();
}

void ShardImages::check_lost() const {
  const std::lock_guard lock(lost_mutex_);
  if (size() == 0) {
    fail("dataset '{}': no image in its {} shards: {}", info().name, info().split, last_problem_);
  }
  const int64_t all = size() + uncounted_;
  if (lost_ <= max_damaged(all)) return;
  fail("dataset '{}': {} of {} {} images are lost in corrupt shards; the last is {}", info().name,
       lost_, all, info().split, last_problem_);
}

std::vector<int64_t> ShardImages::blocks() const {
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (begins_[i + 1] > begins_[i]) sizes.push_back(begins_[i + 1] - begins_[i]);
  }
  return sizes;
}

ShardImages::Place ShardImages::locate(int64_t index) const {
  check_index(index);
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), index);
  return {static_cast<size_t>(after - begins_.begin()) - 1, index - *(after - 1)};
}

const ShardIndex::Image& ShardImages::image_at(const Place& place) const {
  const ShardIndex& index = indexed(place.shard);
  if (std::cmp_greater_equal(place.image, index.images.size())) {
    throw ImageError(index.problem, /*logged=*/true);
  }
  return index.images[static_cast<size_t>(place.image)];
}

fs::path ShardImages::path(int64_t index) const {
  const Place place = locate(index);
  return fs::path(shards_[place.shard]->placed.path) /
         (indexed(place.shard).names.c_str() + image_at(place).name);
}

std::optional<ImageFile> ShardImages::file(int64_t index) const {
  const Place place = locate(index);
  const ShardIndex::Image& image = image_at(place);
  const fs::path shard = fs::path(shards_[place.shard]->placed.path).filename();
  return ImageFile{(shard / (indexed(place.shard).names.c_str() + image.name)).string(),
                   image.size};
}

std::string ShardImages::read(int64_t index) const {
  const Place place = locate(index);
  const ShardIndex::Image& image = image_at(place);
  const auto try_once = [&] {
    try {
      return read_at(open(place.shard)->get(), image.offset, image.size,
                     shards_[place.shard]->placed.path);
    } catch (const IoError&) {
      const std::lock_guard lock(open_mutex_);  // Its descriptor may be stale: it is opened again.
      open_[place.shard].reset();
      std::erase(opened_, place.shard);
      throw;
    }
  };
  return retry_io(try_once, pause());
}

UniqueFd ShardImages::hold(size_t shard) const {
  const PlacedShard& placed = shards_[shard]->placed;
  while (true) {
    if (!is_here(placed.path)) fetch_(placed);
    UniqueFd fd = try_open(placed.path, O_RDONLY);
    if (!fd && errno != ENOENT) return open_file(placed.path, O_RDONLY);
    struct stat found {};
    const bool locked = fd && ::flock(fd.get(), LOCK_SH) == 0 && ::fstat(fd.get(), &found) == 0;
    if (fd && (!locked || found.st_nlink > 0)) return fd;  // Else it was removed before the lock.
  }
}

std::shared_ptr<const UniqueFd> ShardImages::open(size_t shard) const {
  const PlacedShard& placed = shards_[shard]->placed;
  UniqueFd held;
  if (placed.is_removable) {
    {
      const std::lock_guard lock(open_mutex_);
      if (open_[shard]) return open_[shard];
    }
    held = hold(shard);  // Without the mutex, since it may be fetched.
    constexpr timespec kTimes[] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    ::futimens(held.get(), kTimes);  // What was used last is removed last.
  }
  const std::lock_guard lock(open_mutex_);
  if (open_[shard]) return open_[shard];
  if (!held) held = open_file(placed.path, O_RDONLY);
  if (opened_.size() == kMaxOpenShards) {
    open_[opened_.front()].reset();  // It is closed once no thread reads it.
    opened_.pop_front();
  }
  opened_.push_back(shard);
  return open_[shard] = std::make_shared<UniqueFd>(std::move(held));
}

}  // namespace moesaic
