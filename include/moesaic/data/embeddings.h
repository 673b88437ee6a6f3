// SPDX-License-Identifier: Apache-2.0
// Texts as embeddings, with a label and a language each: the data of tables 10 and 11 of "Towards
// Understanding Mixture of Experts", made by tools/python/make_embeddings.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/base/filesystem.h"
#include "moesaic/config/schema.h"

namespace moesaic {

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

/// Settings of data of format "embeddings".
struct EmbeddingsConfig : SplitFiles {
  int64_t width = 0;
};
void describe(auto& f, EmbeddingsConfig& c) {
  describe(f, static_cast<SplitFiles&>(c));
  f("width", c.width, "required size of an embedding; 0: any", between(0, 1048576));
}
/// Checks that there is one file, or one for each split, named without folders.
ConfigProblem config_problem(const EmbeddingsConfig& config);

/// Embedded texts with their labels.
struct Embeddings {
  at::Tensor x_Nd;        ///< Embeddings, float32.
  at::Tensor label_N;     ///< Labels, int64.
  at::Tensor language_N;  ///< Languages, int64.
  std::vector<std::string> classes, languages;
};

/// Reads a safetensors file with `embeddings` [N, d] (F32, F16 or BF16), `label` [N] and `language`
/// [N] (integers), and in its metadata `classes` and `languages`, their names as a JSON list.
/// Throws Error (failure), with file and tensor, for a tensor that is missing or has another shape
/// or dtype, for numbers that are not finite, and for labels or languages without a name.
Embeddings read_embeddings(const fs::path& path);

/// Reads one split, "train" or "test", of the files in `folder`. Throws Error also if the width of
/// rows differs from the description, if the files of both splits have different names for classes
/// or languages, and if a split would be empty.
Embeddings read_embeddings(const EmbeddingsConfig& config, const fs::path& folder,
                           const std::string& split);

}  // namespace moesaic
