// SPDX-License-Identifier: Apache-2.0
// The forms in which a network can leave the library, by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "moesaic/base/registry.h"
#include "moesaic/export/info.h"

namespace moesaic {

struct ExportOptions {
  std::filesystem::path out;
  std::optional<int64_t> shards;  ///< files of the weights, for a format with shards
  std::function<void()> poll;     ///< may throw, and nothing is written
};

struct ExportFormat {
  std::string meaning;  ///< for help, behind the name
  std::string out;      ///< likewise, what --out names
  /// Whether it writes piece by piece: the number of files can be chosen, and `poll` is called.
  bool shards = false;
  /// Throws Error (usage) where something stands in the way of `out`.
  std::function<void(const std::filesystem::path& out)> check_out;
  std::function<void(const Model& model, const ExportInfo& info, const ExportOptions& options)>
      write;
};

/// All formats, by what --format takes.
Registry<ExportFormat>& export_formats();

}  // namespace moesaic
