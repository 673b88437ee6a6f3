// SPDX-License-Identifier: Apache-2.0
// What google-research/vmoe has of its own: names and layouts of arrays, rules that map them to the
// parameters of a network where fine-tuning starts, model configurations, and the export to all
// that.
#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include "files/checkpoint.h"
#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/models/model.h"
#include "moesaic/models/vmoe/config.h"
#include "moesaic/nn/module_state.h"

namespace moesaic {

/// An array of the reference. Reshaped to `view` and permuted by `axes` (unless empty), it is a
/// part of a tensor of this library.
struct VMoEArray {
  std::string name;            ///< E.g. "Encoder/encoderblock_1/Moe/Router/dense/kernel".
  std::vector<int64_t> shape;  ///< E.g. [d, E], in an ensemble [d, M, E / M].
  std::vector<int64_t> view;   ///< E.g. [d, E].
  std::vector<int64_t> axes;   ///< E.g. {1, 0}, which makes it [E, d].
};

/// A tensor of the network's state dict and the arrays that it concatenates along the first axis:
/// query, key and value are one tensor here.
struct VMoETensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<VMoEArray> arrays;
};

/// Returns a setting of the network that the reference does not have, "" where it has them all.
std::string vmoe_lacks(const VMoEConfig& config);

/// Returns all tensors of the unpruned network; kept experts of `config` are ignored. Throws Error
/// (usage) for one that the reference does not have.
std::vector<VMoETensor> vmoe_tensors(const VMoEConfig& config);

/// Returns the tensor from its arrays in the reference's layout; may share memory with one of them.
at::Tensor tensor_of_arrays(const VMoETensor& tensor,
                            const std::function<at::Tensor(const VMoEArray&)>& array);

/// Returns an array of the tensor, contiguous and in the reference's layout, from its values.
at::Tensor array_of_tensor(const VMoETensor& tensor, size_t array, const at::Tensor& values);

/// Returns the dtype of an array; unsigned integers become signed, which preserves equality.
/// Nothing for an unknown one.
std::optional<at::ScalarType> scalar_type_of(const std::string& dtype);
/// Returns whether a dtype is of floating point, as those of parameters are.
bool is_float(const std::string& dtype);
/// Returns an array as it is stored.
at::Tensor stored_array(const vmoe_checkpoint::Reader& reader, const vmoe_checkpoint::Entry& entry);

/// Arrays that are read one at a time.
struct VMoEArrays {
  std::string from;  ///< Name of the source for messages.
  std::vector<vmoe_checkpoint::Entry> entries;
  /// Returns the array, float32 and contiguous. Throws Error (failure) for non-finite values in a
  /// file.
  std::function<at::Tensor(const vmoe_checkpoint::Entry&)> read;

  /// Returns the entry of this name, or nullptr.
  const vmoe_checkpoint::Entry* find(std::string_view name) const;
};

/// Returns the arrays of a network's tensors, whose memory they share. Experts that pruning removed
/// become rows of zeros, which give a token routed to them nothing as well.
VMoEArrays arrays_of_network(const VMoEConfig& config, TensorMap state, const std::string& from);

/// Parameters in checkpoint files. They may be the whole checkpoint or a branch of a train state:
/// "params/", "target/", ...; names are relative to the branch.
struct VMoEFileArrays : VMoEArrays {
  std::string branch;  ///< "" if the parameters are the whole checkpoint.
  int64_t others = 0;  ///< Arrays in other branches, e.g. the optimizer state or the step.
  int64_t shards = 0;
};
/// Returns the parameters in files; each is read when it is asked for.
VMoEFileArrays arrays_of_files(const fs::path& prefix);

/// Returns PREFIX for PREFIX.index and PREFIX.data-nnnnn-of-NNNNN, "" for other names.
std::string prefix_of_part(const fs::path& path);
/// Returns PREFIX for PREFIX and its files. Throws Error (usage) with the nearest name if
/// PREFIX.index does not exist.
fs::path vmoe_prefix(const fs::path& given);

enum class VMoETransform {
  copy,         ///< Keeps the values.
  vit_zoom,     ///< Resizes a position embedding to the target's grid.
  reshape,      ///< Reshapes to the target's shape, in C order.
  expand_tile,  ///< Inserts an axis and repeats along it.
};

struct VMoERule {
  std::string pattern;      ///< Regular expression (RE2), searched for in an array's name.
  std::string replacement;  ///< Replaces the match, with groups as \1; "" drops the array.
  VMoETransform transform = VMoETransform::copy;
  int64_t axis = 0, repeats = 1;  ///< Settings of expand_tile.
};

/// List of rules, of which the first whose pattern matches decides. New names start with "params/".
using VMoERules = std::vector<VMoERule>;

/// Returns rules that keep every array under its name.
VMoERules identity_rules();
/// Returns the rules of the released fine-tuning recipes: the head is dropped, the position
/// embedding resized, routers are reshaped for an ensemble.
VMoERules fine_tuning_rules();
/// Reads [[pattern, replacement], [pattern, replacement, "expand_tile", axis, repeats], ...].
/// Throws Error (usage) with the location of an invalid value.
VMoERules rules_from_value(const Value& value);

/// Source and transform of one array of the target.
struct VMoEMove {
  vmoe_checkpoint::Entry source;
  VMoERule rule;
  bool transforms = false;  ///< Whether values or shape differ from the source's.
};

struct VMoEPlan {
  std::map<std::string, VMoEMove> moves;  ///< Moves by the target's name, without "params/".
  std::vector<std::string> dropped;       ///< Arrays of the source that are not used.
  std::vector<std::string> fresh;         ///< Arrays of the target that no rule maps to.
  std::vector<std::string> transformed;   ///< Arrays of the target whose values the rules change.
};

/// Applies rules to names and shapes. Throws Error, in one line that starts with `from`, for an
/// array that no rule maps, whose new name the target lacks or another array has too, whose shape
/// does not fit, or whose dtype is not floating-point. `rules_from` is the file of the rules, for
/// messages; "" for built-in rules.
VMoEPlan plan_moves(const std::vector<vmoe_checkpoint::Entry>& source,
                    const std::vector<VMoETensor>& target, const VMoERules& rules,
                    const std::string& from, const std::string& rules_from = "");

/// Returns the values, in target.shape, that a move makes of its source's values.
at::Tensor moved(const VMoEMove& move, const at::Tensor& values, const VMoEArray& target);

struct VMoEModelConfig {
  Value model;                   ///< Unparsed settings of VMoEConfig; "name" only if it was given.
  bool is_of_reference = false;  ///< The name is a class of the reference.
  bool is_dense = false;         ///< That class has no experts.
  std::vector<std::string> unused;                      ///< Known settings without use here.
  std::map<std::string, std::string> given_names = {};  ///< Given name by VMoEConfig name.
};

/// Reads a model configuration in the layout and names of the reference (VisionTransformerMoe,
/// VisionTransformerMoeEnsemble, VisionTransformer) or of this library, or an object that has one
/// under "model", with "image_size" beside it. Defaults are those of the implementation whose names
/// are used. Throws Error (usage) with file:line:column and the nearest name for an unknown
/// setting.
VMoEModelConfig vmoe_model_config(const Value& root);

/// A setting that the names and shapes of the arrays imply.
struct VMoEFact {
  std::string key;      ///< Setting, e.g. "encoder.num_heads".
  Json value;           ///< Value, e.g. 4; null if not implied and required.
  std::string told_by;  ///< Evidence: "Encoder/.../query/kernel is [32, 4, 8]".
  int64_t patches = 0;  ///< Patches that image_size must give; 0: any.
};

/// Returns the settings that the arrays imply. Throws Error (failure) if they are of no V-MoE.
std::vector<VMoEFact> vmoe_facts(const VMoEArrays& arrays);

/// Returns the configuration completed with the facts. Throws Error (usage) in one line with both
/// values if it contradicts a fact whose key is not in `free`, and for settings that neither gives.
Value with_facts(const VMoEModelConfig& config, const std::vector<VMoEFact>& facts,
                 const std::string& from, const std::set<std::string>& free = {});

/// Returns a copy of `root` in which the setting at a dotted path has this value.
Value with_setting(const Value& root, std::string_view path, const Value& value);
/// Returns the setting at a dotted path, or nullptr if there is none.
const Value* find_setting(const Value& root, std::string_view path);
/// Returns whether there is a setting at a dotted path, with this value.
bool setting_is(const Value& root, std::string_view path, const Json& value);
/// Returns the number of patches of an image.
int64_t patches_of(const Value& image_size, const Value& patch_size);

/// Writes a V-MoE's parameters under the reference's names and in its layouts, at the top level of
/// the tree: as float32, or as the dtype in `array_dtypes` (float16, bfloat16, float64). Pruned
/// experts are written as zeros, since the reference has no other form for them: a token routed to
/// them gets nothing, as here. Throws Error (usage) for another family, and for experts that were
/// pruned so that tokens reroute.
void export_vmoe(const Model& model, const fs::path& prefix,
                 const vmoe_checkpoint::WriteOptions& options = {},
                 const std::map<std::string, std::string>& array_dtypes = {});

}  // namespace moesaic
