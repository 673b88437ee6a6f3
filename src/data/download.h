// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "moesaic/base/posix.h"

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

/// Returns where what is to be a file arrives: a hidden name beside it that nobody else uses.
std::filesystem::path part_of(const std::filesystem::path& file);

/// Opens or makes a part to append to it. Throws Error (failure) for a link, or another name of a
/// file: whoever made the folder may have put it there to reach files elsewhere.
UniqueFd open_part(const std::filesystem::path& part);

/// Fetches the rest of request.part and syncs it. On failure the received bytes stay. Throws Error
/// (failure) if request.part cannot be opened.
DownloadResult download(const DownloadRequest& request);

/// Downloads a file and compares it: `problem_of` a path returns one line or "". What an earlier
/// try left is resumed, and thrown away where the whole then is wrong. On success the file is
/// request.part and the result is ""; else it is the problem, and what arrived stays for the next
/// try where it may be right.
std::string download_checked(
    const DownloadRequest& request,
    const std::function<std::string(const std::filesystem::path&)>& problem_of);

/// Renames a downloaded file to its place and syncs that. What is there already and is not what was
/// wanted, is set aside under a name that is printed: someone may have put it there.
void install(const std::filesystem::path& part, const std::filesystem::path& place);

/// Sets aside what is at `place`, if anything, and prints its new name.
void make_room(const std::filesystem::path& place);

/// Returns the URL of a file in a folder on the web.
std::string join_url(const std::string& folder, const std::string& name);

}  // namespace moesaic
