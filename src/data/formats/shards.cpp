// SPDX-License-Identifier: Apache-2.0
// Shards: tar archives of images and their labels, here or on the web.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <set>
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
#include "moesaic/config/document.h"

namespace moesaic {
namespace {

struct ShardsSettings {
  std::map<std::string, std::vector<ShardFile>> shards;
  std::string shards_file;
  std::map<std::string, std::string> splits;
  std::string classes_file, labels = "either";
  int64_t num_classes = 0, max_cache_bytes = 0, height = 0, width = 0;
  bool undescribed = false;  ///< Whether mean and std are those of photographs; no setting.
};
void describe(auto& f, ShardsSettings& c) {
  f("shards", c.shards,
    "tar archives of each split (train, validation, test), in order: images 0001.jpg (or another "
    "image extension) with their classes, by index or name, in 0001.cls; empty: those of "
    "shards_file");
  f("shards_file", c.shards_file,
    "file beside the shards that lists them instead of shards, such as _info.json of timm's data; "
    "empty: none");
  f("splits", c.splits,
    "names in shards_file of train, validation and test; empty or missing: the same names");
  f("classes_file", c.classes_file,
    "file beside the shards with a class name per line, instead of classes; empty: none");
  f("num_classes", c.num_classes,
    "number of classes without names, instead of classes; 0: as named", at_least(0));
  f("max_cache_bytes", c.max_cache_bytes,
    "limit in bytes of the shards that training keeps of those fetched: the least recently used "
    "ones are removed, except for open ones (128 per process at most); 0: none",
    at_least(0));
  f("labels", c.labels,
    "content of .cls files; number: the index of a class (from 0); name: its name; either: one of "
    "these, where no class is named like another one's index",
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
    for (ShardFile& file : expand_range(listed)) files.push_back(std::move(file));
  }
  return files;
}

ConfigProblem files_problem(const DatasetSpec& spec) {
  const auto& shards = shards_of(spec).shards;
  if (const std::string& list = shards_of(spec).shards_file; !list.empty() && shards.empty()) {
    if (is_file_name(list)) return {};  // It is read where the description is right.
    return {file_name_problem("shards_file", list), {"shards_file"}};
  }
  if (shards.empty()) return {"shards is missing: the tar archives of each split", {"shards:"}};
  int64_t count = 0;
  for (const auto& [split, listed] : shards) {
    const std::string key = "shards." + split + ":";
    std::set<std::string> names;
    int64_t images = 0;
    bool counted = true;
    for (const ShardFile& entry : listed) {
      for (ShardFile& file :
           expand_range(entry)) {  // A range's names are long and many: held once.
        if (++count > kMaxShards) {
          return {
              fmt::format("shards.{}: more than {} files at '{}'", split, kMaxShards, entry.name),
              {key}};
        }
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
  const std::array given = {!spec.classes.empty(), !file.empty(), shards_of(spec).num_classes > 0};
  if (std::ranges::count(given, true) != 1) {
    return {"shards need one of classes, classes_file and num_classes",
            {"classes_file", "num_classes", "classes:"}};
  }
  return {};
}

ConfigProblem check_shards(const DatasetSpec& spec) {
  const ShardsSettings& settings = shards_of(spec);
  ConfigProblem other;
  if (spec.archive) other = {"shards do not come in an archive", {"archive:"}};
  if (!settings.shards_file.empty() && !settings.shards.empty()) {
    other = {"give shards or shards_file", {"shards_file", "shards:"}};
  }
  if ((settings.height == 0) != (settings.width == 0)) {
    other = {"height and width belong together", {"height", "width"}};
  }
  return first_problem({no_files_problem(spec), classes_given(spec), classes_problem(spec),
                        unknown_split(settings.shards, "shards"),
                        unknown_split(settings.splits, "splits"),
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

/// Returns a function that tells where a file lies, in `folder` or else in the first search folder
/// that has it, or where it is to be put.
auto shard_finder(const DatasetSpec& spec, const fs::path& folder) {
  std::vector<fs::path> folders = spec.search_folders();
  folders.insert(folders.begin(), folder);
  return [folders = std::move(folders), fetched = spec.fetch_folder()](const std::string& name) {
    for (const fs::path& one : folders) {
      if (fs::is_regular_file(status_of(one / name))) return one / name;
    }
    return fetched / name;
  };
}

std::vector<PlacedShard> placed_shards(const DatasetSpec& spec, const std::string& split,
                                       const fs::path& folder) {
  const auto find = shard_finder(spec, folder);
  const fs::path cache = spec.fetch_folder();
  const bool limited = shards_of(spec).max_cache_bytes > 0 && !spec.urls.empty();
  std::vector<PlacedShard> shards;
  for (ShardFile& file : files_of(spec, split)) {
    const fs::path path = find(file.name);
    const bool cached = limited && path.parent_path() == cache;
    shards.push_back({std::move(file), path.string(), cached});
  }
  return shards;
}

/// Returns where a file beside the shards lies, which is fetched where it is not here.
fs::path list_beside(const DatasetSpec& spec, const std::string& name, const fs::path& folder) {
  const fs::path path = shard_finder(spec, folder)(name);
  if (spec.urls.empty() || fs::exists(status_of(path))) return path;
  fetch_shared(spec, {.path = path, .max_bytes = kMaxListBytes, .problem_of = [](const auto& got) {
                        return fs::file_size(got) > 0 ? std::string() : "it is empty";
                      }});
  return path;
}

/// Reads which shards there are: {"splits": {"train": {"filenames": [...], "shard_lengths":
/// [...]}}}, with the number of images of each file.
void read_shards_file(DatasetSpec& spec) {
  ShardsSettings& settings = spec.format.as<ShardsSettings>();
  const fs::path path = list_beside(spec, settings.shards_file, spec.fetch_folder());
  with_errors_as_failures([&] {
    const Value splits = read_stored(path, kMaxListBytes).at("splits");
    for (const char* split : {"train", "validation", "test"}) {
      const auto named = settings.splits.find(split);
      const Value* const listed =
          splits.find(named == settings.splits.end() ? split : named->second);
      if (listed == nullptr) continue;
      const Value::Array& names = listed->at("filenames").items("filenames");
      const Value::Array& counts = listed->at("shard_lengths").items("shard_lengths");
      if (names.size() != counts.size()) {
        fail("{}: {} filenames, but {} shard_lengths", listed->where(), names.size(),
             counts.size());
      }
      int64_t& images = spec.num_images[split] = 0;
      for (size_t i = 0; i < names.size(); ++i) {
        const Json file = {{"name", names[i].to_json()}, {"num_images", counts[i].to_json()}};
        settings.shards[split].push_back(
            parse<ShardFile>(Value::from_json(file, names[i].where())));
        images += settings.shards[split].back().num_images;
      }
    }
    const ConfigProblem problem = files_problem(spec);
    if (!problem.empty() || settings.shards.empty()) {
      fail("{}: {}", path.string(),
           problem.empty() ? "the file names none of the splits train, validation and test"
                           : problem.text);
    }
  });
}

/// Returns the names of classes, which a file may hold.
std::vector<std::string> class_names(const DatasetSpec& spec, const fs::path& folder) {
  if (const int64_t count = shards_of(spec).num_classes; count > 0) {
    DatasetInfo counted;
    count_classes(counted, count);
    return counted.classes;
  }
  if (!spec.classes.empty()) return spec.classes;
  const fs::path path = list_beside(spec, shards_of(spec).classes_file, folder);
  const std::string text = read_text(path, kMaxListBytes, "names of classes");
  std::vector<std::string> names = split(without_byte_order_mark(text), '\n');
  for (std::string& name : names) name.erase(name.find_last_not_of(" \t\r") + 1);
  while (!names.empty() && names.back().empty()) names.pop_back();
  const auto gap = std::find(names.begin(), names.end(), "");
  if (gap != names.end()) {  // It may be a class: whoever counted lines has other numbers.
    fail("{}: line {} is empty; each line names a class", path.string(), gap - names.begin() + 1);
  }
  if (names.empty()) fail("{}: the file holds no class names; write one per line", path.string());
  if (const std::string* name = repeated_name(names)) {
    fail("{}: the file names class {} twice; leave one out", path.string(), printable(*name));
  }
  return names;
}

/// Returns how labels are read. Throws Error (usage) where they could be read in two ways.
ClassNumbers class_numbers(const DatasetSpec& spec, const std::vector<std::string>& names) {
  ClassNumbers numbers(names, shards_of(spec).labels);
  const std::string problem = numbers.ambiguity();
  if (!problem.empty()) fail_usage("dataset '{}': {}", spec.name, problem);
  return numbers;
}

void fetch_shard(const DatasetSpec& spec, const PlacedShard& shard, const FetchOptions& options) {
  const ShardFile& file = shard.described;
  fetch_shared(spec, {.path = shard.path,
                      .size = file.size,
                      .label = options.show_progress ? file.name : "",
                      .problem_of = [&](const fs::path& path) { return shard_problem(path, file); },
                      .pause = options.pause});
}

/// Removes the least recently used of the fetched shards until one of `bytes` bytes (0: of the size
/// of the largest) fits into the limit. Those that a process holds stay.
void make_room_in_cache(const DatasetSpec& spec, int64_t bytes) {
  struct Cached {
    std::pair<int64_t, int64_t> used;
    int64_t size;
    fs::path path;
  };
  const int64_t limit = shards_of(spec).max_cache_bytes;
  const fs::path folder = spec.fetch_folder();
  std::vector<Cached> cached;
  int64_t sum = 0, largest = 0;
  for (const std::string& split : splits_shards(spec)) {
    for (const ShardFile& file : files_of(spec, split)) {
      const fs::path path = folder / file.name;
      struct stat found {};
      if (::lstat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) continue;
      cached.push_back({{found.st_mtim.tv_sec, found.st_mtim.tv_nsec}, found.st_size, path});
      sum += found.st_size;
      largest = std::max<int64_t>(largest, found.st_size);
    }
  }
  sum += bytes > 0 ? bytes : largest;
  std::ranges::sort(cached, {}, &Cached::used);
  for (const Cached& one : cached) {
    if (sum <= limit) return;
    const UniqueFd fd = try_open(one.path, O_RDONLY);
    std::error_code error;
    if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && fs::remove(one.path, error)) {
      sum -= one.size;
    }
  }
}

void fill_shards_info(const DatasetSpec& spec, DatasetInfo& info) {
  if (shards_of(spec).num_classes > 0) count_classes(info, shards_of(spec).num_classes);
  info.height = shards_of(spec).height;
  info.width = shards_of(spec).width;
}

std::shared_ptr<const ShardImages> images_of(const DatasetSpec& spec, DatasetInfo info,
                                             const fs::path& folder,
                                             std::vector<PlacedShard> shards) {
  const ShardsSettings& settings = shards_of(spec);
  fill_shards_info(spec, info);
  info.classes = class_names(spec, folder);
  class_numbers(spec, info.classes);
  info.channels = static_cast<int64_t>(info.mean.size());
  info.has_flexible_channels = settings.undescribed;
  return std::make_shared<ShardImages>(
      std::move(info), std::move(shards),
      [spec](const PlacedShard& shard) {
        if (shard.is_removable) make_room_in_cache(spec, shard.described.size);
        fetch_shard(spec, shard, {.show_progress = false});
      },
      sleep_for, settings.labels);
}

std::shared_ptr<const Dataset> open_shards(const DatasetSpec& spec, DatasetInfo info,
                                           const fs::path& folder) {
  auto shards = placed_shards(spec, info.split, folder);
  return images_of(spec, std::move(info), folder, std::move(shards));
}

FetchResult fetch_all_shards(const DatasetSpec& spec, const FetchOptions& options) {
  FetchResult result{spec.fetch_folder(), {}};
  class_names(spec, result.folder);
  for (const std::string& split : splits_shards(spec)) {
    for (PlacedShard& shard : placed_shards(spec, split, result.folder)) {
      if (shard.described.sha256.empty()) result.unhashed.push_back(shard.described.name);
      if (fs::is_regular_file(status_of(shard.path)) &&
          shard_problem(shard.path, shard.described).empty()) {
        continue;
      }
      shard.path = (result.folder / shard.described.name).string();  // A wrong one elsewhere stays.
      fetch_shard(spec, shard, options);
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
std::string problem_of(const PlacedShard& shard, const ClassNumbers& classes) try {
  const std::string problem = shard_problem(shard.path, shard.described);
  return problem.empty() ? index_shard(shard.path, shard.described, classes).problem : problem;
} catch (const Error& error) {
  return error.what();
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
    images = verify_by_opening(spec, split, folder);
  } catch (const Error& error) {
    if (!differs) throw;
    results.push_back({split, folder, error.what()});
    if (sound.empty()) return results;
    images = verify_images(*images_of(spec, info_from_spec(spec, split), folder, std::move(sound)));
  }
  for (FileVerification& image : images) {
    if (differs) image.unverified = "its shards differ from their description";
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
                if (!shards_of(spec).shards_file.empty()) read_shards_file(spec);
              },
          .open = open_shards,
          .splits = splits_shards,
          .required_paths = parts_shards,
          .fetch = fetch_all_shards,
          .fill_info = fill_shards_info,
          .verify = verify_shards};
}

}  // namespace moesaic
