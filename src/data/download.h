// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace moesaic {

struct DownloadRequest {
  std::string url;             ///< http, https or file
  std::filesystem::path part;  ///< carried on where it ends; made where it does not exist
  uint64_t max_bytes = 0;      ///< more than this in all is an error
  std::string label;           ///< for the progress bar; none is drawn where this is empty
};

struct DownloadResult {
  std::string problem;         ///< why it failed, in one line; empty when all is there
  bool cannot_resume = false;  ///< the server would only start from the beginning
};

/// Fetches the rest of request.part and syncs it. What has arrived stays there when it fails.
/// Throws Error (failure) where request.part cannot be opened.
DownloadResult download(const DownloadRequest& request);

}  // namespace moesaic
