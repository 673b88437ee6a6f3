// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "moesaic/data/dataset.h"
#include "moesaic/data/preprocess.h"

namespace moesaic {

/// Opens a dataset by name and split, as open_dataset() does.
using DatasetOpener =
    std::function<std::shared_ptr<const Dataset>(std::string_view name, std::string_view split)>;

/// Opens each dataset once, however many phases use it.
class Datasets {
 public:
  explicit Datasets(DatasetOpener open = open_dataset) : open_(std::move(open)) {}

  std::shared_ptr<const Dataset> get(const std::string& name, const std::string& split) {
    auto& dataset = opened_[{name, split}];
    if (dataset == nullptr) dataset = open_(name, split);
    return dataset;
  }

  /// As the network sees it.
  std::shared_ptr<const Dataset> get(const std::string& name, const std::string& split,
                                     const PreprocessConfig& preprocess) {
    return preprocessed(get(name, split), preprocess);
  }

 private:
  DatasetOpener open_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const Dataset>> opened_;
};

}  // namespace moesaic
