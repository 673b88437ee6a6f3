// SPDX-License-Identifier: Apache-2.0
// Checkpoints that google-research/vmoe released, by their names.
#include <fmt/format.h>

#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/config/document.h"
#include "moesaic/data/fetch_file.h"
#include "moesaic/import/vmoe/import.h"
#include "reference.h"

namespace moesaic {
namespace {

Document released_list() {
  return Document::from_file(resource("checkpoints/released.json"));
}

/// Returns whether a name is that of something here, of which import_vmoe() says what is wrong.
bool is_here(const std::string& name) {
  return name.find('/') != name.npos || !prefix_of_part(name).empty() || path_exists(name) ||
         path_exists(name + ".index");
}

/// Fetches what is not yet in the cache, first the index, which says how many shards there are.
void fetch(const std::string& address, const fs::path& prefix) {
  const auto get = [&](const fs::path& place, uint64_t max_bytes = 0) {
    const std::string name = place.filename().string();
    if (path_exists(place)) return;  // Also where a cache can only be read.
    fetch_file({.url = address + name, .path = place, .max_bytes = max_bytes, .label = name});
  };
  const fs::path index = vmoe_checkpoint::index_path(prefix);
  try {
    get(index, vmoe_checkpoint::kMaxIndexBytes);
    const int64_t count = vmoe_checkpoint::shard_count(prefix);
    for (int64_t i = 0; i < count; ++i) get(vmoe_checkpoint::shard_path(prefix, i, count));
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}; or put {} and the files .data-* beside it by hand "
                                          "into {}",
                                          error.what(), index.filename().string(),
                                          prefix.parent_path().string()));
  }
}

}  // namespace

std::vector<ReleasedCheckpoint> released_checkpoints() {
  const Document list = released_list();
  std::vector<ReleasedCheckpoint> checkpoints;
  for (const Value& item : list.root().at("checkpoints").items()) {
    checkpoints.push_back({item.at("name").as_string(), item.at("about").as_string(),
                           list.root().at("licence").as_string(), item.at("bytes").as_int()});
  }
  return checkpoints;
}

void fetch_released(ImportVMoEOptions& options) {
  const std::string name = options.prefix.string();
  if (name.find("://") != name.npos) {
    if (const std::string problem = url_problem(name); !problem.empty()) fail_usage("{}", problem);
    fail_usage("'{}': an address is not read; name one of 'moesaic list checkpoints'", name);
  }
  if (is_here(name)) return;
  const Document list = released_list();
  std::vector<std::string> names;
  for (const Value& item : list.root().at("checkpoints").items()) {
    names.push_back(item.at("name").as_string());
    if (names.back() != name) continue;
    options.prefix = download_folder("checkpoints") / name;
    if (options.model_config.empty()) options.model = item.at("model").to_json();
    const Value* const size = item.find("image_size");
    if (size != nullptr && !options.image_size) options.image_size = size->as_int();
    return fetch(list.root().at("url").as_string(), options.prefix);
  }
  const auto is_index = [](const fs::path& path) { return path.extension() == ".index"; };
  if (!nearest_sibling(name + ".index", PathForm::path, is_index).empty()) return;
  fail_usage("{}.index: no such file, and no released checkpoint has this name; {}", name,
             did_you_mean(name, names));
}

}  // namespace moesaic
