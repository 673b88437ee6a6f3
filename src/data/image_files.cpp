// SPDX-License-Identifier: Apache-2.0
#include "image_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <limits>

#include "moesaic/base/background_task.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"
#include "moesaic/base/progress.h"
#include "moesaic/base/text.h"
#include "moesaic/data/resize.h"
#include "moesaic/data/views.h"
#include "moesaic/formats/image.h"

namespace moesaic {
namespace {

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

using Problems = std::map<int64_t, StoredImages::Problem>;

/// Returns the classes whose images all cannot be read. Those lost with their labels do not count.
std::vector<FileVerification> lost_classes(const StoredImages& images, const Problems& problems) {
  std::map<int64_t, int64_t> unreadable, all;
  for (const auto& [index, problem] : problems) {
    if (!problem.is_readable && !problem.text.empty()) ++unreadable[images.label(index)];
  }
  for (int64_t i = 0; !unreadable.empty() && i < images.size(); ++i) {
    if (const auto label = known_label(images, i)) ++all[*label];
  }
  std::vector<FileVerification> results;
  for (const auto& [label, count] : unreadable) {
    if (count != all[label]) continue;
    const std::string& name = images.info().classes[static_cast<size_t>(label)];
    const std::string split = images.info().split;
    results.push_back({name,
                       {},
                       fmt::format("{}: none of the {} of class '{}' can be read", split,
                                   count_text(count, "image"), name)});
  }
  return results;
}

}  // namespace

int64_t ImageFiles::label(int64_t index) const {
  check_index(index);
  const int64_t label = files_.label(index);
  if (label == kNoLabel) fail("{}: has no label", path(index).string());
  return label;
}

int64_t ImageFiles::group(int64_t index) const {
  check_index(index);
  return groups_.empty() ? Dataset::group(index) : groups_[static_cast<size_t>(index)];
}

std::optional<ImageFile> ImageFiles::file(int64_t index) const {
  check_index(index);
  const fs::path path = files_.path(index);
  const auto examine = [&]() -> ImageFile {
    struct stat found = {};
    const std::string name = files_.name(index).string();
    if (::stat(path.c_str(), &found) == 0) {
      return {name, int64_t{found.st_size}, found.st_dev, found.st_ino};
    }
    const std::error_code error(errno, std::generic_category());
    const bool is_gone = error == std::errc::no_such_file_or_directory ||
                         error == std::errc::not_a_directory ||
                         error == std::errc::too_many_symbolic_link_levels;
    if (!is_gone) fail_errno(path, "cannot be examined", error.value());
    return {name};
  };
  return retry_io(examine, pause());
}

std::string ImageFiles::read(int64_t index) const {
  check_index(index);
  const fs::path file = path(index);
  try {
    return retry_io([&] { return read_text(file, kMaxImageFileBytes, "an image"); }, pause());
  } catch (const IoError&) {
    throw;  // What the file holds may be sound.
  } catch (const Error& error) {
    throw ImageError(error.what());
  }
}

void StoredImages::oriented_image(int64_t index, std::optional<bool> applies_exif,
                                  uint8_t* out) const {
  if (info().height == 0) {
    fail_usage("dataset '{}': the images may differ in size; set preprocess.size", info().name);
  }
  Bitmap bitmap;
  const auto whole = [](int64_t h, int64_t w) { return Rectangle{0, 0, h, w}; };
  const Rectangle part =
      decode(index, whole, {std::numeric_limits<int64_t>::max(), applies_exif}, bitmap);
  if (part.height != info().height || part.width != info().width) {
    throw ImageError(fmt::format("{}: {} x {} pixels, but all images are described as {} x {}",
                                 path(index).string(), part.height, part.width, info().height,
                                 info().width));
  }
  resize(bitmap, part, {}, part.height, part.width, out);
}

Rectangle StoredImages::decode(int64_t index, const ChooseCrop& choose, const ReadOptions& options,
                               Bitmap& bitmap) const {
  const std::string file = read(index);
  try {
    const bool applies_exif = options.applies_exif.value_or(info().applies_exif.value_or(true));
    ImageDecoder decoder(bytes_of(file), applies_exif);
    const Rectangle part = choose(decoder.height(), decoder.width());
    // The part keeps at least `min` pixels along both sides.
    const int64_t max_reduction =
        std::min(part.height, part.width) / std::max<int64_t>(options.min_side, 1);
    Rectangle held;
    const Rectangle found = decoder.decode_crop(part, max_reduction, bitmap.pixels, held);
    bitmap = {held.height, held.width, 3, std::move(bitmap.pixels)};
    convert_channels(bitmap, info().channels);
    if (!decoder.warning().empty() && !warned_.exchange(true)) {
      log_warning("{}: readable, with a defect: {}; further such files are not reported",
                  path(index).string(), decoder.warning());
    }
    return found;
  } catch (const Error& error) {
    throw ImageError(fmt::format("{}: {}", path(index).string(), error.what()));
  }
}

StoredImages::Problem StoredImages::problem(int64_t index) const {
  std::string file;
  try {
    file = read(index);
  } catch (const ImageError& error) {
    return {error.is_logged() ? "" : error.what(), false};
  } catch (const IoError& error) {
    return {error.what(), false};
  }
  try {
    ImageDecoder decoder(bytes_of(file));
    std::vector<uint8_t> pixels;
    decoder.decode(8, pixels);  // A JPEG at 1/8 is read whole at little cost.
    if (decoder.warning().empty()) return {};
    return {
        fmt::format("{}: readable, with a defect: {}", path(index).string(), decoder.warning())};
  } catch (const Error& error) {
    return {fmt::format("{}: {}", path(index).string(), error.what()), false};
  }
}

std::shared_ptr<const Dataset> make_image_dataset(DatasetInfo info,
                                                  const std::vector<fs::path>& files) {
  FileList list{{}};
  for (const fs::path& file : files) {
    list.add(list.add_folder(file.parent_path().string()), file.filename().string(), kNoLabel);
  }
  return std::make_shared<ImageFiles>(std::move(info), std::move(list), std::vector<uint8_t>(),
                                      /*pause=*/nullptr);
}

std::vector<FileVerification> verify_images(const StoredImages& images) {
  Problems problems;
  std::mutex mutex;
  Progress progress({.label = images.info().split, .total = images.size(), .unit = "images"});
  const size_t processors = std::max(1u, std::thread::hardware_concurrency());
  on_threads(static_cast<size_t>(images.size()), processors, [&](size_t i) {
    const auto index = static_cast<int64_t>(i);
    StoredImages::Problem problem = images.problem(index);
    const std::lock_guard lock(mutex);
    if (!problem.text.empty() || !problem.is_readable) problems[index] = std::move(problem);
    progress.advance(1);
  });
  progress.finish();
  std::vector<FileVerification> results;
  for (const auto& [index, problem] : problems) {
    if (problem.text.empty()) continue;
    const fs::path path = images.path(index);
    results.push_back({path.filename().string(), path, problem.text});
  }
  for (FileVerification& lost : lost_classes(images, problems)) results.push_back(std::move(lost));
  const auto sound = images.size() - static_cast<int64_t>(problems.size());
  results.push_back(
      {fmt::format("{}: {} of {}", images.info().split, sound, images.size()), {}, ""});
  return results;
}

}  // namespace moesaic
