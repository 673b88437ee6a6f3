// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/same_start.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/text.h"
#include "moesaic/config/difference.h"
#include "moesaic/config/document.h"
#include "moesaic/data/dataset.h"
#include "moesaic/models/model.h"
#include "moesaic/parallel/processes.h"

namespace moesaic {
namespace {

constexpr size_t kHashDigits = 16;

/// Returns the hash of the file that this code was loaded from.
std::string library_hash() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&check_same_build), &info) == 0) return "unknown";
  return sha256_file_hex(info.dli_fname);
}

void add(Sha256& hash, int64_t number) {
  hash.update(std::as_bytes(std::span(&number, 1)));
}

/// Returns the distance of at most `most` examples that are spread over the data.
int64_t stride_of(const Dataset& data, int64_t most) {
  return std::max<int64_t>(1, (data.size() + most - 1) / most);
}

void add_labels(Sha256& hash, const Dataset& data) {
  const int64_t step = stride_of(data, 10'000);
  for (int64_t i = 0; i < data.size(); i += step) {
    int64_t label = -1;
    try {
      label = data.label(i);
    } catch (const ImageError&) {
      // It is lost in every process, or the others differ.
    }
    add(hash, label);
  }
}

/// Adds an image's file or, where it has none, its pixels.
void add_image(Sha256& hash, const Dataset& data, int64_t index) try {
  if (const std::optional<EncodedImage> file = data.encoded(index)) {
    hash.update(std::as_bytes(std::span(file->bytes)));
    return;
  }
  if (data.image_size() == 0) return;  // They differ in size until they are preprocessed.
  std::vector<uint8_t> pixels(static_cast<size_t>(data.image_size()));
  data.image(index, pixels.data());
  hash.update(std::as_bytes(std::span(pixels)));
} catch (const ImageError&) {
  add(hash, -1);
}

void add_images(Sha256& hash, const Dataset& data) {
  const int64_t step = stride_of(data, 4);
  for (int64_t i = 0; i < data.size(); i += step) add_image(hash, data, i);
}

/// Returns a hash of all bytes of a network. Sums would depend on the number of threads.
std::string network_hash(const Model& model) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : state_of(model)) tensors.push_back(tensor.cpu().contiguous());
  std::vector<std::string> hashes(tensors.size());
  at::parallel_for(0, static_cast<int64_t>(tensors.size()), 1, [&](int64_t first, int64_t last) {
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      const auto* const data = static_cast<const std::byte*>(tensors[i].const_data_ptr());
      hashes[i] = sha256_hex(std::span(data, tensors[i].nbytes()));
    }
  });
  Sha256 hash;
  for (const std::string& own : hashes) hash.update(std::as_bytes(std::span(own)));
  return hash.hex().substr(0, kHashDigits);
}

/// Gives this process the network of process 0: processors draw other numbers by a rounding.
void take_from_leader(const Processes& processes, const Model& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : state_of(model)) {
    at::Tensor sent = tensor.cpu().contiguous();
    processes.control().broadcast(sent, 0, Traffic::parameters);
    if (!sent.is_alias_of(tensor)) tensor.copy_(sent);
  }
  processes.counter().take();  // This is of no step.
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

void agree_on_network(const Processes& processes, const std::filesystem::path& checkpoint,
                        const Model& model) {
  processes.wait_for_all();  // One may read its checkpoint slowly.
  processes.check_same("checkpoint", checkpoint.empty() ? "none" : checkpoint.filename().string());
  if (checkpoint.empty()) return take_from_leader(processes, model);
  processes.check_same("network", network_hash(model));
}

std::string data_mark(const Dataset& data) {
  const std::string size = count_text(data.size(), "image");
  if (!data.has_images() || data.endless()) return size;
  Sha256 hash;
  const std::vector<int64_t> blocks = data.blocks();
  for (const int64_t block : blocks) add(hash, block);
  if (blocks.empty()) {
    if (!data.info().classes.empty()) add_labels(hash, data);
    add_images(hash, data);
  }
  return fmt::format("{} {}", size, hash.hex().substr(0, kHashDigits));
}

}  // namespace moesaic
