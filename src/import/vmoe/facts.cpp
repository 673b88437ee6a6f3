// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>

#include "reference.h"

namespace moesaic {
namespace {

using vmoe_checkpoint::Entry;

constexpr std::string_view kBlock = "Encoder/encoderblock_";

std::string is_shape(const Entry& entry) {
  return fmt::format("{} is {}", entry.name, shape_text(entry.shape));
}

class FactReader {
 public:
  explicit FactReader(const VMoEArrays& arrays) : arrays_(arrays) {
    // An array without elements may claim any size in a small file.
    for (const Entry& entry : arrays.entries) {
      const bool fits = std::ranges::all_of(entry.shape, [](int64_t size) {
        return size > 0 && static_cast<double>(size) <= kMaxTokens;
      });
      if (!fits) fail("{}: array {}: no parameter has that shape", arrays.from, is_shape(entry));
    }
    find_blocks();
    embedding();
    tokens();
    blocks();
    experts();
    head();
  }

  std::vector<VMoEFact> facts;

 private:
  void add(const std::string& key, Json value, const std::string& told_by, int64_t patches = 0) {
    facts.push_back({key, std::move(value), told_by, patches});
  }
  /// Adds a setting that follows from an array's shape.
  void add(const std::string& key, const Entry& entry, size_t axis) {
    add(key, entry.shape[axis], is_shape(entry));
  }

  /// Returns the array, or nullptr if there is none. Throws Error for another rank.
  const Entry* find(const std::string& name, size_t rank) const {
    const Entry* entry = arrays_.find(name);
    if (entry != nullptr && entry->shape.size() != rank) {
      fail("{}: array {}, which must have {} axes", arrays_.from, is_shape(*entry), rank);
    }
    return entry;
  }
  const Entry& need(const std::string& name, size_t rank) const {
    if (const Entry* entry = find(name, rank)) return *entry;
    std::vector<std::string> names;
    for (size_t i = 0; i < std::min<size_t>(arrays_.entries.size(), 3); ++i) {
      names.push_back(arrays_.entries[i].name);
    }
    fail("{}: no array '{}': not the parameters of a V-MoE; it has {}{}", arrays_.from, name,
         fmt::join(names, ", "), arrays_.entries.size() > names.size() ? ", ..." : "");
  }
  bool have(const std::string& name) const { return arrays_.find(name) != nullptr; }

  /// Finds the blocks, each with whether it has experts.
  void find_blocks() {
    for (const Entry& entry : arrays_.entries) {
      if (!entry.name.starts_with(kBlock)) continue;
      const std::string_view rest = std::string_view(entry.name).substr(kBlock.size());
      int64_t block = 0;
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), block);
      if (error != std::errc() || block < 0) continue;
      const std::string_view inner = rest.substr(static_cast<size_t>(end - rest.data()));
      blocks_[block] = blocks_[block] || inner.starts_with("/Moe/");
    }
    for (int64_t i = 0; const auto& [block, unused] : blocks_) {
      if (block != i) fail("{}: no arrays of {}{}", arrays_.from, kBlock, i);
      ++i;
    }
  }

  void embedding() {
    const Entry& kernel = need("embedding/kernel", 4);
    patch_ = {kernel.shape[0], kernel.shape[1]};
    add("patch_size", config_detail::write_size2d(patch_), is_shape(kernel));
    add("channels", kernel, 2);
    add("hidden_size", kernel, 3);
  }

  void tokens() {
    static const std::string kName = "Encoder/posembed_input/pos_embedding";
    const bool token = have("cls"), map = have("MapHead/probe");
    const auto [classifier, told_by] = token ? std::pair("token", "there is a 'cls'")
                                       : map ? std::pair("map", "there is a 'MapHead'")
                                             : std::pair("gap", "there is no 'cls'");
    add("classifier", classifier, told_by);
    const Entry* embedding = find(kName, 3);
    const std::string there = fmt::format("there is {} '{}'", embedding ? "a" : "no", kName);
    add("encoder.position_emb.name", embedding ? Json(kLearned) : Json(), there);
    if (embedding == nullptr) {
      add("image_size", nullptr, there);
      return;
    }
    const int64_t patches = embedding->shape[1] - (token ? 1 : 0);
    if (patches < 1) fail("{}: {}: no patches", arrays_.from, is_shape(*embedding));
    const char* const beside = token ? " and a class token" : "";
    int64_t side = 0;
    while ((side + 1) * (side + 1) <= patches) ++side;
    if (side * side != patches) {
      add("image_size", nullptr,
          fmt::format("{}: {} patches{}", is_shape(*embedding), patches, beside), patches);
    } else {
      add("image_size", config_detail::write_size2d({side * patch_.height, side * patch_.width}),
          fmt::format("{}: {} x {} patches of {}{}", is_shape(*embedding), side, side,
                      config_detail::write_size2d(patch_).dump(), beside),
          patches);
    }
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
    const std::string attention = std::string(kBlock) + "0/SelfAttention/";
    add("encoder.num_heads", need(attention + "query/kernel", 3), 1);
    const bool normed = normalizes("encoder.attention_qk_norm", attention);
    // In the reference's ensembles attention pooling alone may normalize.
    const std::string pooling = "MapHead/MultiHeadDotProductAttention/";
    if (have("MapHead/probe") && have(pooling + "query_ln/scale") != normed) {
      normalizes("map_head_qk_norm", pooling);
    }
    const Entry& kernel = mlp();
    add("encoder.mlp_dim", kernel, kernel.shape.size() - 1);
    mlp_dim_ = kernel.shape.back();
  }

  bool normalizes(const std::string& key, const std::string& attention) {
    const bool normed = have(attention + "query_ln/scale");
    add(key, normed, fmt::format("there is {} '{}query_ln'", normed ? "a" : "no", attention));
    return normed;
  }

  /// Returns the first block that has experts, or has none.
  std::optional<std::string> first_block(bool experts) const {
    const auto found = std::ranges::find(blocks_, experts, &std::pair<const int64_t, bool>::second);
    if (found == blocks_.end()) return std::nullopt;
    return fmt::format("{}{}/", kBlock, found->first);
  }

  /// Returns the kernel of the first dense MLP, else that of the first block's experts.
  const Entry& mlp() const {
    const std::string kernel = "Mlp/Dense_0/kernel";
    if (const auto dense = first_block(false)) return need(*dense + kernel, 2);
    if (const Entry* map = find("MapHead/" + kernel, 2)) return *map;
    return need(fmt::format("{}0/Moe/{}", kBlock, kernel), 3);
  }

  void experts() {
    const auto block = first_block(true);
    if (!block) return;
    const Entry& kernel = need(*block + "Moe/Mlp/Dense_0/kernel", 3);
    add("encoder.moe.num_experts", kernel, 0);
    if (kernel.shape[2] != mlp_dim_) add("encoder.moe.mlp_dim", kernel, 2);
    const std::string name = *block + "Moe/Router/dense/kernel";
    const Entry* found = arrays_.find(name);
    const bool ensemble = found != nullptr && found->shape.size() == 3;
    const Entry& router = ensemble ? *found : need(name, 2);
    add("name", ensemble ? kE3 : kVMoE, is_shape(router));
    add("encoder.moe.ensemble_size", ensemble ? router.shape[1] : 1, is_shape(router));
  }

  void head() {
    for (const auto& [key, array, shown] :
         {std::tuple{"representation_size", "pre_logits/kernel", "pre_logits"},
          std::tuple{"num_classes", "head/kernel", "head/kernel"}}) {
      if (const Entry* kernel = find(array, 2)) {
        add(key, *kernel, 1);
      } else {
        add(key, 0, fmt::format("there is no '{}'", shown));
      }
    }
  }

  const VMoEArrays& arrays_;
  std::map<int64_t, bool> blocks_;
  Size2d patch_;
  int64_t mlp_dim_ = 0;
};

}  // namespace

std::vector<VMoEFact> vmoe_facts(const VMoEArrays& arrays) {
  return std::move(FactReader(arrays).facts);
}

}  // namespace moesaic
