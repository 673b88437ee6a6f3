// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/config/schema.h"

namespace moesaic {

/// One file of a dataset; size and hash are those of its unpacked bytes, whoever compressed it.
struct DatasetFile {
  std::string name, sha256;
  int64_t size = 0;
};

template <class Fields>
void describe(Fields& f, DatasetFile& c) {
  f("name", c.name, "file name without .gz", required);
  f("sha256", c.sha256, "SHA-256 of the unpacked bytes", required);
  f("size", c.size, "number of unpacked bytes", required, at_least(0));
}

/// What the rules of single settings cannot say: the form of name and hash.
std::string config_problem(const DatasetFile& file);

/// datasets/<name>.json. Either a dataset of its own (format, classes, mean, std, files) or the
/// subset of another one (base, keep_classes).
struct DatasetSpec {
  std::string name, description;
  std::string format = "idx";
  std::vector<std::string> classes;
  std::vector<double> mean, std;
  std::map<std::string, DatasetFile> files;  ///< <split>_images, <split>_labels
  std::vector<std::string> urls;  ///< folders on the web that hold <file>.gz, tried in order
  std::string debian_package;
  std::vector<std::string> paths;
  std::string base;
  std::vector<std::string> keep_classes;
};

template <class Fields>
void describe(Fields& f, DatasetSpec& c) {
  f("name", c.name, "name of the dataset, as in the file name", required);
  f("description", c.description, "one line for lists");
  f("format", c.format, "file format", one_of({"idx"}));
  f("classes", c.classes, "name of each label");
  f("mean", c.mean, "mean of each channel, pixels scaled to [0, 1]");
  f("std", c.std, "standard deviation of each channel, pixels scaled to [0, 1]", above(0));
  f("files", c.files, "files by role: train_images, train_labels, test_images, test_labels");
  f("urls", c.urls, "folders on the web that hold the files with .gz appended");
  f("debian_package", c.debian_package, "package that installs the files");
  f("paths", c.paths, "further folders to look in");
  f("base", c.base, "of a subset: the dataset that it is cut from");
  f("keep_classes", c.keep_classes, "of a subset: its classes, in the order of the new labels");
}

/// Which settings go together: a subset has no files, everything else needs all of them.
std::string config_problem(const DatasetSpec& spec);

/// Names of the described datasets, sorted.
std::vector<std::string> dataset_names();

/// Reads datasets/<name>.json. Throws Error (usage) for an unknown name or a wrong description.
DatasetSpec load_dataset_spec(std::string_view name);

/// The description that holds the files: the one named, or for a subset its base's, however deep.
DatasetSpec load_base_spec(std::string_view name);

/// Folders that may hold the files, in order: $MOESAIC_DATA/<name>, datasets/cache/<name>, the
/// description's paths.
std::vector<std::filesystem::path> search_folders(const DatasetSpec& spec);

/// Where fetched files go, the first of search_folders().
std::filesystem::path fetch_folder(const DatasetSpec& spec);

/// `file` in `folder`, packed (<name>.gz) or not; empty where there is neither.
std::filesystem::path find_in(const std::filesystem::path& folder, const DatasetFile& file);

/// The first search folder that holds the files of `split`, or every file where `split` is empty;
/// empty if none does.
std::filesystem::path find_folder(const DatasetSpec& spec, std::string_view split = {});

/// Compares size and hash of the file's unpacked bytes with the description: one line about what is
/// wrong, or "".
std::string compare_file(const std::filesystem::path& path, const DatasetFile& file);

}  // namespace moesaic
