// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "image_files.h"
#include "moesaic/base/posix.h"
#include "shard_index.h"

namespace moesaic {

/// A shard and where it lies, or will once it is fetched.
struct PlacedShard {
  ShardFile described;
  std::string path;  ///< A std::filesystem::path of a long name takes three times as much.
};

/// Images in shards, read at their places. Shards that are here are indexed at once; others that
/// the description counts are fetched when an image of them is first asked for. A damaged shard is
/// named in one warning; those of its images that cannot be found are its last ones, and throw
/// ImageError, as does their label. Every index keeps its image whatever is damaged.
class ShardImages final : public StoredImages {
 public:
  /// Puts a shard in its place. Throws Error (failure) if it cannot be had.
  using Fetch = std::function<void(const PlacedShard&)>;

  /// Throws Error (failure) with the shard's name if more images are lost than may be.
  ShardImages(DatasetInfo info, std::vector<PlacedShard> shards, Fetch fetch,
              Pause pause = sleep_for, LabelText labels = LabelText::either);

  int64_t size() const override { return begins_.back(); }
  int64_t label(int64_t index) const override;
  std::vector<int64_t> blocks() const override;
  std::filesystem::path path(int64_t index) const override;
  std::optional<ImageFile> file(int64_t index) const override;

 private:
  struct Shard {
    PlacedShard placed;
    mutable std::mutex mutex;  ///< Guards index until it has a value, which then stays.
    mutable std::optional<ShardIndex> index;
  };
  struct Place {
    size_t shard;
    int64_t image;  ///< Within the shard.
  };

  std::string read(int64_t index) const override;
  Place place_of(int64_t index) const;
  const ShardIndex& indexed(size_t shard) const;
  const ShardIndex::Image& image_at(const Place& place) const;
  /// Indexes the shards that are here and those that have to be.
  void index_present();
  void count_lost(size_t shard) const;
  void check_lost() const;
  std::shared_ptr<const UniqueFd> open(size_t shard) const;
  /// Lets the next open() open the file again.
  void forget(size_t shard) const;

  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<int64_t> begins_;  ///< First index of each shard, and the end.
  ClassNumbers classes_;
  Fetch fetch_;

  mutable std::mutex lost_mutex_;
  mutable int64_t lost_ = 0;
  mutable int64_t uncounted_ = 0;  ///< Those of lost_ that size() leaves out.
  mutable std::string last_problem_;

  mutable std::mutex open_mutex_;
  mutable std::vector<std::shared_ptr<const UniqueFd>> open_;  ///< By shard; null if not open.
  mutable std::deque<size_t> opened_;                          ///< The oldest first.
};

}  // namespace moesaic
