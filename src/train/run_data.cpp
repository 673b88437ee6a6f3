// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_folder.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <system_error>

#include "moesaic/base/hash.h"
#include "moesaic/base/log.h"
#include "moesaic/base/text.h"
#include "moesaic/data/views.h"

namespace moesaic {
namespace {

/// Finds files that a dataset reads by several names, by hard or symbolic links, in two splits or
/// as images of two classes.
class SameFiles {
 public:
  /// Adds a split; add() is of the last one.
  void begin(std::shared_ptr<const Dataset> split) { splits_.push_back(std::move(split)); }
  void add(const ImageFile& file, int64_t index) {
    if (file.inode == 0) return;
    // One to one on a device; files of two devices get the same number by a rare chance.
    const uint64_t mark = file.inode ^ (file.device * 0x9E3779B97F4A7C15u);
    entries_.push_back({mark, (splits_.size() - 1) << kIndexBits | static_cast<uint64_t>(index)});
  }

  /// Returns a line that counts them and names some, "" if there are none.
  std::string text() && {
    std::sort(entries_.begin(), entries_.end());
    constexpr size_t kNamed = 5;
    int64_t count = 0;
    std::vector<std::string> names;
    for (auto first = entries_.begin(); first != entries_.end();) {
      const auto end = std::find_if(first, entries_.end(),
                                    [&](const Entry& entry) { return entry.file != first->file; });
      const auto other = std::find_if(first + 1, end, [&](const Entry& entry) {
        const Dataset& split = split_of(entry);
        return &split != &split_of(*first) ||
               split.label(entry.index()) != split.label(first->index());
      });
      if (other != end && ++count <= static_cast<int64_t>(kNamed)) {
        names.push_back(named(*first) + " and " + named(*other));
      }
      first = end;
    }
    if (count == 0) return "";
    return fmt::format(
        "dataset '{}': {} read under two names, in different splits or classes: {}{}; remove one "
        "name of each, since results on images that were trained on say nothing and an image has "
        "one class",
        splits_.front()->info().name, count == 1 ? "1 file is" : fmt::format("{} files are", count),
        quoted_names(names), count > static_cast<int64_t>(kNamed) ? " and more" : "");
  }

 private:
  static constexpr int kIndexBits = 60;
  struct Entry {  // Small, since there is one of each image.
    uint64_t file, place;

    int64_t index() const {
      return static_cast<int64_t>(place & ((uint64_t{1} << kIndexBits) - 1));
    }
    auto operator<=>(const Entry&) const = default;
  };
  const Dataset& split_of(const Entry& entry) const { return *splits_[entry.place >> kIndexBits]; }
  std::string named(const Entry& entry) const {
    const Dataset& split = split_of(entry);
    return fmt::format("{}: {}", split.info().split, split.file(entry.index())->name);
  }

  std::vector<std::shared_ptr<const Dataset>> splits_;
  std::vector<Entry> entries_;
};

constexpr size_t kMarkDigits = 16;
constexpr int64_t kMaxLabels = 1 << 21, kMaxImages = 64;
constexpr int64_t kMaxImageBytes = int64_t{1} << 26;

void add_number(Sha256& hash, int64_t number) {
  hash.update(std::as_bytes(std::span(&number, 1)));
}

std::string fingerprint_of(Sha256& hash) {
  return hash.hex().substr(0, kMarkDigits);
}

/// Returns the distance of at most `most` examples that are spread over the data.
int64_t stride_of(const Dataset& data, int64_t most) {
  return std::max<int64_t>(1, (data.size() + most - 1) / most);
}

std::string hash_of_labels(const Dataset& data) {
  Sha256 hash;
  const int64_t step = stride_of(data, kMaxLabels);
  for (int64_t i = 0; i < data.size(); i += step) {
    // One that cannot be read is lost with its image each time, or the data have changed.
    add_number(hash, known_label(data, i).value_or(-1));
  }
  return fingerprint_of(hash);
}

/// Returns the name and size of an image's file, nothing where there is none.
std::optional<ImageFile> file_of(const Dataset& data, int64_t index) try {
  return data.file(index);
} catch (const ImageError&) {
  return ImageFile();  // It is lost with its shard each time, or the data have changed.
}

/// Returns "" where images are not stored as files, which are added to `same`, if given.
std::string hash_of_files(const Dataset& data, SameFiles* same) {
  constexpr int64_t kBlock = 1 << 14;  // So that a million names need not be held at once.
  Sha256 hash;
  for (int64_t begin = 0; begin < data.size(); begin += kBlock) {
    if (!file_of(data, begin)) return "";
    std::vector<ImageFile> files(static_cast<size_t>(std::min(kBlock, data.size() - begin)));
    // Each asks for a size, for which a server in a network may take a millisecond.
    at::parallel_for(0, std::ssize(files), 64, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        files[static_cast<size_t>(i)] = file_of(data, begin + i).value_or(ImageFile());
      }
    });
    for (size_t i = 0; i < files.size(); ++i) {
      hash.update(std::as_bytes(std::span(files[i].name)));
      add_number(hash, files[i].bytes);  // It ends the name, too.
      if (same != nullptr) same->add(files[i], begin + static_cast<int64_t>(i));
    }
  }
  return fingerprint_of(hash);
}

/// Returns the distance of images that are spread over the data, whose files together are small
/// enough to be read: of large ones fewer have to do.
int64_t stride_of_images(const Dataset& data) {
  for (int64_t step = stride_of(data, kMaxImages);; step *= 2) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < data.size(); i += step) {
      bytes += std::max<int64_t>(0, file_of(data, i).value_or(ImageFile()).bytes);
    }
    if (bytes <= kMaxImageBytes || step >= data.size()) return step;
  }
}

/// Returns "" where images are not stored as files.
std::string hash_of_images(const Dataset& data) {
  Sha256 hash;
  bool any = false;
  const int64_t step = stride_of_images(data);
  for (int64_t i = 0; i < data.size(); i += step) {
    try {
      const std::optional<EncodedImage> file = data.encoded(i);
      if (!file) continue;
      hash.update(std::as_bytes(std::span(file->bytes)));
    } catch (const ImageError&) {
      add_number(hash, -1);
    }
    any = true;
  }
  return any ? fingerprint_of(hash) : "";
}

std::string difference_of_classes(const std::vector<std::string>& before,
                                  const std::vector<std::string>& now) {
  const std::vector<std::string> gone = lacking_in(now, before), added = lacking_in(before, now);
  if (gone.empty() && added.empty()) return "has its classes in another order";
  std::string text;
  if (!gone.empty()) {
    text = fmt::format("has no {} {} any more", gone.size() == 1 ? "class" : "classes",
                       quoted_names(gone));
  }
  if (!added.empty()) {
    text += fmt::format("{}has {} {}", text.empty() ? "" : " and ",
                        added.size() == 1 ? "a new class" : "new classes", quoted_names(added));
  }
  return text;
}

bool same_names(std::vector<std::string> a, std::vector<std::string> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return a == b;
}

/// Returns the key of a split in RunData.
std::string key_of(const std::string& data, const std::string& split) {
  return data + " " + split;
}

bool both_differ(const std::string& before, const std::string& now) {
  return !before.empty() && !now.empty() && before != now;
}

DataRecord record_of(const Dataset& data, bool reads_shards, SameFiles* same) {
  DataRecord record{data.info().classes, data.size(), "", "", "", ""};
  if (data.is_endless()) return record;
  const std::vector<int64_t> blocks = data.blocks();
  if (!blocks.empty()) {
    Sha256 hash;
    for (const int64_t block : blocks) add_number(hash, block);
    record.shards = fingerprint_of(hash);
    if (!reads_shards) return record;
  }
  if (!record.classes.empty()) record.labels = hash_of_labels(data);
  if (!data.has_images()) return record;
  record.files = hash_of_files(data, same);
  record.images = hash_of_images(data);
  return record;
}

/// Warns where all training examples are of one class, as where folders of classes lie one deeper.
void warn_of_one_class(const std::string& name, const Dataset& data) {
  if (data.info().classes.empty() || data.is_endless()) return;
  std::optional<int64_t> only;
  for (int64_t i = 0; i < data.size(); ++i) {
    const std::optional<int64_t> label = known_label(data, i);
    if (only && label && *label != *only) return;
    if (label) only = label;
  }
  if (!only) return;
  log_warning("data '{}': all {} are of one class, {}; training needs two classes or more",
              one_line(name), count_text(data.size(), "training example"),
              printable(data.info().classes[static_cast<size_t>(*only)]));
}

/// Replaces the path of a network by where it is now, if nothing is at the old one any more;
/// returns whether it was another one.
bool follow_moved_network(const std::string& now, Json& then) {
  if (now.empty() || !then.is_string() || then == "" || then == now) return false;
  std::error_code unknown;
  if (fs::exists(then.get<std::string>(), unknown) || unknown) return false;
  then = now;
  return true;
}

/// Of an init nothing is read any more. Of a network that pruning compares with nothing is recorded
/// that would tell whether it is the same; it may also be the name of a phase, which is no absolute
/// path.
void follow_moved_networks(const RunConfig& now, Json& started) {
  if (started.contains("init")) follow_moved_network(now.init, started.at("init"));
  const auto is_path = [](const std::string& name) { return name.starts_with('/'); };
  for (size_t i = 0; i < now.phases.size(); ++i) {
    const auto& prune = now.phases[i].on_entry.prune;
    const Json::json_pointer key(fmt::format("/phases/{}/on_entry/prune/pretrained", i));
    if (!prune || !is_path(prune->pretrained) || !started.contains(key)) continue;
    Json& then = started.at(key);
    if (!then.is_string() || !is_path(then.get<std::string>())) continue;
    const std::string old = then;
    if (!follow_moved_network(prune->pretrained, then)) continue;
    log_warning(
        "phase '{}': prune.pretrained was {}, which no longer exists; {} is assumed to be the same "
        "network",
        now.phases[i].name, old, prune->pretrained);
  }
}

}  // namespace

const DataRecord* RunData::find(const std::string& data, const std::string& split) const {
  const auto found = splits.find(key_of(data, split));
  return found == splits.end() ? nullptr : &found->second;
}

DataRecord data_record(const Dataset& data, bool reads_shards) {
  return record_of(data, reads_shards, nullptr);
}

std::vector<std::string> lacking_in(std::vector<std::string> b, const std::vector<std::string>& a) {
  std::sort(b.begin(), b.end());
  std::vector<std::string> names;
  for (const std::string& name : a) {
    if (!std::binary_search(b.begin(), b.end(), name)) names.push_back(name);
  }
  return names;
}

std::string difference_of(const DataRecord& before, const DataRecord& now) {
  if (before.classes != now.classes) return difference_of_classes(before.classes, now.classes);
  if (before.examples != now.examples) {
    return fmt::format("had {} and has {} now", count_text(before.examples, "example"),
                       now.examples);
  }
  if (both_differ(before.shards, now.shards)) return "has shards with other numbers of images";
  if (both_differ(before.labels, now.labels))
    return "has other labels, or its images in another order";
  // A version that recorded no names and sizes chose other images.
  const bool same_choice = before.files.empty() == now.files.empty();
  if (same_choice && both_differ(before.images, now.images)) return "has other image files";
  return both_differ(before.files, now.files) ? "has image files of other names or sizes" : "";
}

std::vector<std::pair<std::string, std::string>> used_splits(const RunConfig& config,
                                                             const DatasetCache& datasets) {
  std::vector<std::pair<std::string, std::string>> splits;
  const auto add = [&](const std::string& data, const std::string& split) {
    const auto used = std::pair(data, split);
    if (std::find(splits.begin(), splits.end(), used) == splits.end()) splits.push_back(used);
  };
  for (const PhaseConfig& phase : config.phases) {
    add(phase.data, "train");
    if (!phase.evaluate) continue;
    for (const std::string& split : datasets.evaluation_splits(phase.data)) add(phase.data, split);
  }
  return splits;
}

std::map<std::string, std::string> follow_moved_data(const RunConfig& now, Json& started,
                                                     RunData& before) {
  std::map<std::string, std::string> moved;
  const RunData recorded = before;
  follow_moved_networks(now, started);
  const auto phases = started.find("phases");
  if (phases == started.end() || !phases->is_array()) return moved;
  for (size_t i = 0; i < std::min(now.phases.size(), phases->size()); ++i) {
    const std::string& name = now.phases[i].data;
    const auto data = phases->at(i).find("data");
    if (data == phases->at(i).end() || !data->is_string()) continue;
    const std::string old = *data;
    const DataRecord* const train = recorded.find(old, "train");
    const bool told_apart = train != nullptr && !train->labels.empty();
    const bool paths = fs::path(old).is_absolute() && fs::path(name).is_absolute();
    // Data of the run under another name are exchanged, not moved.
    if (old == name || !told_apart || !paths || recorded.find(name, "train") != nullptr) continue;
    if (moved.emplace(name, old).first->second != old) continue;
    for (const char* split : {"train", "validation", "test"}) {
      const DataRecord* const record = recorded.find(old, split);
      if (record != nullptr) before.splits.emplace(key_of(name, split), *record);
    }
    *data = name;
  }
  return moved;
}

RunData record_data(const RunConfig& config, DatasetCache& datasets, bool warns,
                    const RunData& before, const DataChanged& changed) {
  RunData now;
  std::map<std::string, SameFiles> same;
  for (const auto& [name, split] : used_splits(config, datasets)) {
    const DataRecord* const then = before.find(name, split);
    std::shared_ptr<const Dataset> data = datasets.get(name, split);
    if (then != nullptr && same_names(then->classes, data->info().classes)) {
      data = with_classes_of(data, then->classes);  // Their order alone is no change.
    }
    const bool here = data->blocks().empty() ||
                      (has_spec(name) && DatasetSource(name).missing_files(split).empty());
    if (warns && here && split == "train") warn_of_one_class(name, *data);
    same[name].begin(data);
    const DataRecord& record = now.splits[key_of(name, split)] =
        record_of(*data, here, warns ? &same[name] : nullptr);
    std::string change = then == nullptr ? "" : difference_of(*then, record);
    if (then == nullptr && before.find(name, "train") != nullptr) change = "was not there";
    if (split == "train" && then != nullptr && before.find(name, "validation") == nullptr &&
        datasets.evaluation_splits(name).front() == "validation" &&
        then->examples == record.examples + datasets.get(name, "validation")->size()) {
      change += ", since the others are held out for validation";
    }
    if (!change.empty()) changed(name, split, change);
  }
  for (auto& [name, files] : same) {
    const std::string text = std::move(files).text();
    if (!text.empty()) log_warning("{}", text);
  }
  for (const PhaseConfig& phase : config.phases) {
    for (const char* split : {"validation", "test"}) {
      const bool gone = now.find(phase.data, split) == nullptr;
      if (gone && before.find(phase.data, split) != nullptr) changed(phase.data, split, "is gone");
    }
  }
  return now;
}

}  // namespace moesaic
