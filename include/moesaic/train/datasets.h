// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moesaic/data/dataset.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/source.h"

namespace moesaic {

/// Opens datasets by name and split, and lists their splits; by default with open_dataset() and
/// dataset_splits().
class DatasetOpener {
 public:
  using Open = std::function<std::shared_ptr<const Dataset>(std::string_view, std::string_view)>;
  using Splits = std::function<std::vector<std::string>(std::string_view name)>;

  /// Opens described datasets and folders.
  DatasetOpener() : open_(open_dataset), splits_(dataset_splits) {}
  /// Opens datasets by a function of the caller; without `splits` each has "train" and "test".
  template <std::invocable<std::string_view, std::string_view> F>
  requires(!std::same_as<F, DatasetOpener>)
      DatasetOpener(F open, Splits splits = {})  // NOLINT(google-explicit-constructor)
      : open_(std::move(open)), splits_(std::move(splits)) {}

  /// Returns the split of a dataset.
  std::shared_ptr<const Dataset> operator()(std::string_view name, std::string_view split) const {
    return open_(name, split);
  }
  /// Returns the names of a dataset's splits.
  std::vector<std::string> splits(std::string_view name) const {
    return splits_ ? splits_(name) : std::vector<std::string>{"train", "test"};
  }

 private:
  Open open_;
  Splits splits_;
};

/// Opens each dataset once for all phases, runs and threads that use it. Thread-safe.
class DatasetCache {
 public:
  /// Opens by `open`.
  explicit DatasetCache(DatasetOpener open = {}) : open_(std::move(open)) {}

  /// Returns the split of a dataset, opened at the first call.
  std::shared_ptr<const Dataset> get(const std::string& name, const std::string& split) {
    const std::lock_guard lock(mutex_);
    auto& dataset = opened_[{name, split}];
    if (dataset == nullptr) dataset = open_(name, split);
    return dataset;
  }

  /// Returns the preprocessed dataset, for a network that takes `input_shape` unless that is
  /// empty.
  std::shared_ptr<const Dataset> get(const std::string& name, const std::string& split,
                                     const PreprocessConfig& preprocess,
                                     const std::vector<int64_t>& input_shape = {}) {
    const std::shared_ptr<const Dataset> data = get(name, split);
    return preprocessed(data, for_network(preprocess, data->info(), input_shape));
  }

  /// Returns the names of a dataset's splits.
  std::vector<std::string> splits(std::string_view name) const { return open_.splits(name); }

  /// Returns the splits of evaluations: "validation" where the dataset has one, for decisions
  /// during training, then "test", which may be missing where there is "validation".
  std::vector<std::string> evaluation_splits(const std::string& name) const {
    const std::vector<std::string> known = splits(name);
    std::vector<std::string> found;
    for (const char* split : {"validation", "test"}) {
      if (std::find(known.begin(), known.end(), split) != known.end()) found.emplace_back(split);
    }
    if (found.empty()) found.emplace_back("test");  // Opening it says what is missing.
    return found;
  }

 private:
  DatasetOpener open_;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const Dataset>> opened_;
};

}  // namespace moesaic
