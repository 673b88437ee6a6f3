// SPDX-License-Identifier: Apache-2.0
// Networks of Hugging Face, by their names.
#include <fmt/format.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/config/document.h"
#include "moesaic/data/fetch_file.h"
#include "moesaic/import/vit/import.h"

namespace moesaic {
namespace {

constexpr const char* kWeights = "model.safetensors";

/// Fetches a file that a repository need not have.
void fetch_if_there(const FetchRequest& request) {
  try {
    fetch_file(request);
  } catch (const Error& error) {
    // The end of libcurl's message for an answer of this status.
    if (!std::string_view(error.what()).ends_with("error: 404")) throw;
  }
}

}  // namespace

fs::path fetch_hub_model(const fs::path& from) {
  std::string name = from.string();
  if (name.find("://") == name.npos) return from;
  while (name.ends_with('/')) name.pop_back();
  if (const std::string problem = url_problem(name); !problem.empty()) fail_usage("{}", problem);
  const bool of_hub = name.starts_with("hf://");
  if (!of_hub || std::ranges::count(name, '/') != 3) {
    fail_usage("'{}': the address of a network is hf://OWNER/NAME[@REVISION]", name);
  }
  resolved_url(name + "/config.json");  // Refuses what is none.
  const fs::path folder = download_folder("checkpoints") / name.substr(5);
  if (path_exists(folder / kWeights)) return folder;
  try {
    for (const std::string file : {"config.json", "preprocessor_config.json"}) {
      fetch_if_there({.url = name + "/" + file, .path = folder / file, .max_bytes = kMaxListBytes});
    }
    // Last, since what has weights is whole.
    fetch_file({.url = fmt::format("{}/{}", name, kWeights),
                .path = folder / kWeights,
                .label = kWeights});
  } catch (const Error& error) {
    throw Error(
        error.kind(),
        fmt::format("{}; or put {}, config.json and preprocessor_config.json by hand into {}",
                    error.what(), kWeights, folder.string()));
  }
  return folder;
}

}  // namespace moesaic
