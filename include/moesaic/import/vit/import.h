// SPDX-License-Identifier: Apache-2.0
// Imports dense vision transformers of timm and Hugging Face, as they are or as mixtures of
// experts.
#pragma once

#include "moesaic/base/filesystem.h"
#include "moesaic/config/rules.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/models/router_config.h"

namespace moesaic {

/// What import_vit() reads, and what it makes of it.
struct ImportVitOptions {
  fs::path from;                       ///< A .safetensors file, or a folder with model.safetensors.
  fs::path out;                        ///< Output directory, absent or empty.
  std::optional<int64_t> num_heads;    ///< Unset: by config.json, else heads of width 64.
  std::optional<int64_t> num_classes;  ///< Classes of a new head of zeros.
  std::optional<Size2d> image_size;    ///< New image size, to which positions are resized.
  Upcycling upcycling = {};
  uint64_t seed = 0;  ///< Seed of routers and noise.
  /// Called with the bytes done and the total; may throw to cancel, which leaves no output.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
};

/// What import_vit() wrote.
struct ImportVitResult {
  std::string from, out;
  Json model;  ///< Configuration of the network.
  int64_t num_parameters = 0, num_tensors = 0;
  std::vector<std::string> dropped;  ///< Tensors without use here.
  std::vector<std::string> notes;    ///< Assumptions where the files give no value.
  InputSpec input;                   ///< Preprocessing of images.
};

/// Writes a checkpoint of the family vmoe with the weights of a ViT, DeiT, DeiT3, DINOv2 (with
/// registers or without) or SigLIP, under timm's or Hugging Face's names. The sizes are those of
/// the tensors; heads, activation, epsilon, preprocessing and labels are read from config.json and
/// preprocessor_config.json beside them. Everything is checked before anything is written; a
/// failure leaves no output.
///
/// A distilled DeiT's distillation token becomes a register, and its logits remain the mean of both
/// heads'. Throws Error: usage for options that do not fit the network, failure for files of
/// another network, which names missing, unknown and misshapen tensors.
ImportVitResult import_vit(const ImportVitOptions& options);

/// Fetches the network `hf://OWNER/NAME[@REVISION]` of Hugging Face, by default the revision main,
/// unless it is in the cache, and returns its folder: model.safetensors with config.json and
/// preprocessor_config.json, if it has them. Returns other paths as they are. Throws Error: usage
/// for other addresses; failure that says where the files may be put by hand.
fs::path fetch_hub_model(const fs::path& from);

/// Returns the result as `moesaic import --json` prints it.
Json to_json(const ImportVitResult& result);
/// Returns the result as `moesaic import` prints it.
std::string describe(const ImportVitResult& result);

}  // namespace moesaic
