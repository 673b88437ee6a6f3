// SPDX-License-Identifier: Apache-2.0
// The built-in formats, and checks of descriptions and files that several share.
#pragma once

#include <cstddef>
#include <map>
#include <span>

#include "moesaic/base/suggestions.h"
#include "moesaic/config/schema.h"
#include "moesaic/data/format.h"
#include "moesaic/formats/safetensors.h"

namespace moesaic {

/// Return the built-in formats, one file each.
DatasetFormat idx_format();
DatasetFormat cifar_format();
DatasetFormat image_folder_format();
DatasetFormat celeba_format();
DatasetFormat embeddings_format();
DatasetFormat shards_format();
DatasetFormat table_format();

/// Checks that every key of a setting is a stored split or, where those are free, "validation".
template <class T>
ConfigProblem unknown_split(const std::map<std::string, T>& by_split, const char* setting) {
  for (const auto& [split, value] : by_split) {
    if (split == "train" || split == "validation" || split == "test") continue;
    static const std::vector<std::string> kSplits = {"train", "validation", "test"};
    return {fmt::format("unknown key '{}' in {}; {}", split, setting, did_you_mean(split, kSplits)),
            {fmt::format("{}.{}:", setting, split)}};
  }
  return {};
}

/// Checks that classes differ, and are as many as `num_classes` where that is not 0.
ConfigProblem classes_problem(const DatasetSpec& spec, int64_t num_classes = 0);

/// Names classes that are only counted: "class 0", "class 1", ...
void count_classes(DatasetInfo& info, int64_t count);

/// Checks that mean and std have one number for each of 1 or 3 channels.
ConfigProblem channels_problem(const DatasetSpec& spec, size_t channels);

/// Checks the same of one or three channels, where the description says mean or std.
ConfigProblem open_channels_problem(const DatasetSpec& spec);

/// Takes mean and std of photographs where the description has neither, and returns whether it did:
/// the network then decides between grey and colours.
bool complete_channels(DatasetSpec& spec);

/// Checks that a format without described files has none.
ConfigProblem no_files_problem(const DatasetSpec& spec);

/// Checks that a format whose inputs are no images has no settings of images.
ConfigProblem no_images_problem(const DatasetSpec& spec);

/// Returns the path of a role's file after comparing it with the description. Throws Error
/// (failure) if it differs.
fs::path checked_file(const DatasetSpec& spec, const fs::path& folder, const std::string& role);

/// Throws Error(failure) that begins with `where` and names the image unless every label has a
/// class.
void check_labels(std::span<const uint8_t> labels, size_t classes, const std::string& where);

/// Files of rows: one for each split, or one that is split at random.
struct SplitFiles {
  std::string train, test, file;
  double test_fraction = 0.2;
  int64_t seed = 1;

  /// Returns the name of the file with `split`, "train" or "test".
  const std::string& file_of(const std::string& split) const {
    return !file.empty() ? file : split == "train" ? train : test;
  }
};
void describe(auto& f, SplitFiles& c) {
  f("train", c.train, "file of the train split; empty: a part of 'file'");
  f("test", c.test, "file of the test split; empty: a part of 'file'");
  f("file", c.file, "one file to split at random, instead of train and test; empty: none");
  f("test_fraction", c.test_fraction, "fraction of the rows in 'file' that form the test split",
    between(0.0001, 0.9999));
  f("seed", c.seed, "seed of the random split of 'file'", at_least(0));
}

/// Checks that there is one file, or one for each split, named without folders.
ConfigProblem split_files_problem(const SplitFiles& files);

/// How the rows of one file are divided at random.
struct RowSplit {
  const SplitFiles& files;
  const char *stream, *noun;  ///< Of the random numbers; what a row is in messages.
};
/// Leaves, of the rows of a file for both, those of a split, "train" or "test", in their order.
/// Throws Error (failure) with `path` if either has none.
void keep_split(DatasetInputs& rows, const RowSplit& by, const std::string& split,
                const fs::path& path);

/// Describes rows of `width` numbers as images of one channel and one row.
void fill_rows_info(DatasetInfo& info, int64_t width);

/// F32, F16 and BF16; the integers of at most 64 bits but U16 to U64; all of these and F64.
enum class Numbers { floating, integer, any };

/// Returns a tensor of a safetensors file that has 1 or 2 dimensions, as `dims` says, and numbers
/// of this kind, checked before it is read. Throws, as check_finite_rows() does, Error (failure)
/// with the file's path, which is given since a file does not keep it.
at::Tensor read_tensor(const safetensors::File& file, const std::string& path,
                       const std::string& name, size_t dims, Numbers kind);

/// Checks that all numbers of a tensor [N, d] are finite.
void check_finite_rows(const at::Tensor& x_Nd, const std::string& path, const std::string& name);

/// Warns of classes that may be one, whose names differ in characters that nobody sees.
void warn_of_twins(const DatasetInfo& info);

}  // namespace moesaic
