// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
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

namespace moesaic {

/// Opens a dataset by name and split, as open_dataset() does.
using DatasetOpener =
    std::function<std::shared_ptr<const Dataset>(std::string_view name, std::string_view split)>;

/// Opens each dataset once, however many phases, runs and threads use it.
class Datasets {
 public:
  explicit Datasets(DatasetOpener open = open_dataset) : open_(std::move(open)) {}

  std::shared_ptr<const Dataset> get(const std::string& name, const std::string& split) {
    const std::lock_guard lock(mutex_);
    auto& dataset = opened_[{name, split}];
    if (dataset == nullptr) dataset = open_(name, split);
    return dataset;
  }

  /// The dataset as the network sees it.
  std::shared_ptr<const Dataset> get(const std::string& name, const std::string& split,
                                     const PreprocessConfig& preprocess) {
    return preprocessed(get(name, split), preprocess);
  }

  /// The splits that a network is measured on: "validation" where the dataset has one, which is for
  /// decisions during training, then "test".
  std::vector<std::string> evaluation_splits(const std::string& name) {
    const std::vector<std::string>& splits = get(name, "train")->info().splits;
    const bool validates = std::find(splits.begin(), splits.end(), "validation") != splits.end();
    return validates ? std::vector<std::string>{"validation", "test"}
                     : std::vector<std::string>{"test"};
  }

 private:
  DatasetOpener open_;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const Dataset>> opened_;
};

}  // namespace moesaic
