// SPDX-License-Identifier: Apache-2.0
// Data that are generated when they are opened, by a description's settings.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "moesaic/data/dataset.h"
#include "moesaic/data/format.h"

namespace moesaic {

/// What is generated for a split.
struct GeneratedSplit {
  MakeInputs inputs;
  int64_t numbers = 0;  ///< Values of one input.
  int64_t size = 0;     ///< Examples; of an endless split those that count as an epoch.
  bool endless = false;
  Directions directions = {};
};

/// The settings of generated data in a description: one object, under the key Config::kKey.
template <class Config>
struct GeneratedSettings {
  std::optional<Config> data;
};
template <class Fields, class Config>
void describe(Fields& f, GeneratedSettings<Config>& c) {
  f(Config::kKey, c.data, "what is generated in place of files");
}

/// Checks a description of generated data that has its settings, if `given`.
ConfigProblem check_generated(const DatasetSpec& spec, const char* key, bool given, bool endless);

/// Makes the dataset. Throws Error (failure) if a split that is not endless does not fit into
/// memory.
std::shared_ptr<const Dataset> open_generated(DatasetInfo info, GeneratedSplit split);

/// Returns whether the training split has no end: always, unless the settings have an `endless`.
template <class Config>
bool is_endless(const Config& config) {
  if constexpr (requires { config.endless; }) return config.endless;
  return true;
}

/// Returns the format of data that `make` generates for info.split; it completes the names of
/// classes, groups or targets in `info`.
template <class Config>
DatasetFormat generated_format(
    std::string name, std::string meaning,
    std::function<GeneratedSplit(const Config&, DatasetInfo& info)> make) {
  using Settings = GeneratedSettings<Config>;
  return {.settings = Choice(std::move(name), Settings{}),
          .meaning = std::move(meaning),
          .images = false,
          .generated = true,
          .check =
              [](const DatasetSpec& spec) {
                const auto& data = spec.format.as<Settings>().data;
                return check_generated(spec, Config::kKey, data.has_value(),
                                       data && is_endless(*data));
              },
          .open =
              [make](const DatasetSpec& spec, DatasetInfo info, const std::filesystem::path&) {
                const Config& config = *spec.format.as<Settings>().data;
                GeneratedSplit split = make(config, info);
                split.endless = info.split == "train" && is_endless(config);
                split.size = info.split == "train" ? config.train : config.test;
                return open_generated(std::move(info), std::move(split));
              }};
}

}  // namespace moesaic
