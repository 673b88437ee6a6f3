// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/resources.h"

#include <cstdlib>
#include <system_error>

#include "moesaic/base/error.h"

namespace moesaic {
namespace fs = std::filesystem;

fs::path resource_root() {
  std::error_code ignored;
  if (const char* home = std::getenv("MOESAIC_HOME"); home != nullptr && *home != '\0') {
    if (!fs::is_directory(home, ignored)) fail_usage("MOESAIC_HOME={}: no such folder", home);
    return home;
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path installed = program.parent_path().parent_path() / "share" / "moesaic";
  for (const fs::path& place : {installed, fs::path(MOESAIC_SOURCE_DIR)}) {
    if (fs::is_directory(place / "datasets", ignored)) return place;
  }
  fail("neither {} nor {} is there; set MOESAIC_HOME to the folder with models/ and datasets/",
       installed.string(), MOESAIC_SOURCE_DIR);
}

fs::path resource(std::string_view relative) {
  return resource_root() / relative;
}

}  // namespace moesaic
