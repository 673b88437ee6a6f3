// SPDX-License-Identifier: Apache-2.0
// Formats that networks can be exported to, by name.
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
  std::optional<int64_t> shards;  ///< Number of weight files, for formats with shards.
  std::function<void()> poll;     ///< May throw, then nothing is written.
};

struct ExportFormat {
  std::string meaning;  ///< Text behind the name in --help.
  std::string out;      ///< Meaning of --out in --help.
  /// Max number of shards. If it is not 0, their number can be chosen, and `poll` is called.
  int64_t max_shards = 0;
  /// Throws Error (usage) if `out` exists already.
  std::function<void(const std::filesystem::path& out)> check_out;
  std::function<void(const Model& model, const ExportInfo& info, const ExportOptions& options)>
      write;
};

/// Returns the registry of formats, by the value of --format.
Registry<ExportFormat>& export_formats();

}  // namespace moesaic
