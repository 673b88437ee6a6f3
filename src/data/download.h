// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace moesaic {

struct DownloadRequest {
  std::string url;             ///< Scheme http, https or file.
  std::filesystem::path part;  ///< Resumed at its end; created if missing.
  uint64_t max_bytes = 0;      ///< Max total size.
  std::string label;           ///< Label of the progress bar; empty means no bar.
};

struct DownloadResult {
  std::string problem;         ///< Reason of a failure in one line; empty on success.
  bool cannot_resume = false;  ///< Whether the server cannot resume.
};

/// Fetches the rest of request.part and syncs it. On failure the received bytes stay. Throws Error
/// (failure) if request.part cannot be opened.
DownloadResult download(const DownloadRequest& request);

}  // namespace moesaic
