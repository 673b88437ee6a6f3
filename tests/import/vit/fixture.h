// SPDX-License-Identifier: Apache-2.0
// A small ViT under the names of timm and Hugging Face, and its import.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>

#include <functional>
#include <limits>

#include "base/support.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/import/vit/import.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "support/matchers.h"
#include "support/tensors.h"

namespace moesaic::testing::vit {

constexpr int64_t kWidth = 8, kHidden = 12, kBlocks = 3, kPatches = 4, kClasses = 5;

/// Values of a name, whatever else there is.
inline at::Tensor values_of(const std::string& name, std::vector<int64_t> shape) {
  return 0.3 * randn(std::move(shape), std::hash<std::string>()(name) % 1000, at::kFloat);
}

inline void add(TensorMap& tensors, const std::string& name, const std::vector<int64_t>& shape) {
  tensors[name] = values_of(name, shape);
}

inline void add_linear(TensorMap& tensors, const std::string& name, int64_t in, int64_t out) {
  add(tensors, name + ".weight", {out, in});
  add(tensors, name + ".bias", {out});
}

inline void add_norm(TensorMap& tensors, const std::string& name) {
  tensors[name + ".weight"] = 1.0 + values_of(name + ".weight", {kWidth});
  add(tensors, name + ".bias", {kWidth});
}

/// A ViT of images of 8 x 8 in patches of 4, under timm's names, with a class token.
inline TensorMap timm_tensors() {
  TensorMap tensors;
  add(tensors, "cls_token", {1, 1, kWidth});
  add(tensors, "pos_embed", {1, 1 + kPatches, kWidth});
  add(tensors, "patch_embed.proj.weight", {kWidth, 3, 4, 4});
  add(tensors, "patch_embed.proj.bias", {kWidth});
  for (int64_t block = 0; block < kBlocks; ++block) {
    const std::string name = fmt::format("blocks.{}.", block);
    add_norm(tensors, name + "norm1");
    add_linear(tensors, name + "attn.qkv", kWidth, 3 * kWidth);
    add_linear(tensors, name + "attn.proj", kWidth, kWidth);
    add_norm(tensors, name + "norm2");
    add_linear(tensors, name + "mlp.fc1", kWidth, kHidden);
    add_linear(tensors, name + "mlp.fc2", kHidden, kWidth);
  }
  add_norm(tensors, "norm");
  add_linear(tensors, "head", kWidth, kClasses);
  return tensors;
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

/// Renames tensors of timm by the pairs, first to last, and splits queries, keys and values.
inline TensorMap renamed_by(const TensorMap& tensors,
                            const std::vector<std::pair<std::string, std::string>>& pairs,
                            const std::vector<std::string>& qkv) {
  TensorMap all;
  for (const auto& [name, values] : tensors) {
    std::string renamed = name;
    for (const auto& [from, to] : pairs) renamed = replaced(renamed, from, to);
    if (name.find("attn.qkv") == std::string::npos) {
      all[renamed] = values;
      continue;
    }
    const auto parts = values.chunk(3);
    for (size_t i = 0; i < 3; ++i) all[replaced(renamed, "QKV", qkv[i])] = parts[i].clone();
  }
  return all;
}

/// The same network under the names of Hugging Face's ViT.
inline TensorMap vit_names(const TensorMap& tensors) {
  return renamed_by(tensors,
                    {{"cls_token", "vit.embeddings.cls_token"},
                     {"pos_embed", "vit.embeddings.position_embeddings"},
                     {"patch_embed.proj", "vit.embeddings.patch_embeddings.projection"},
                     {"blocks.", "vit.encoder.layer."},
                     {".norm1", ".layernorm_before"},
                     {".norm2", ".layernorm_after"},
                     {"attn.qkv", "attention.attention.QKV"},
                     {"attn.proj", "attention.output.dense"},
                     {"mlp.fc1", "intermediate.dense"},
                     {"mlp.fc2", "output.dense"},
                     {"head.", "classifier."},
                     {"norm.weight", "vit.layernorm.weight"},
                     {"norm.bias", "vit.layernorm.bias"}},
                    {"query", "key", "value"});
}

inline at::Tensor logits_of(const std::filesystem::path& checkpoint, int64_t side = 8) {
  const torch::NoGradGuard no_grad;
  const at::Tensor images = randn({3, 3, side, side}, 77, at::kFloat);
  return load_model(checkpoint)->forward(images).logits;
}

class ImportVit : public ::testing::Test {
 protected:
  /// Writes the tensors as a folder, and a configuration beside them unless it is "".
  fs::path write(const std::string& name, const TensorMap& tensors,
                 const std::string& config = "") const {
    fs::create_directories(folder_ / name);
    write_tensors(folder_ / name / "model.safetensors", tensors);
    fs::remove(folder_ / name / "config.json");
    if (!config.empty()) test::put(folder_ / name / "config.json", config);
    return folder_ / name;
  }
  ImportVitOptions options(const fs::path& from) const {
    return {.from = from, .out = folder_ / (from.filename().string() + "-out"), .num_heads = 2};
  }
  /// Imports and returns the checkpoint.
  fs::path imported(const std::string& name, const TensorMap& tensors,
                    const std::function<void(ImportVitOptions&)>& change = {}) const {
    ImportVitOptions given = options(write(name, tensors));
    if (change) change(given);
    import_vit(given);
    return given.out;
  }
  std::string refused(ErrorKind kind, const TensorMap& tensors,
                      const std::function<void(ImportVitOptions&)>& change = {},
                      const std::string& config = "") const {
    ImportVitOptions given = options(write("refused", tensors, config));
    if (change) change(given);
    const std::string message = test::error_of(kind, [&] { import_vit(given); });
    EXPECT_FALSE(fs::exists(given.out));
    return message;
  }

  test::TempDir folder_;
};

}  // namespace moesaic::testing::vit
