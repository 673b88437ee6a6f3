// SPDX-License-Identifier: Apache-2.0
// Checks of descriptions and files that several formats share.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "moesaic/data/format.h"

namespace moesaic {

/// The first problem of several checks, in their order.
template <class... Problems>
ConfigProblem first_problem(const Problems&... problems) {
  ConfigProblem found;
  const auto take = [&](const ConfigProblem& problem) {
    if (found.empty()) found = problem;
  };
  (take(problems), ...);
  return found;
}

/// Whether every key of a setting is one of the stored splits or, where those may be chosen freely,
/// "validation".
template <class T>
ConfigProblem unknown_split(const std::map<std::string, T>& by_split, const char* setting) {
  for (const auto& [split, value] : by_split) {
    if (split == "train" || split == "validation" || split == "test") continue;
    return {fmt::format("unknown key '{}' in {}: train, validation or test", split, setting),
            {fmt::format("{}.{}:", setting, split)}};
  }
  return {};
}

/// Whether classes differ, and are as many as `class_count` where that is not 0.
ConfigProblem classes_problem(const DatasetSpec& spec, int64_t class_count = 0);

/// Whether mean and std have one number for each of 1 or 3 channels.
ConfigProblem channels_problem(const DatasetSpec& spec, size_t channels);

/// Whether a format without described files has none.
ConfigProblem no_files_problem(const DatasetSpec& spec);

/// Whether a format whose inputs are no images has no settings of images.
ConfigProblem no_images_problem(const DatasetSpec& spec);

/// The file of a role, compared with its description: a changed image must not go unnoticed. Throws
/// Error (failure) where it differs.
std::filesystem::path checked_file(const DatasetSpec& spec, const std::filesystem::path& folder,
                                   const std::string& role);

/// Decodes all images of a folder's split; `images` is what the format's open() gives.
std::vector<FileVerification> verify_image_files(const DatasetSpec& spec, const std::string& split,
                                                 const std::filesystem::path& folder);

}  // namespace moesaic
