// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/pack.h"

#include <ATen/ATen.h>
#include <omp.h>

#include <climits>
#include <cmath>
#include <limits>

#include "loader_parts.h"
#include "moesaic/base/background_task.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/progress.h"
#include "moesaic/base/random.h"
#include "moesaic/base/signal.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/data/format.h"
#include "moesaic/data/source.h"
#include "moesaic/formats/archive.h"
#include "moesaic/formats/image.h"
#include "shards.h"

namespace moesaic {
namespace {

/// The file that a shard holds of one image.
struct PackedImage {
  std::string bytes;
  const char* extension = "jpg";  ///< Or "png" or "webp".
};

/// Returns the shorter side of a file's image. Throws ImageError for what is no image.
int64_t shorter_side(const EncodedImage& file) try {
  const auto* bytes = reinterpret_cast<const uint8_t*>(file.bytes.data());
  const ImageDecoder decoder({bytes, file.bytes.size()}, file.applies_exif);
  return std::min(decoder.height(), decoder.width());
} catch (const Error& error) {
  throw ImageError(fmt::format("{}: {}", file.name, error.what()));
}

/// Returns an image's pixels, its shorter side `size` or as large as it is.
PackedImage encoded_pixels(const Dataset& dataset, int64_t index, int64_t size, int64_t quality) {
  Rectangle full;
  const auto whole = [&](int64_t h, int64_t w) { return full = {0, 0, h, w}; };
  Bitmap bitmap;
  const int64_t min = size > 0 ? size : std::numeric_limits<int64_t>::max();
  const Rectangle part = dataset.decode(index, whole, {min}, bitmap);
  const int64_t channels = bitmap.channels, shorter = std::min(full.height, full.width);
  if (size == 0 || shorter <= size) {
    return {encode_png({bitmap.pixels, bitmap.height, bitmap.width, channels}), "png"};
  }
  const double scale = static_cast<double>(size) / static_cast<double>(shorter);
  const auto scaled = [&](int64_t side) {
    return std::max<int64_t>(1, std::llround(scale * static_cast<double>(side)));
  };
  const int64_t height = scaled(full.height), width = scaled(full.width);
  std::vector<uint8_t> planes(static_cast<size_t>(channels * height * width));
  resize(bitmap, part, {}, height, width, planes.data());
  const at::Tensor planes_CHW = at::from_blob(planes.data(), {channels, height, width}, at::kByte);
  const at::Tensor pixels_HWC = planes_CHW.permute({1, 2, 0}).contiguous();
  return {
      encode_jpeg({{pixels_HWC.const_data_ptr<uint8_t>(), planes.size()}, height, width, channels},
                  static_cast<int>(quality)),
      "jpg"};
}

/// Returns the file of an image whose shorter side is at most `size` pixels; 0: as it is. Throws
/// ImageError if it cannot be read.
PackedImage packed_image(const Dataset& dataset, int64_t index, int64_t size, int64_t quality) {
  if (std::optional<EncodedImage> file = dataset.encoded(index)) {
    const int64_t stored = shorter_side(*file);  // Shows whether it is one at all.
    const char* const extension = file->bytes.starts_with("\x89PNG") ? "png"
                                  : file->bytes.starts_with("RIFF")  ? "webp"
                                                                     : "jpg";
    if (size == 0 || stored <= size) return {std::move(file->bytes), extension};
  }
  return encoded_pixels(dataset, index, size, quality);
}

using Source = std::shared_ptr<const Dataset>;

void check_pack_options(std::string_view name, const fs::path& out, const PackOptions& options) {
  const std::string folder = (out.has_filename() ? out : out.parent_path()).filename().string();
  check_new_folder(out, "--out");
  if (!is_portable_name(folder)) {
    fail_usage(
        "--out: '{}' becomes the dataset's name, which has letters, digits, '-', '_' and '.' only",
        folder);
  }
  if (const std::string file = folder + ".json"; !is_file_name(file)) {
    fail_usage("--out: its name has {}, but its description '{}' may have at most {}",
               count_text(static_cast<int64_t>(folder.size()), "byte"), one_line(file), NAME_MAX);
  }
  if (options.num_shards < 1) fail_usage("--shards must be at least 1, not {}", options.num_shards);
  if (options.size < 0) fail_usage("--size must be at least 1, not {}", options.size);
  if (options.quality < 1 || options.quality > 100) {
    fail_usage("--quality must be 1 to 100, not {}", options.quality);
  }
  // Before opening, which may take long and say much.
  if (!format_of(DatasetSource(name).base()).has_images) {
    fail_usage("dataset '{}': the inputs are not images; only images can be packed", name);
  }
  check_outside_images(out, std::string(name));
  const std::vector<std::string> splits = dataset_splits(name);
  if (!options.split.empty() && std::ranges::find(splits, options.split) == splits.end()) {
    fail_usage("dataset '{}' has no split '{}'; {}", name, options.split,
               did_you_mean(options.split, splits));
  }
}

void check_source(const Dataset& data) {
  const DatasetInfo& info = data.info();
  if (info.classes.empty()) {
    fail_usage("dataset '{}': the images have no classes; only images with classes can be packed",
               info.name);
  }
  if (data.is_endless()) fail_usage("dataset '{}': endless data cannot be packed", info.name);
  if (info.channels != 1 && info.channels != 3) {
    fail_usage("dataset '{}': the images have {} channels; only 1 or 3 can be packed", info.name,
               info.channels);
  }
}

/// Opens the splits that are asked for and here.
std::vector<Source> open_sources(std::string_view name, const PackOptions& options) {
  std::vector<Source> sources;
  std::vector<std::string> wanted = dataset_splits(name);
  if (!options.split.empty()) wanted = {options.split};
  for (const std::string& split : wanted) {
    // Without a split's files an error says how to get them, if it is the only one.
    if (wanted.size() > 1 && split != "train" &&
        !DatasetSource(name).missing_files(split).empty()) {
      log_info("dataset '{}': the files of the {} split are missing; it is left out", name, split);
      continue;
    }
    sources.push_back(open_dataset(name, split));
    check_source(*sources.back());
  }
  return sources;
}

/// Writes the shards of one split, several at a time.
class SplitPacking {
 public:
  SplitPacking(const Dataset& data, const fs::path& folder, int64_t shards,
               const PackOptions& options, const StopSignal& stop)
      : data_(data),
        folder_(folder),
        options_(options),
        stop_(stop),
        order_(permutation(data.size(), options.seed, stream_id("pack." + data.info().split))),
        written_(static_cast<size_t>(shards)) {}

  /// Returns the shards. Throws Stopped after a signal.
  std::vector<ShardFile> run() {
    if (options_.show_progress) {
      progress_.emplace(ProgressOptions{.label = data_.info().split, .total = data_.size()});
    }
    const size_t processors = std::max(1u, std::thread::hardware_concurrency());
    on_threads(written_.size(), processors, [this](size_t shard) {
      omp_set_num_threads(1);  // Other threads already use the remaining cores.
      try {
        write(shard);
      } catch (...) {
        failed_ = true;
        throw;
      }
    });
    stop_.check();
    if (progress_) progress_->finish();
    for (const ShardFile& shard : written_) {
      if (shard.num_images == 0)
        fs::remove(folder_ / shard.name);  // All of its images were left out.
    }
    std::erase_if(written_, [](const ShardFile& shard) { return shard.num_images == 0; });
    return written_;
  }

  int64_t skipped() const { return skipped_; }

 private:
  bool stops() const { return failed_ || stop_.is_requested(); }

  void write(size_t number) {
    if (stops()) return;
    ShardFile& shard = written_[number];
    shard.name = fmt::format("{}-{:05}.tar", data_.info().split, number);
    const fs::path path = folder_ / shard.name;
    TarWriter tar(path);
    const size_t begin = number * order_.size() / written_.size();
    const size_t end = (number + 1) * order_.size() / written_.size();
    for (size_t place = begin; place < end; ++place) {
      if (stops()) return;
      if (add(place, tar)) ++shard.num_images;
      const std::lock_guard lock(mutex_);
      if (progress_) progress_->advance(1);
    }
    tar.close();
    shard.size = static_cast<int64_t>(fs::file_size(path));
    shard.sha256 = sha256_file_hex(path);
  }

  /// Returns false for an image that cannot be read.
  bool add(size_t place, TarWriter& tar) {
    const int64_t index = order_[place];
    PackedImage image;
    std::string label;
    try {
      image = packed_image(data_, index, options_.size, options_.quality);
      label = std::to_string(data_.label(index));
    } catch (const ImageError& error) {
      const std::lock_guard lock(mutex_);
      if (!error.is_logged()) log_warning("{}; left out", error.what());
      if (++skipped_ <= max_damaged(data_.size()) && skipped_ < data_.size()) return false;
      fail("dataset '{}': {} of {} images cannot be read, the last one being {}", data_.info().name,
           skipped_, data_.size(), error.what());
    }
    const std::string sample = fmt::format("{:08}", place);
    tar.add(fmt::format("{}.{}", sample, image.extension), std::as_bytes(std::span(image.bytes)));
    tar.add(sample + ".cls", std::as_bytes(std::span(label)));
    return true;
  }

  const Dataset& data_;
  const fs::path& folder_;
  const PackOptions& options_;
  const StopSignal& stop_;
  const std::vector<int64_t> order_;
  std::vector<ShardFile> written_;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;  // Guards the members below.
  std::optional<Progress> progress_;
  int64_t skipped_ = 0;
};

/// Returns the description of a packed dataset but for its shards.
Json description_of(const std::string& name, std::string_view source, const Dataset& data,
                    const PackOptions& options) {
  const DatasetInfo& info = data.info();
  const std::string of = name_without_folders(std::string(source));
  Json json = {
      {"name", name},
      {"description",
       options.size > 0 ? fmt::format("{} in shards, the shorter side at most {}", of, options.size)
                        : fmt::format("{} in shards", of)},
      {"format", "shards"},
      {"paths", Json::array({"./"})},
      {"classes", info.classes}};
  // Without them the network decides between grey and colours, as it does of the source.
  if (!info.has_flexible_channels) {
    json["mean"] = info.mean;
    json["std"] = info.std;
  }
  // Images of one size keep one whether they were resized or not.
  if (info.height > 0 && (options.size == 0 || std::min(info.height, info.width) <= options.size)) {
    json["height"] = info.height;
    json["width"] = info.width;
  }
  // Labels are written as numbers.
  if (!ClassNumbers(info.classes).ambiguity().empty()) json["labels"] = "number";
  if (info.applies_exif) json["exif_orientation"] = *info.applies_exif;
  return json;
}

}  // namespace

PackResult pack_dataset(std::string_view name, const fs::path& out, const PackOptions& options) {
  check_pack_options(name, out, options);
  const std::vector<Source> sources = open_sources(name, options);
  int64_t largest = 0;
  for (const Source& source : sources) largest = std::max(largest, source->size());
  if (options.num_shards > largest) {
    fail_usage("--shards is {}, but '{}' has only {} to pack", options.num_shards, name,
               count_text(largest, "image"));
  }
  const fs::path place = out.has_filename() ? out : out.parent_path();
  const std::string packed_name = place.filename().string();
  StagedDirectory staged(place);
  const StopSignal stop;
  PackResult result{place / (packed_name + ".json"), {}};
  Json json = description_of(packed_name, name, *sources.front(), options);
  for (const Source& source : sources) {
    const std::string& split = source->info().split;
    // As many images a shard as the largest split has.
    const int64_t shards =
        std::max<int64_t>(1, (source->size() * options.num_shards + largest - 1) / largest);
    SplitPacking packing(*source, staged.path(), shards, options, stop);
    const std::vector<ShardFile> written = packing.run();
    PackedSplit packed{split, std::ssize(written), 0, 0, packing.skipped()};
    for (const ShardFile& shard : written) {
      packed.num_images += shard.num_images;
      packed.bytes += shard.size;
    }
    result.splits.push_back(packed);
    json["num_images"][split] = packed.num_images;
    json["shards"][split] = to_json(written);
  }
  write_atomic(staged.path() / (packed_name + ".json"), json.dump(1) + "\n");
  staged.commit();
  return result;
}

}  // namespace moesaic
