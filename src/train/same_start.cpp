// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/same_start.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/text.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/config/difference.h"
#include "moesaic/config/document.h"
#include "moesaic/data/dataset.h"
#include "moesaic/models/model.h"
#include "moesaic/parallel/processes.h"
#include "moesaic/train/run_data.h"

namespace moesaic {
namespace {

constexpr size_t kHashDigits = 16;

/// Returns the hash of the file that this code was loaded from.
std::string library_hash() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&check_same_build), &info) == 0) return "unknown";
  return sha256_file_hex(info.dli_fname);
}

/// Returns a hash of the pixels of some images, which have no files.
std::string pixel_hash(const Dataset& data) {
  if (!data.has_images() || data.endless() || data.image_size() == 0) return "";
  constexpr int64_t kImages = 4;
  const int64_t step = std::max<int64_t>(1, (data.size() + kImages - 1) / kImages);
  std::vector<uint8_t> pixels(static_cast<size_t>(data.image_size()));
  Sha256 hash;
  for (int64_t i = 0; i < data.size(); i += step) {
    try {
      data.image(i, pixels.data());
    } catch (const ImageError&) {
      continue;  // It is lost in every process, or the others differ.
    }
    hash.update(std::as_bytes(std::span(pixels)));
  }
  return hash.hex();
}

}  // namespace

void check_same_build(const Processes& processes) {
  processes.wait_for_all();
  processes.check_same("build", library_hash());
}

void check_same_settings(const Processes& processes, const std::string& what,
                         const nlohmann::ordered_json& settings) {
  const std::vector<std::string> all = processes.control().all_gather_text(settings.dump());
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto found = differences(parse_stored(all[0], what, kMaxListBytes).to_json(),
                                   parse_stored(all[rank], what, kMaxListBytes).to_json());
    if (found.empty()) continue;  // In another order.
    fail_usage("process {} has another {} than process 0: {}", rank, what,
               describe(found, /*side_by_side=*/true));
  }
}

void take_network(const Processes& processes, const Model& model) {
  const torch::NoGradGuard no_grad;
  processes.wait_for_all();  // One may read or measure slowly.
  processes.check_same("network", model.config().dump());
  for (const auto& [name, tensor] : state_of(model)) {
    at::Tensor sent = tensor.cpu().contiguous();
    processes.control().broadcast(sent, 0, Traffic::parameters);
    if (!sent.is_alias_of(tensor)) tensor.copy_(sent);
  }
  processes.counter().take();  // This is of no step.
}

void agree_on_network(const Processes& processes, const std::filesystem::path& checkpoint,
                      const Model& model) {
  processes.wait_for_all();  // One may read its checkpoint slowly.
  processes.check_same("checkpoint", checkpoint.empty() ? "none" : checkpoint.filename().string());
  if (checkpoint.empty()) return take_network(processes, model);
  processes.check_same("network", hash_of(state_of(model)).substr(0, kHashDigits));
}

std::string data_mark(const Dataset& data) {
  return data_mark(data, data_record(data, /*reads_shards=*/false));
}

std::string data_mark(const Dataset& data, DataRecord record) {
  // Not every process has the same shards here.
  if (!record.shards.empty()) record.labels = record.files = record.images = "";
  std::string text = to_json(record).dump();
  if (record.shards.empty() && record.images.empty()) text += pixel_hash(data);
  return fmt::format("{} {}", count_text(data.size(), "image"),
                     sha256_hex(std::as_bytes(std::span(text))).substr(0, kHashDigits));
}

}  // namespace moesaic
