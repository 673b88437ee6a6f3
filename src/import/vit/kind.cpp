// SPDX-License-Identifier: Apache-2.0
// Networks whose tensors have the names of a ViT, and that compute something else.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/pattern.h"
#include "moesaic/base/text.h"
#include "moesaic/config/document.h"
#include "vit.h"

namespace moesaic::vit {
namespace {

/// Networks of timm with rotary positions, which some have beside learned ones.
constexpr const char* kRotaryOf = "rope|dinov3|^eva|^vit_pe_";
/// A network of timm whose mean of tokens includes the class token and the registers.
constexpr const char* kPrefixPooledOf = "^test_vit3";
/// Names of architectures whose tensors may have the names of a ViT, of timm and Hugging Face.
constexpr const char* kFamilies =
    "(^|[^a-z]|flexi)(vit|deit|dino|siglip)|ViT|DeiT|Dino|Siglip|VisionTransformer";
/// Arguments of timm's networks that are read here or seen in the tensors, and those that change no
/// output.
constexpr std::string_view kArguments[] = {
    "img_size",       "patch_size",      "in_chans",        "num_classes",   "global_pool",
    "embed_dim",      "depth",           "num_heads",       "mlp_ratio",     "qkv_bias",
    "proj_bias",      "init_values",     "class_token",     "pos_embed",     "no_embed_class",
    "reg_tokens",     "final_norm",      "fc_norm",         "act_layer",     "dynamic_img_size",
    "weight_init",    "fix_init",        "dynamic_img_pad", "drop_rate",     "pos_drop_rate",
    "drop_path_rate", "patch_drop_rate", "proj_drop_rate",  "attn_drop_rate"};
constexpr std::string_view kModelTypes[] = {"vit",     "vit_mae",
                                            "vit_msn", "deit",
                                            "dinov2",  "dinov2_with_registers",
                                            "siglip",  "siglip_vision_model"};

void check_families(const std::string& from, const SideFiles& beside,
                    const std::string& architecture) {
  const Pattern families(kFamilies);
  std::vector<std::string> names;
  if (!architecture.empty()) names.push_back(architecture);
  const Value listed = beside.setting("architectures");
  if (names.empty() && listed.kind() == Value::Kind::array) {
    for (const Value& name : listed.items()) names.push_back(text_of(name));
  }
  const auto fits = [&](const std::string& name) { return families.matches(name); };
  if (names.empty() || std::ranges::any_of(names, fits)) return;
  refuse_contradiction(from, architecture.empty() ? "architectures" : "architecture",
                       printable(names[0]), "the names of a ViT");
}

void check_arguments(const Value& arguments) {
  for (const auto& [key, origin, value] : arguments.members("model_args")) {
    const bool off = value.kind() == Value::Kind::boolean && !value.as_bool();
    if (off || value.is_null() || std::ranges::find(kArguments, key) != std::end(kArguments)) {
      continue;
    }
    fail(
        "{}: {} of 'model_args' is not supported and may change what the network computes; "
        "choose a network without it",
        origin.text(), printable(key));
  }
}

}  // namespace

std::string text_of(const Value& value) {
  return value.kind() == Value::Kind::string ? value.as_string() : "";
}

void refuse_contradiction(const std::string& from, std::string_view key, const std::string& given,
                          const std::string& found) {
  fail("{}: config.json has {} {}, the tensors have {}", from, key, given, found);
}

void check_kind(const Tensors& tensors, const SideFiles& beside) {
  const std::string architecture = text_of(beside.setting("architecture"));
  const std::string type = text_of(beside.setting("model_type"));
  const auto refuse = [&](const char* pattern, const char* what) {
    if (!Pattern(pattern).matches(architecture)) return;
    fail("{}: {} {}", tensors.from, printable(architecture), what);
  };
  if (!type.empty() && std::ranges::find(kModelTypes, type) == std::end(kModelTypes)) {
    fail("{}: model_type {} of config.json is none of {}", tensors.from, printable(type),
         fmt::join(kModelTypes, ", "));
  }
  refuse(kRotaryOf,
         "has rotary positions or others that are no tensor; choose a network with learned "
         "positions alone");
  check_families(tensors.from, beside, architecture);
  if (!(architecture.empty() && type.empty()) && !tensors.has("position_embedding") &&
      text_of(beside.setting("pos_embed")) != "none") {
    fail("{}: tensor '{}' is missing", tensors.from, tensors.source("position_embedding"));
  }
  refuse(kPrefixPooledOf,
         "includes class token and registers in the mean of tokens, which no network here does; "
         "choose an architecture that leaves them out");
  const Value* const arguments = beside.model.find("model_args");
  if (arguments != nullptr && !arguments->is_null()) {
    with_errors_as_failures([&] { check_arguments(*arguments); });
  }
  refuse("_rpn_",
         "normalises after attention and MLPs, which no network here does; choose an architecture "
         "that normalises before them");
}

}  // namespace moesaic::vit
