// SPDX-License-Identifier: Apache-2.0
// Shards: tar archives of images and their labels, here or on the web.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "../files.h"
#include "../shards.h"
#include "checks.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

constexpr uint64_t kMaxClassesBytes = uint64_t{1} << 24;
constexpr int64_t kMaxShards = 50'000;
/// Max number of bytes of a shard whose size is not described.
constexpr uint64_t kMaxShardBytes = uint64_t{1} << 40;

struct ShardsSettings {
  std::map<std::string, std::vector<ShardFile>> shards;
  std::string classes_file, labels = "either";
  int64_t height = 0, width = 0;
  bool undescribed = false;  ///< Whether mean and std are those of photographs; no setting.
};
void describe(auto& f, ShardsSettings& c) {
  f("shards", c.shards,
    "tar archives of each split (train, validation, test), in order: images 0001.jpg (or another "
    "image extension) with their classes, by number or name, in 0001.cls");
  f("classes_file", c.classes_file,
    "file beside the shards with a class name per line, instead of classes");
  f("labels", c.labels,
    "content of .cls files: the number of a class, from 0, its name, or either, where no class is "
    "named like another one's number",
    one_of({"either", "number", "name"}));
  f("height", c.height, "height of every image in pixels; 0: images differ in size", at_least(0));
  f("width", c.width, "width of every image in pixels; 0: images differ in size", at_least(0));
}

const ShardsSettings& shards_of(const DatasetSpec& spec) {
  return spec.format.as<ShardsSettings>();
}

/// Returns the shards of a split, one by one.
std::vector<ShardFile> files_of(const DatasetSpec& spec, const std::string& split) {
  std::vector<ShardFile> files;
  const auto found = shards_of(spec).shards.find(split);
  if (found == shards_of(spec).shards.end()) return files;
  for (const ShardFile& listed : found->second) {
    for (ShardFile& file : expanded(listed)) files.push_back(std::move(file));
  }
  return files;
}

/// Counts the files before any range is expanded, since a range of six digits names a million.
ConfigProblem count_problem(const DatasetSpec& spec) {
  int64_t count = 0;
  for (const auto& [split, listed] : shards_of(spec).shards) {
    for (const ShardFile& file : listed) {
      count += count_shards(file, kMaxShards);
      if (count <= kMaxShards) continue;
      return {fmt::format("shards.{}: more than {} files at '{}'", split, kMaxShards, file.name),
              {"shards." + split + ":"}};
    }
  }
  return {};
}

ConfigProblem files_problem(const DatasetSpec& spec) {
  const auto& shards = shards_of(spec).shards;
  if (shards.empty()) return {"shards is missing: the tar archives of each split", {"shards:"}};
  if (ConfigProblem problem = count_problem(spec); !problem.empty()) return problem;
  for (const auto& [split, listed] : shards) {
    const std::string key = "shards." + split + ":";
    std::set<std::string> names;
    int64_t images = 0;
    bool counted = true;
    for (const ShardFile& entry : listed) {
      for (ShardFile& file : expanded(entry)) {  // A range's names are long and many: held once.
        const auto [name, fresh] = names.insert(std::move(file.name));
        if (!fresh) return {fmt::format("shards.{} names '{}' twice", split, *name), {key}};
        images += file.num_images;
        counted &= file.num_images > 0;
      }
    }
    if (names.empty()) return {fmt::format("shards.{} is empty", split), {key}};
    const auto told = spec.num_images.find(split);
    if (counted && told != spec.num_images.end() && told->second != images) {
      return {
          fmt::format("num_images.{} is {}, but its shards have {}", split, told->second, images),
          {"num_images." + split, "num_images:"}};
    }
  }
  return {};
}

ConfigProblem classes_given(const DatasetSpec& spec) {
  const std::string& file = shards_of(spec).classes_file;
  if (!file.empty() && !is_file_name(file)) {
    return {file_name_problem("classes_file", file), {"classes_file"}};
  }
  if (spec.classes.empty() == file.empty()) {
    return {"shards need either classes or classes_file", {"classes_file", "classes:"}};
  }
  return {};
}

ConfigProblem check_shards(const DatasetSpec& spec) {
  const ShardsSettings& settings = shards_of(spec);
  ConfigProblem other;
  if (spec.archive) other = {"shards do not come in an archive", {"archive:"}};
  if ((settings.height == 0) != (settings.width == 0)) {
    other = {"height and width belong together", {"height", "width"}};
  }
  return first_problem({no_files_problem(spec), classes_given(spec), classes_problem(spec),
                        unknown_split(settings.shards, "shards"),
                        unknown_split(spec.num_images, "num_images"), files_problem(spec),
                        open_channels_problem(spec), other});
}

std::vector<std::string> splits_shards(const DatasetSpec& spec) {
  std::vector<std::string> splits;
  for (const char* split : {"train", "validation", "test"}) {
    if (shards_of(spec).shards.contains(split)) splits.emplace_back(split);
  }
  return splits;
}

std::vector<RequiredPath> parts_shards(const DatasetSpec& spec, const std::string& split) {
  std::vector<RequiredPath> parts;
  for (ShardFile& file : files_of(spec, split)) parts.push_back({std::move(file.name), false});
  const std::string& classes = shards_of(spec).classes_file;
  if (!classes.empty()) parts.push_back({classes, false});
  return parts;
}

/// Finds files in `folder`, or else in the first search folder that has them.
class ShardFinder {
 public:
  ShardFinder(const DatasetSpec& spec, const fs::path& folder)
      : folders_(search_folders(spec)), fetched_(fetch_folder(spec)) {
    folders_.insert(folders_.begin(), folder);
  }

  /// Returns where a file lies, or where it is to be put.
  fs::path operator()(const std::string& name) const {
    for (const fs::path& folder : folders_) {
      std::error_code error;
      if (fs::is_regular_file(folder / name, error)) return folder / name;
    }
    return fetched_ / name;
  }

 private:
  std::vector<fs::path> folders_;
  fs::path fetched_;
};

std::vector<PlacedShard> placed_shards(const DatasetSpec& spec, const std::string& split,
                                       const fs::path& folder) {
  const ShardFinder find(spec, folder);
  std::vector<PlacedShard> shards;
  for (ShardFile& file : files_of(spec, split)) {
    std::string path = find(file.name).string();
    shards.push_back({std::move(file), std::move(path)});
  }
  return shards;
}

/// Returns the names of classes, which a file may hold.
std::vector<std::string> class_names(const DatasetSpec& spec, const fs::path& folder) {
  if (!spec.classes.empty()) return spec.classes;
  const std::string& file = shards_of(spec).classes_file;
  const fs::path path = ShardFinder(spec, folder)(file);
  std::error_code error;
  if (!spec.urls.empty() && !fs::exists(path, error)) {
    const auto problem_of = [](const fs::path& got) {
      std::error_code unknown;
      return fs::file_size(got, unknown) > 0 && !unknown ? std::string() : "it is empty";
    };
    fetch_shared(spec, {file, path, kMaxClassesBytes, /*label=*/"", problem_of});
  }
  const std::string text = read_text(path, kMaxClassesBytes, "names of classes");
  std::istringstream lines{std::string(without_byte_order_mark(text))};
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    names.push_back(line.erase(line.find_last_not_of(" \t\r") + 1));
  }
  while (!names.empty() && names.back().empty()) names.pop_back();
  const auto gap = std::find(names.begin(), names.end(), "");
  if (gap != names.end()) {  // It may be a class: whoever counted lines has other numbers.
    fail("{}: line {} is empty; each line names a class", path.string(), gap - names.begin() + 1);
  }
  const std::set<std::string> different(names.begin(), names.end());
  if (names.empty()) fail("{}: no name of a class in it", path.string());
  if (different.size() != names.size()) fail("{}: names a class twice", path.string());
  return names;
}

/// Returns how labels are read. Throws Error (usage) where they could be read in two ways.
ClassNumbers class_numbers(const DatasetSpec& spec, const std::vector<std::string>& names) {
  ClassNumbers numbers(names, shards_of(spec).labels);
  const std::string problem = numbers.ambiguity();
  if (!problem.empty()) fail_usage("dataset '{}': {}", spec.name, problem);
  return numbers;
}

void fetch_shard(const DatasetSpec& spec, const PlacedShard& shard, bool progress) {
  const ShardFile& file = shard.described;
  const uint64_t max = file.size > 0 ? static_cast<uint64_t>(file.size) : kMaxShardBytes;
  fetch_shared(spec, {file.name, shard.path, max, progress ? file.name : "",
                      [&](const fs::path& path) { return shard_problem(path, file); }});
}

std::shared_ptr<const ShardImages> images_of(const DatasetSpec& spec, DatasetInfo info,
                                             const fs::path& folder,
                                             std::vector<PlacedShard> shards) {
  const ShardsSettings& settings = shards_of(spec);
  info.classes = class_names(spec, folder);
  class_numbers(spec, info.classes);
  info.channels = static_cast<int64_t>(info.mean.size());
  info.channels_open = settings.undescribed;
  info.height = settings.height;
  info.width = settings.width;
  return std::make_shared<ShardImages>(
      std::move(info), std::move(shards),
      [spec](const PlacedShard& shard) { fetch_shard(spec, shard, /*progress=*/false); }, sleep_for,
      settings.labels);
}

std::shared_ptr<const Dataset> open_shards(const DatasetSpec& spec, DatasetInfo info,
                                           const fs::path& folder) {
  auto shards = placed_shards(spec, info.split, folder);
  return images_of(spec, std::move(info), folder, std::move(shards));
}

void fill_shards_info(const DatasetSpec& spec, DatasetInfo& info) {
  info.height = shards_of(spec).height;
  info.width = shards_of(spec).width;
}

FetchResult fetch_all_shards(const DatasetSpec& spec, const FetchOptions& options) {
  FetchResult result{fetch_folder(spec), {}};
  class_names(spec, result.folder);
  for (const std::string& split : splits_shards(spec)) {
    for (PlacedShard& shard : placed_shards(spec, split, result.folder)) {
      if (shard.described.sha256.empty()) result.unhashed.push_back(shard.described.name);
      std::error_code error;
      if (fs::is_regular_file(shard.path, error) &&
          shard_problem(shard.path, shard.described).empty()) {
        continue;
      }
      shard.path = (result.folder / shard.described.name).string();  // A wrong one elsewhere stays.
      fetch_shard(spec, shard, options.progress);
      result.fetched.push_back(shard.described.name);
    }
  }
  if (!result.fetched.empty()) {
    log_info("dataset '{}': fetched {} to {}", spec.name,
             count_text(std::ssize(result.fetched), "shard"), result.folder.string());
  }
  return result;
}

/// Returns what is wrong with a shard, compared with its description and then read, or "".
std::string problem_of(const PlacedShard& shard, const ClassNumbers& classes) {
  try {
    const std::string problem = shard_problem(shard.path, shard.described);
    return problem.empty() ? index_shard(shard.path, shard.described, classes).problem : problem;
  } catch (const Error& error) {
    return error.what();
  }
}

/// Names each shard that is not what is described, then decodes all images that are described;
/// where so many are lost that nobody could use the split, those of the other shards.
std::vector<FileVerification> verify_shards(const DatasetSpec& spec, const std::string& split,
                                            const fs::path& folder) {
  std::vector<FileVerification> results, images;
  std::vector<PlacedShard> sound;
  bool differs = false;
  const ClassNumbers classes = class_numbers(spec, class_names(spec, folder));
  for (PlacedShard& shard : placed_shards(spec, split, folder)) {
    const std::string problem = problem_of(shard, classes);
    const std::string doubt = problem.empty() ? shard_doubt(shard.described) : "";
    results.push_back({shard.described.name, shard.path, problem, doubt});
    differs = differs || !problem.empty();
    if (problem.empty()) sound.push_back(std::move(shard));
  }
  try {
    images = verify_image_files(spec, split, folder);
  } catch (const Error& error) {
    if (!differs) throw;
    results.push_back({split, folder, error.what()});
    if (sound.empty()) return results;
    images = verify_images(*images_of(spec, info_from_spec(spec, split), folder, std::move(sound)));
  }
  for (FileVerification& image : images) {
    if (differs) image.doubt = "its shards differ from their description";
    results.push_back(std::move(image));
  }
  return results;
}

}  // namespace

DatasetFormat shards_format() {
  return {.settings = NamedSettings("shards", ShardsSettings{}),
          .description =
              "tar archives of images and labels (WebDataset), on disk or fetched from the web",
          .has_exif = true,
          .check = check_shards,
          .complete =
              [](DatasetSpec& spec) {
                spec.format.as<ShardsSettings>().undescribed = complete_channels(spec);
              },
          .open = open_shards,
          .splits = splits_shards,
          .parts = parts_shards,
          .fetch = fetch_all_shards,
          .fill_info = fill_shards_info,
          .verify = verify_shards};
}

}  // namespace moesaic
