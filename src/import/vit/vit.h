// SPDX-License-Identifier: Apache-2.0
// What files of timm and Hugging Face say of a dense vision transformer: names, settings, images.
#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include "moesaic/base/error.h"
#include "moesaic/config/document.h"
#include "moesaic/import/vit/import.h"
#include "moesaic/models/vmoe/config.h"
#include "moesaic/nn/module_state.h"

namespace moesaic::vit {

/// A tensor of the file.
struct Part {
  std::string source;  ///< Its name there.
  at::Tensor values;
};

/// The tensors of a file by the names of our network.
class Tensors {
 public:
  /// Reads the file, or those of an index. Throws Error (failure) for tensors whose names no ViT
  /// has, that are not of real numbers or that are empty.
  explicit Tensors(const fs::path& file);

  /// Returns whether there is a tensor for this one of ours.
  bool has(const std::string& name) const { return places_.contains(name); }
  /// Returns the shape of the tensor of a name, its parts put together as in values().
  std::vector<int64_t> shape(const std::string& name) const;
  /// Returns the tensor in float32: parts follow one another along dimension 0; of a distilled
  /// network's two heads, which are averaged, the weights lie side by side and are halved.
  at::Tensor values(const std::string& name) const;
  /// Returns its name in the file, with " + ..." where there are more parts. A tensor that is
  /// missing is called as that of another block, or the bias beside a weight, would be.
  std::string source(const std::string& name) const;
  /// Returns the names of the missing ones of a tensor's parts, if only some are there.
  std::vector<std::string> missing_parts(const std::string& name) const;
  /// Leaves out the tensors of ours whose names begin so.
  void drop(std::string_view prefix);

  /// Returns our names of all tensors.
  std::vector<std::string> names() const;
  /// Returns whether a name in the file has this text within it.
  bool any_source_has(std::string_view text) const;

  std::string from;                  ///< The file, for messages.
  std::vector<std::string> dropped;  ///< Names in the file without use here.
  int64_t count = 0;                 ///< Tensors in the file.

 private:
  using Parts = std::map<int, Part>;  // By their places in ours.
  std::string likely_source(const std::string& name, int part) const;

  std::map<std::string, Parts> places_;
};

/// JSON files beside the weights, null where they are missing.
struct SideFiles {
  Value model;   ///< config.json.
  Value images;  ///< preprocessor_config.json.

  /// Returns a setting of the vision model, of timm's "model_args" or of the file itself; else
  /// null.
  Value setting(std::string_view key) const;
  /// Returns a setting of timm's "pretrained_cfg", which older files have beside the others.
  Value pretrained(std::string_view key) const;
};
/// Reads the files of a folder. Throws Error (failure) where one of them is no JSON object.
SideFiles side_files_in(const fs::path& folder);

/// Returns the text of a value, "" where it is none.
std::string text_of(const Value& value);
/// Throws Error (failure) for a value of config.json that is not the tensors'.
[[noreturn]] void refuse_contradiction(const std::string& from, std::string_view key,
                                       const std::string& given, const std::string& found);
/// Throws Error (failure) for networks that compute something else with the same tensors.
void check_kind(const Tensors& tensors, const SideFiles& beside);

/// The network that a file's weights are for.
struct Network {
  VMoEConfig config;
  int64_t embedded_prefix = 0;  ///< Rows of the file's position embedding before those of patches.
  Size2d stored_grid;           ///< Patches that it has rows for.
  std::vector<std::string> notes;
};

/// Returns the network of the tensors' shapes, the side files and the options. Throws Error as
/// import_vit() does.
Network network_of(Tensors& tensors, const SideFiles& beside, const ImportVitOptions& options);

/// Returns how images become inputs of the network, and the names of its classes; `notes` gets what
/// the files do not say or say differently.
InputSpec input_of(const VMoEConfig& config, const SideFiles& beside,
                   std::vector<std::string>& notes);

}  // namespace moesaic::vit
