// SPDX-License-Identifier: Apache-2.0
// What a run remembers of its data, by which it notices at a resume that they have changed, and
// what its processes compare.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/loader.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// Marks of a split. Hashes are empty where there is nothing to read, or nothing that is here.
struct DataRecord {
  std::vector<std::string> classes;
  int64_t examples = 0;
  std::string shards;  ///< Hash of the numbers of images of all shards.
  std::string labels;  ///< Hash of the labels in their order.
  std::string files;   ///< Hash of names and sizes of all files of images, in order.
  std::string images;  ///< Hash of what some of them hold, which are spread over the data.
};
template <class Fields>
void describe(Fields& f, DataRecord& c) {
  f("classes", c.classes, "names of the classes, in order");
  f("examples", c.examples, "how many there are", required, at_least(0));
  f("shards", c.shards, "hash of how many images each shard has");
  f("labels", c.labels, "hash of the labels in order");
  f("files", c.files, "hash of names and sizes of all image files in order");
  f("images", c.images, "hash of some image files");
}

/// The document data.json in a run's folder.
struct RunData {
  std::map<std::string, DataRecord> splits;  ///< By "DATA SPLIT".

  /// Returns the record of a split, or null without one.
  const DataRecord* find(const std::string& data, const std::string& split) const;
};
template <class Fields>
void describe(Fields& f, RunData& c) {
  f("splits", c.splits, "marks of each split of the run's data");
}

/// Reads up to two million labels, the sizes of all image files, and up to 64 of these files, which
/// are at equal distances; of large ones fewer, so that they are 64 MiB in all or one file. Without
/// `reads_shards` no image and no label of data in shards is asked for, since it may have to be
/// fetched. Of endless data there is nothing but the number of examples that count as an epoch.
DataRecord data_record(const Dataset& data, bool reads_shards = true);

/// Returns in which way data are not those of the record, e.g. "had 24 examples and has 25 now", or
/// "" where they are the same as far as both know.
std::string difference_of(const DataRecord& before, const DataRecord& now);

/// Returns name and split of all data that the phases use, each once.
std::vector<std::pair<std::string, std::string>> used_splits(const RunConfig& config,
                                                             const Datasets& datasets);

/// Takes the data of a project that was moved for those that the run began with: where a phase has
/// another path than in the configuration `started`, and `before` has labels to tell data apart,
/// the record is copied to the new path, which is put into `started`, as is that of an init or
/// on_entry.prune.pretrained whose old path is gone. Returns the old path of each such new one;
/// record_data() compares what lies there.
std::map<std::string, std::string> follow_moved_data(const RunConfig& now,
                                                     nlohmann::ordered_json& started,
                                                     RunData& before);

/// Is told of a change since the run began, e.g. of "has other image files".
using DataChanged = std::function<void(const std::string& name, const std::string& split,
                                       const std::string& change)>;

/// Returns the marks of all data that a run uses, after telling `changed` of each difference from
/// those of `before`; classes in another order are none. Warns of files that are read under two
/// names, in different splits or classes.
RunData record_data(const RunConfig& config, Datasets& datasets, const RunData& before = {},
                    const DataChanged& changed = {});

class Model;
class Processes;

// What processes compare before they work together. All of it throws Error (usage) that names the
// first process which differs from process 0; all processes call it.

/// Waits until all processes have come so far, however long they take to read what they need, then
/// compares the library that they run.
void check_same_build(const Processes& processes);

/// Compares settings; `what` they are of, such as "recipe", is in the message beside those that
/// differ.
void check_same_settings(const Processes& processes, const std::string& what,
                         const nlohmann::ordered_json& settings);

/// Gives all processes the network of process 0, once all have made theirs, which may differ by
/// rounding. Throws Error (usage) where they are of another configuration.
void take_network(const Processes& processes, const Model& model);

/// Waits for all processes, and compares their checkpoints by name and all bytes of weights and
/// buffers. Where there is no checkpoint, all take the network of process 0.
void agree_on_network(const Processes& processes, const std::filesystem::path& checkpoint,
                      const Model& model);

/// Returns a text that differs where splits differ in what data_record() knows without reading
/// shards, or in the pixels of a few images that are not files.
std::string data_mark(const Dataset& data);
/// Returns the same text of a split whose record is there.
std::string data_mark(const Dataset& data, DataRecord record);

/// Adds the damaged images that a batch replaced (Batch::replaced) to `known`, which is sorted.
/// Several processes add those of all their parts, count them together by their loaders (which have
/// the option `shared`), and the first one that met an image warns of it. Throws Error (failure)
/// where they are too many. Returns the largest `signal` of all processes, by the same exchange.
int note_replaced(const std::map<int64_t, std::string>& replaced, Loader& loader,
                  const Processes* processes, std::vector<int64_t>& known, int signal = 0);

}  // namespace moesaic
