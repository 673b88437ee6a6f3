// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/filesystem.h"

namespace moesaic::bench {

/// A folder that is removed with everything in it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (fs::temp_directory_path() / "moesaic-bench-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) fail("{}: cannot make the folder", pattern);
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace moesaic::bench
