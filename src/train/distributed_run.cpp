// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/distributed_run.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>
#include <span>

#include "moesaic/base/hash.h"
#include "moesaic/base/text.h"
#include "moesaic/parallel/process_mesh.h"

namespace moesaic {
namespace {

bool starts_with_any(const std::string& name, const std::vector<std::string>& prefixes) {
  return std::ranges::any_of(prefixes,
                             [&](const std::string& prefix) { return name.starts_with(prefix); });
}

constexpr size_t kHashDigits = 16;

/// Returns a hash of the pixels of some images, which have no files.
std::string pixel_hash(const Dataset& data) {
  if (!data.has_images() || data.is_endless() || data.image_size() == 0) return "";
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
std::vector<Replaced> new_of_all(const Replaced& fresh, const ProcessMesh& processes) {
  // A file's name may be no UTF-8.
  const std::string text = Json(fresh).dump(-1, ' ', false, Json::error_handler_t::replace);
  std::vector<Replaced> all;
  for (const std::string& found : processes.world().all_gather_strings(text)) {
    all.push_back(parse_stored(found, "corrupt images", kMaxListBytes).to_json().get<Replaced>());
  }
  return all;
}

}  // namespace

bool trains_experts_uniformly(const Model& model, const Patterns& trains) {
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    const auto* const experts = dynamic_cast<const nn::Experts*>(item.value().get());
    if (experts == nullptr || !experts->has_expert_names()) continue;
    std::set<std::vector<std::string>> trained;  // Names within an expert; one list if alike.
    for (const auto& child : experts->named_children()) {
      std::vector<std::string> names;
      for (const auto& parameter : child.value()->named_parameters()) {
        const std::string name = item.key() + "." + child.key() + "." + parameter.key();
        if (trains.any_matches(name)) names.push_back(parameter.key());
      }
      trained.insert(names);
    }
    if (trained.size() > 1) return false;
  }
  return true;
}

void shard_experts(Model& model, const std::shared_ptr<const ProcessMesh>& processes) {
  for (const MoEBlock& block : model.moe_blocks()) block.layer->experts->shard(processes);
}

void unshard_experts(Model& model) {
  for (const MoEBlock& block : model.moe_blocks()) block.layer->experts->unshard();
}

ExpertShards::ExpertShards(const Model& model) {
  std::set<const torch::nn::Module*> shared;
  for (const MoEBlock& block : model.moe_blocks()) {
    if (!block.layer->experts->mesh()) continue;
    processes_ = block.layer->experts->mesh();
    shared.insert(block.layer->experts.get());
  }
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (!shared.contains(item.value().get())) continue;
    const auto& experts = dynamic_cast<const nn::Experts&>(*item.value());
    const std::string prefix = item.key() + ".";
    (experts.has_expert_names() ? named_ : stacked_).push_back(prefix);
    if (!experts.has_expert_names()) continue;
    for (const auto& child : experts.named_children()) own_.push_back(prefix + child.key() + ".");
  }
}

bool ExpertShards::has(const std::string& name) const {
  return starts_with_any(name, stacked_) || starts_with_any(name, named_);
}

CheckpointShard ExpertShards::local_shard(const CheckpointShard& all, const ProcessMesh& processes,
                                          bool is_optimizer_sharded) const {
  const bool is_first_replica = processes.replica_group().rank() == 0;
  const int64_t place = processes.expert_group().rank();
  CheckpointShard part;
  const auto add = [&](const TensorMap& from, TensorMap& to, bool others) {
    for (const auto& [name, tensor] : from) {
      if (!has(name)) {
        if (others) to[name] = tensor;
      } else if (is_first_replica && starts_with_any(name, own_)) {
        to[name] = tensor;
      } else if (is_first_replica) {
        const int64_t rows = tensor.size(0);
        to[slice_name({name, place * rows, (place + 1) * rows})] = tensor;
      }
    }
  };
  add(all.model, part.model, processes.is_rank_zero());
  add(all.optimizer, part.optimizer, processes.is_rank_zero() || is_optimizer_sharded);
  return part;
}

TensorMap ExpertShards::local_tensors(TensorMap tensors) const {
  std::erase_if(tensors, [&](const auto& item) {
    return starts_with_any(item.first, named_) && !starts_with_any(item.first, own_);
  });
  for (auto& [name, tensor] : tensors) {
    if (!starts_with_any(name, stacked_)) continue;
    const int64_t rows = tensor.size(0) / processes_->expert_group().size();
    tensor = tensor.narrow(0, processes_->expert_group().rank() * rows, rows);
  }
  return tensors;
}

void check_same_build(const ProcessMesh& processes) {
  processes.barrier();
  Dl_info info = {};  // Names the file that this code was loaded from.
  const bool found = dladdr(reinterpret_cast<const void*>(&check_same_build), &info) != 0;
  processes.check_same("build", found ? sha256_file_hex(info.dli_fname) : "unknown");
}

void check_same_settings(const ProcessMesh& processes, const std::string& what,
                         const Json& settings) {
  const std::vector<std::string> all = processes.world().all_gather_strings(settings.dump());
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto found = differences(parse_stored(all[0], what, kMaxListBytes).to_json(),
                                   parse_stored(all[rank], what, kMaxListBytes).to_json());
    if (found.empty()) continue;  // In another order.
    fail_usage("process {} has another {} than process 0: {}", rank, what,
               describe(found, /*is_side_by_side=*/true));
  }
}

void broadcast_network(const ProcessMesh& processes, const Model& model) {
  const torch::NoGradGuard no_grad;
  processes.barrier();  // One may read or measure slowly.
  processes.check_same("network", model.config().dump());
  for (const auto& [name, tensor] : state_of(model)) {
    at::Tensor sent = tensor.cpu().contiguous();
    processes.world().broadcast(sent, 0, Traffic::parameters);
    if (!sent.is_alias_of(tensor)) tensor.copy_(sent);
  }
  processes.counter().take();  // This is of no step.
}

void sync_network(const ProcessMesh& processes, const fs::path& checkpoint, const Model& model) {
  processes.barrier();  // One may read its checkpoint slowly.
  processes.check_same("checkpoint", checkpoint.empty() ? "none" : checkpoint.filename().string());
  if (checkpoint.empty()) return broadcast_network(processes, model);
  processes.check_same("network", hash_of(state_of(model)).substr(0, kHashDigits));
}

std::string data_fingerprint(const Dataset& data, const DataRecord* known) {
  DataRecord record = known != nullptr ? *known : data_record(data, /*reads_shards=*/false);
  // Not every process has the same shards here.
  if (!record.shards.empty()) record.labels = record.files = record.images = "";
  std::string text = to_json(record).dump();
  if (record.shards.empty() && record.images.empty()) text += pixel_hash(data);
  return fmt::format("{} {}", count_text(data.size(), "image"),
                     sha256_hex(std::as_bytes(std::span(text))).substr(0, kHashDigits));
}

int sync_replaced_images(const Replaced& replaced, Loader& loader, const ProcessMesh* processes,
                         std::vector<int64_t>& known, int signal) {
  Replaced fresh = replaced;
  std::erase_if(fresh,
                [&](const auto& image) { return std::ranges::binary_search(known, image.first); });
  if (processes == nullptr) {
    for (const auto& [index, what] : fresh) add_index(known, index);
    return signal;
  }
  // One exchange of a step has all that the processes agree on beside numbers of the network.
  const at::Tensor largest =
      torch::tensor({static_cast<int64_t>(signal), static_cast<int64_t>(fresh.size())}, at::kLong);
  processes->world().all_reduce(largest, Traffic::other, /*takes_max=*/true);
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
