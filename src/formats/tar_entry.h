// SPDX-License-Identifier: Apache-2.0
// What is refused of the entries of any tar archive from a stranger.
#pragma once

#include <archive_entry.h>

#include <algorithm>
#include <filesystem>
#include <string>

namespace moesaic {

/// Returns the name of an entry; empty without one.
inline std::string entry_name(archive_entry* entry) {
  const char* text = archive_entry_pathname(entry);
  if (text == nullptr) text = archive_entry_pathname_utf8(entry);
  return text != nullptr ? text : "";
}

/// Returns why an entry of this name is not safe to take, e.g. "is a link"; "" for files and
/// folders below the archive's root.
inline std::string entry_refusal(archive_entry* entry, const std::string& name) {
  if (name.empty()) return "has no name";
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::ranges::any_of(name, control)) return "has control characters in its name";
  const std::filesystem::path place(name);
  if (place.is_absolute()) return "has an absolute path";
  if (std::ranges::any_of(place, [](const auto& part) { return part == ".."; })) {
    return "leads out of the folder";
  }
  if (archive_entry_hardlink(entry) != nullptr || archive_entry_symlink(entry) != nullptr) {
    return "is a link";
  }
  const auto type = archive_entry_filetype(entry);
  return type == AE_IFREG || type == AE_IFDIR ? "" : "is neither a file nor a folder";
}

}  // namespace moesaic
