// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/outside_images.h"

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/data/catalog.h"
#include "moesaic/data/format.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

bool lies_in(const fs::path& path, const fs::path& folder) {
  std::error_code error;  // Whoever opens one that cannot be looked up says so.
  const fs::path inner = fs::weakly_canonical(fs::absolute(path), error);
  const fs::path outer = fs::canonical(folder, error);
  if (error) return false;
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace

void check_outside_images(const fs::path& out, const std::string& data) {
  if (out.empty() || !is_described(data)) return;  // Nothing is written, or nothing is known.
  for (const DatasetSpec& spec : file_specs(data)) {
    for (const std::string& split : stored_splits(spec)) {
      const fs::path folder = find_folder(spec, split);
      if (folder.empty()) continue;
      for (const DatasetPart& part : format_of(spec).parts(spec, split)) {
        const fs::path images = folder / part.path;
        if (!part.is_folder || !lies_in(out, images)) continue;
        fail_usage(
            "'{}' lies in '{}', where the {} images of dataset '{}' are; choose another place",
            out.string(), images.lexically_normal().string(), split, data);
      }
    }
  }
}

void check_outside_trained_images(const fs::path& out, const nlohmann::ordered_json& config) {
  const auto data = config.find("data");
  if (data != config.end() && data->is_string()) {
    check_outside_images(out, data->get<std::string>());
  }
}

}  // namespace moesaic
