// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "moesaic/base/error.h"
#include "moesaic/checkpoint/vmoe/model_config.h"

namespace moesaic {
namespace {

using vmoe_checkpoint::Entry;

constexpr std::string_view kBlock = "Encoder/encoderblock_";

std::string is_shape(const Entry& entry) {
  return fmt::format("{} is [{}]", entry.name, fmt::join(entry.shape, ", "));
}

/// Returns the blocks, each with whether it has experts.
std::map<int64_t, bool> blocks_of(const VMoEArrays& arrays) {
  std::map<int64_t, bool> blocks;
  for (const Entry& entry : arrays.entries()) {
    if (!entry.name.starts_with(kBlock)) continue;
    const std::string_view rest = std::string_view(entry.name).substr(kBlock.size());
    int64_t block = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), block);
    if (error != std::errc() || block < 0) continue;
    const std::string_view inner = rest.substr(static_cast<size_t>(end - rest.data()));
    blocks[block] = blocks[block] || inner.starts_with("/Moe/");
  }
  for (int64_t i = 0; const auto& [block, unused] : blocks) {
    if (block != i) fail("{}: no arrays of {}{}", arrays.from(), kBlock, i);
    ++i;
  }
  return blocks;
}

class FactReader {
 public:
  explicit FactReader(const VMoEArrays& arrays) : arrays_(arrays), blocks_(blocks_of(arrays)) {
    check_sizes();
  }

  std::vector<VMoEFact> take() {
    embedding();
    tokens();
    blocks();
    first_block();
    experts();
    head();
    return std::move(facts_);
  }

 private:
  /// Checks sizes, since an array without elements may claim any size in a small file.
  void check_sizes() const {
    for (const Entry& entry : arrays_.entries()) {
      const bool fits = std::ranges::all_of(entry.shape, [](int64_t size) {
        return size > 0 && static_cast<double>(size) <= kMaxTokens;
      });
      if (!fits) fail("{}: array {}: no parameter has that shape", arrays_.from(), is_shape(entry));
    }
  }

  void add(const std::string& key, nlohmann::ordered_json value, const std::string& told_by) {
    facts_.push_back({key, std::move(value), told_by});
  }

  /// Returns the array, or nullptr if there is none. Throws Error for another rank.
  const Entry* find(const std::string& name, size_t rank) const {
    const Entry* entry = arrays_.find(name);
    if (entry != nullptr && entry->shape.size() != rank) {
      fail("{}: array {}, which must have {} axes", arrays_.from(), is_shape(*entry), rank);
    }
    return entry;
  }
  const Entry& need(const std::string& name, size_t rank) const {
    if (const Entry* entry = find(name, rank)) return *entry;
    std::vector<std::string> names;
    for (const Entry& entry : arrays_.entries()) {
      if (names.size() < 3) names.push_back(entry.name);
    }
    fail("{}: no array '{}': not the parameters of a V-MoE; it has {}{}", arrays_.from(), name,
         fmt::join(names, ", "), arrays_.entries().size() > names.size() ? ", ..." : "");
  }

  void embedding() {
    const Entry& kernel = need("embedding/kernel", 4);
    patch_ = {kernel.shape[0], kernel.shape[1]};
    add("patch_size", config_detail::write_sides(patch_), is_shape(kernel));
    add("channels", kernel.shape[2], is_shape(kernel));
    add("hidden_size", kernel.shape[3], is_shape(kernel));
  }

  void tokens() {
    const bool token = arrays_.find("cls") != nullptr;
    const bool map = arrays_.find("MapHead/probe") != nullptr;
    add("classifier",
        token ? "token"
        : map ? "map"
              : "gap",
        token ? "there is a 'cls'"
        : map ? "there is a 'MapHead'"
              : "there is no 'cls'");
    positions(token);
  }

  void positions(bool token) {
    static const std::string kName = "Encoder/posembed_input/pos_embedding";
    const Entry* embedding = find(kName, 3);
    if (embedding == nullptr) {
      const std::string absent = fmt::format("there is no '{}'", kName);
      add("encoder.position_emb.name", nullptr, absent);
      add("image_size", nullptr, absent);
      return;
    }
    add("encoder.position_emb.name", kLearned, fmt::format("there is a '{}'", kName));
    const int64_t patches = embedding->shape[1] - (token ? 1 : 0);
    if (patches < 1) fail("{}: {}: no patches", arrays_.from(), is_shape(*embedding));
    image_size(patches, is_shape(*embedding), token ? " and a class token" : "");
  }

  /// Adds the image size with this number of patches in a square grid.
  void image_size(int64_t patches, const std::string& shape, const char* token) {
    int64_t side = 0;
    while ((side + 1) * (side + 1) <= patches) ++side;
    if (side * side != patches) {
      add("image_size", nullptr, fmt::format("{}: {} patches{}", shape, patches, token));
    } else {
      add("image_size", config_detail::write_sides({side * patch_.height, side * patch_.width}),
          fmt::format("{}: {} x {} patches of {}{}", shape, side, side,
                      config_detail::write_sides(patch_).dump(), token));
    }
    facts_.back().patches = patches;
  }

  void blocks() {
    if (blocks_.empty()) need(std::string(kBlock) + "0/LayerNorm_0/scale", 1);
    add("encoder.num_layers", blocks_.size(),
        fmt::format("{}{} is the last", kBlock, blocks_.rbegin()->first));
    std::vector<int64_t> with_experts;
    for (const auto& [block, experts] : blocks_) {
      if (experts) with_experts.push_back(block);
    }
    add("encoder.moe.layers", with_experts, "those blocks have a 'Moe'");
  }

  void first_block() {
    const std::string attention = std::string(kBlock) + "0/SelfAttention/";
    const Entry& query = need(attention + "query/kernel", 3);
    add("encoder.num_heads", query.shape[1], is_shape(query));
    const bool normed = arrays_.find(attention + "query_ln/scale") != nullptr;
    add("encoder.attention_qk_norm", normed,
        fmt::format("there is {} '{}query_ln'", normed ? "a" : "no", attention));
    map_head(normed);
    const Entry& kernel = mlp();
    mlp_dim_ = kernel.shape.back();
    add("encoder.mlp_dim", mlp_dim_, is_shape(kernel));
  }

  /// Adds the facts of attention pooling. In the reference's ensembles it alone may normalize.
  void map_head(bool blocks_normed) {
    static const std::string kNorm = "MapHead/MultiHeadDotProductAttention/query_ln";
    const bool normed = arrays_.find(kNorm + "/scale") != nullptr;
    if (arrays_.find("MapHead/probe") == nullptr || normed == blocks_normed) return;
    add("map_head_qk_norm", normed, fmt::format("there is {} '{}'", normed ? "a" : "no", kNorm));
  }

  /// Returns the kernel of the first dense MLP, else that of the first block's experts.
  const Entry& mlp() const {
    constexpr const char* kKernel = "Mlp/Dense_0/kernel";
    const auto dense = std::ranges::find_if(blocks_, [](const auto& item) { return !item.second; });
    if (dense != blocks_.end())
      return need(fmt::format("{}{}/{}", kBlock, dense->first, kKernel), 2);
    if (const Entry* map = find(fmt::format("MapHead/{}", kKernel), 2)) return *map;
    return need(fmt::format("{}0/Moe/{}", kBlock, kKernel), 3);
  }

  void experts() {
    const auto first = std::ranges::find_if(blocks_, [](const auto& item) { return item.second; });
    if (first == blocks_.end()) return;
    const std::string moe = fmt::format("{}{}/Moe/", kBlock, first->first);
    const Entry& kernel = need(moe + "Mlp/Dense_0/kernel", 3);
    add("encoder.moe.num_experts", kernel.shape[0], is_shape(kernel));
    if (kernel.shape[2] != mlp_dim_) add("encoder.moe.mlp_dim", kernel.shape[2], is_shape(kernel));
    const Entry* router = arrays_.find(moe + "Router/dense/kernel");
    if (router == nullptr) need(moe + "Router/dense/kernel", 2);
    const bool ensemble = router->shape.size() == 3;
    if (!ensemble) need(router->name, 2);
    add("name", ensemble ? kE3 : kVMoE, is_shape(*router));
    add("encoder.moe.ensemble_size", ensemble ? router->shape[1] : 1, is_shape(*router));
  }

  void head() {
    const Entry* representation = find("pre_logits/kernel", 2);
    if (representation == nullptr) {
      add("representation_size", 0, "there is no 'pre_logits'");
    } else {
      add("representation_size", representation->shape[1], is_shape(*representation));
    }
    const Entry* kernel = find("head/kernel", 2);
    if (kernel == nullptr) {
      add("classes", 0, "there is no 'head/kernel'");
    } else {
      add("classes", kernel->shape[1], is_shape(*kernel));
    }
  }

  const VMoEArrays& arrays_;
  std::map<int64_t, bool> blocks_;
  std::vector<VMoEFact> facts_;
  Sides patch_;
  int64_t mlp_dim_ = 0;
};

}  // namespace

std::vector<VMoEFact> vmoe_facts(const VMoEArrays& arrays) {
  return FactReader(arrays).take();
}

}  // namespace moesaic
