// SPDX-License-Identifier: Apache-2.0
#include "note_replaced.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "moesaic/config/document.h"
#include "moesaic/parallel/processes.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;
/// Images, and what is wrong with each.
using Replaced = std::map<int64_t, std::string>;

/// Returns false where `known` has the index already.
bool add_index(std::vector<int64_t>& known, int64_t index) {
  const auto place = std::lower_bound(known.begin(), known.end(), index);
  if (place != known.end() && *place == index) return false;
  known.insert(place, index);
  return true;
}

/// Returns the new images of all processes, by rank.
std::vector<Replaced> new_of_all(const Replaced& fresh, const Processes& processes) {
  // A file's name may be no UTF-8.
  const std::string text = Json(fresh).dump(-1, ' ', false, Json::error_handler_t::replace);
  std::vector<Replaced> all;
  for (const std::string& found : processes.control().all_gather_text(text)) {
    all.push_back(parse_stored(found, "damaged images", kMaxListBytes).to_json().get<Replaced>());
  }
  return all;
}

}  // namespace

int note_replaced(const Replaced& replaced, Loader& loader, const Processes* processes,
                  std::vector<int64_t>& known, int signal) {
  Replaced fresh = replaced;
  std::erase_if(fresh, [&](const auto& image) {
    return std::binary_search(known.begin(), known.end(), image.first);
  });
  if (processes == nullptr) {
    for (const auto& [index, what] : fresh) add_index(known, index);
    return signal;
  }
  // One exchange of a step has all that the processes agree on beside numbers of the network.
  const at::Tensor largest =
      torch::tensor({static_cast<int64_t>(signal), static_cast<int64_t>(fresh.size())}, at::kLong);
  processes->control().all_reduce(largest, Traffic::other, /*largest=*/true);
  signal = static_cast<int>(largest[0].item<int64_t>());
  if (largest[1].item<int64_t>() == 0) return signal;
  const std::vector<Replaced> all = new_of_all(fresh, *processes);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto& [index, what] : all[rank]) {
      const bool own = std::cmp_equal(rank, processes->rank());
      if (add_index(known, index)) loader.count_damaged(index, what, own);
    }
  }
  return signal;
}

}  // namespace moesaic
