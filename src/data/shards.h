// SPDX-License-Identifier: Apache-2.0
// Shards: tar archives of images with their labels, after WebDataset's habit. A sample's members
// share the name up to its first dot: 0001.jpg (.jpeg, .png, .webp) and 0001.cls, the number of its
// class or the class's name.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "image_files.h"
#include "moesaic/base/posix.h"
#include "moesaic/config/schema.h"

namespace moesaic {

/// Max number of images in a shard, so that no sum over shards overflows.
inline constexpr double kMaxShardImages = 1e9;

/// A shard as a description gives it; what is not known is 0 or empty.
struct ShardFile {
  std::string name, sha256;
  int64_t num_images = 0, size = 0;
};
void describe(auto& f, ShardFile& c) {
  f("name", c.name, "file name, or a range of names: train-{0000..0127}.tar", required, not_empty);
  f("num_images", c.num_images,
    "number of images per file; 0: unknown, so that the files must be there when data are opened",
    between(0, kMaxShardImages), renamed_from("images"));
  f("size", c.size, "size in bytes; 0: unknown", at_least(0));
  f("sha256", c.sha256, "checksum (SHA-256) of the file; empty: unknown");
}

/// Checks the form of name and hash.
std::string config_problem(const ShardFile& file);

/// Max number of shards of a dataset.
inline constexpr int64_t kMaxShards = 50'000;

/// Returns the files that a name with a range of numbers stands for, the others' settings repeated;
/// any other name is itself. Of a longer range the first kMaxShards + 1.
std::vector<ShardFile> expand_range(const ShardFile& file);

/// Numbers of classes by name.
class ClassNumbers {
 public:
  /// `texts`: what the text of a label is, "number" of a class, its "name", or "either", what it
  /// can be without doubt.
  explicit ClassNumbers(const std::vector<std::string>& classes, std::string texts = "either");

  /// Returns the class that a label's text says; nothing for one that is unknown, or the number of
  /// one class and the name of another.
  std::optional<int32_t> find(std::string_view text) const;
  /// Returns what is wrong with a text that find() does not know.
  std::string problem(std::string_view text) const;
  /// Returns which class has the number of another one for its name, in one line, or "".
  std::string ambiguity() const;

 private:
  std::optional<int32_t> numbered(std::string_view word) const;
  std::optional<int32_t> named(std::string_view word) const;

  std::string texts_;
  std::vector<std::string> classes_;
  std::unordered_map<std::string, int32_t> numbers_;
};

/// Where the images of a shard lie.
struct ShardIndex {
  struct Image {
    int64_t offset;
    uint32_t size, name;  ///< Bytes; place of the name in `names`.
    int32_t label;
  };
  std::vector<Image> images;
  std::string names;    ///< Each ends in 0.
  std::string problem;  ///< What is wrong, with the shard's path, in one line; empty for nothing.
  int64_t skipped = 0;  ///< Images found of which something is wrong.
};

/// Lists the images of the shard at `path` that have a label. What is wrong with others, and where
/// the file differs from `described` in size or number of images, is told in `problem`; of more
/// images than described the first ones are listed. Throws IoError if the file cannot be read,
/// Error (failure) if it is compressed.
ShardIndex index_shard(const fs::path& path, const ShardFile& described,
                       const ClassNumbers& classes);

/// Compares a file's bytes with what is described, and where that has no hash, whether the archive
/// is whole and has as many images at least. Returns the problem in one line, or "".
std::string shard_problem(const fs::path& path, const ShardFile& described);
/// Returns what shard_problem() could not compare for want of a hash, or "".
std::string shard_doubt(const ShardFile& described);

/// Reads `size` bytes at `offset`. Throws IoError with the path.
std::string read_at(int fd, int64_t offset, int64_t size, const fs::path& path);

/// A shard and where it lies, or will once it is fetched.
struct PlacedShard {
  ShardFile described;
  std::string path;           ///< A fs::path of a long name takes three times as much.
  bool is_removable = false;  ///< Whether another process may remove it to make room.
};

/// Images in shards, read at their places. Shards that are here are indexed at once; others that
/// the description counts are fetched when an image of them is first asked for. A corrupt shard is
/// named in one warning; those of its images that cannot be found are its last ones, and throw
/// ImageError, as does their label. Every index keeps its image whatever is corrupt.
class ShardImages final : public StoredImages {
 public:
  /// Puts a shard in its place. Throws Error (failure) if it cannot be had.
  using Fetch = std::function<void(const PlacedShard&)>;

  /// Throws Error (failure) with the shard's name if more images are lost than may be.
  ShardImages(DatasetInfo info, std::vector<PlacedShard> shards, Fetch fetch,
              SleepFunction pause = sleep_for, const std::string& labels = "either");

  int64_t size() const override { return begins_.back(); }
  int64_t label(int64_t index) const override { return image_at(locate(index)).label; }
  std::vector<int64_t> blocks() const override;
  fs::path path(int64_t index) const override;
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
  Place locate(int64_t index) const;
  const ShardIndex& indexed(size_t shard) const;
  const ShardIndex::Image& image_at(const Place& place) const;
  /// Indexes the shards that are here and those that have to be.
  void index_present();
  void count_lost(size_t shard) const;
  void check_lost() const;
  std::shared_ptr<const UniqueFd> open(size_t shard) const;
  /// Opens a removable shard with a lock that keeps it where it is.
  UniqueFd hold(size_t shard) const;

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
