// SPDX-License-Identifier: Apache-2.0
#include "support/reference_files.h"

#include "moesaic/base/file.h"

namespace moesaic::testing {

std::filesystem::path reference_path(const std::string& name) {
  return std::filesystem::path(MOESAIC_TEST_SOURCE_DIR) / "../shared/golden/vmoe" / name;
}

nlohmann::ordered_json reference_config(const std::string& name) {
  return nlohmann::ordered_json::parse(read_text(reference_path(name) / "config.json"));
}

}  // namespace moesaic::testing
