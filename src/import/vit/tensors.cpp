// SPDX-License-Identifier: Apache-2.0
// Names of tensors in files of timm and Hugging Face, and networks whose tensors have the names of
// a ViT and that compute something else.
#include <ATen/ATen.h>

#include <algorithm>

#include "moesaic/base/pattern.h"
#include "moesaic/checkpoint/tensors.h"
#include "vit.h"

namespace moesaic::vit {
namespace {

/// A name in a file, as a pattern for the whole of it, and the name of our tensor, of which it is
/// the part `part`. "" drops the tensor.
struct NameRule {
  const char* pattern;
  const char* name;
  int part = 0;
};

// WB is `weight` or `bias`, BLOCK the number of a block, see expanded_pattern().
constexpr NameRule kNameRules[] = {
    {R"(.*mask_token|.*position_ids|(text_model|decoder)\..*|logit_(scale|bias))", ""},
    {R"((?:embeddings\.)?cls_token)", "cls"},
    {R"(dist_token|reg_token|(?:embeddings\.)?(?:register_tokens|distillation_token))",
     "registers"},
    {R"(pos_embed|embeddings\.position_embeddings?(?:\.weight)?)", "position_embedding"},
    {R"((?:patch_embed\.proj|embeddings\.patch_embedding(?:s\.projection)?)\.WB)",
     R"(embedding.\1)"},
    {R"(BLOCK\.(?:layer_)?norm([12])\.WB)", R"(blocks.\1.norm\2.\3)"},
    {R"(BLOCK\.layernorm_before\.WB)", R"(blocks.\1.norm1.\2)"},
    {R"(BLOCK\.layernorm_after\.WB)", R"(blocks.\1.norm2.\2)"},
    {R"(BLOCK\.attn\.qkv\.WB)", R"(blocks.\1.attention.qkv.\2)"},
    {R"(BLOCK\.(?:self_attn|attention(?:\.attention)?)\.q(?:uery|_proj)\.WB)",
     R"(blocks.\1.attention.qkv.\2)", 0},
    {R"(BLOCK\.(?:self_attn|attention(?:\.attention)?)\.k(?:ey|_proj)\.WB)",
     R"(blocks.\1.attention.qkv.\2)", 1},
    {R"(BLOCK\.(?:self_attn|attention(?:\.attention)?)\.v(?:alue|_proj)\.WB)",
     R"(blocks.\1.attention.qkv.\2)", 2},
    {R"(BLOCK\.(?:attn\.proj|attention\.output\.dense|(?:attention|self_attn)\.o(?:ut)?_proj)\.WB)",
     R"(blocks.\1.attention.out.\2)"},
    {R"(BLOCK\.(?:ls([12])\.gamma|layer_scale([12])\.lambda1))", R"(blocks.\1.scale\2\3)"},
    {R"(BLOCK\.mlp\.(fc[12])\.WB)", R"(blocks.\1.mlp.\2.\3)"},
    {R"(BLOCK\.intermediate\.dense\.WB)", R"(blocks.\1.mlp.fc1.\2)"},
    {R"(BLOCK\.output\.dense\.WB)", R"(blocks.\1.mlp.fc2.\2)"},
    {R"((?:norm|fc_norm|layernorm|post_layernorm)\.WB)", R"(norm.\1)"},
    {R"(attn_pool\.latent|head\.probe)", "map_head.probe"},
    {R"(attn_pool\.q\.WB)", R"(map_head.attention.qkv.\1)", 0},
    {R"(attn_pool\.kv\.WB)", R"(map_head.attention.qkv.\1)", 1},
    {R"(head\.attention\.in_proj_WB)", R"(map_head.attention.qkv.\1)"},
    {R"((?:attn_pool\.proj|head\.attention\.out_proj)\.WB)", R"(map_head.attention.out.\1)"},
    {R"((?:attn_pool\.norm|head\.layernorm)\.WB)", R"(map_head.norm.\1)"},
    {R"((?:attn_pool|head)\.mlp\.(fc[12])\.WB)", R"(map_head.mlp.\1.\2)"},
    {R"((?:pooler\.dense|pre_logits\.fc)\.WB)", R"(pre_logits.\1)"},
    {R"((?:head|(?:cls_)?classifier)\.WB)", R"(head.\1)", 0},
    {R"((?:head_dist|distillation_classifier)\.WB)", R"(head.\1)", 1}};

Pattern expanded_pattern(const NameRule& rule) {
  static const Pattern kWeightOrBias("WB"), kBlock("BLOCK");
  const std::string blocks = R"((?:blocks|layers|encoder\\.layers?)\\.(\\d{1,4}))";
  const std::string named = renamed(kWeightOrBias, "(weight|bias)", rule.pattern);
  return Pattern("^(?:" + renamed(kBlock, blocks, named) + ")$");
}

/// Hugging Face's names of the network within one with a head.
const Pattern& outer_name() {
  static const Pattern pattern(
      R"(^(?:(?:vit|deit|dinov2(?:_with_registers)?|siglip|vision_model)\.)+)");
  return pattern;
}

constexpr const char* kKnown =
    "import vit takes ViT, DeiT, DeiT3, DINOv2 and SigLIP, under timm's or Hugging Face's names";

bool is_head(std::string_view name) {
  return name.starts_with("head.");
}

/// Puts ".3." in the place of ".12." at the number of a block.
std::string of_block(const std::string& name, const std::string& from, const std::string& to) {
  const size_t at = name.find("." + from + ".");
  if (at == std::string::npos) return name;
  return name.substr(0, at + 1) + to + name.substr(at + 1 + from.size());
}

/// Returns the number of a block in one of our names, "" for a tensor of no block.
std::string block_of(const std::string& name) {
  const std::vector<std::string> words = split(name, '.');
  return words.size() > 2 && words.front() == "blocks" ? words[1] : "";
}

/// Returns the name of the bias beside a weight, or of the weight beside a bias.
std::string other_end(const std::string& name) {
  static const Pattern weight("weight$"), bias("bias$");
  return weight.matches(name) ? renamed(weight, "bias", name) : renamed(bias, "weight", name);
}

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

Tensors::Tensors(const fs::path& file) : from(file.string()) {
  static const std::vector<Pattern> patterns = [] {
    std::vector<Pattern> list;
    for (const NameRule& rule : kNameRules) list.push_back(expanded_pattern(rule));
    return list;
  }();
  std::vector<std::string> unknown;
  for (auto& [source, values] : read_weights(file, /*mmap=*/true)) {
    ++count;
    const std::string inner = renamed(outer_name(), "", source);
    const auto found = std::ranges::find_if(
        patterns, [&](const Pattern& pattern) { return pattern.matches(inner); });
    if (found == patterns.end()) {
      unknown.push_back(source);
      continue;
    }
    const NameRule& rule = kNameRules[found - patterns.begin()];
    if (*rule.name == '\0') {
      dropped.push_back(source);
      continue;
    }
    if (!values.is_floating_point() || values.numel() == 0) {
      fail("{}: tensor '{}' is {} {}; a parameter is of real numbers and not empty", from, source,
           c10::toString(values.scalar_type()), shape_text(values.sizes().vec()));
    }
    Parts& parts = places_[renamed(*found, rule.name, inner)];
    const auto [other, is_first] = parts.emplace(rule.part, Part{source, values});
    if (!is_first) {
      fail("{}: tensors '{}' and '{}' are the same parameter", from, other->second.source, source);
    }
  }
  if (unknown.empty() && has("embedding.weight")) return;
  if (!unknown.empty()) {
    const auto is_known = [&](const std::string& source) {
      const std::string inner = renamed(outer_name(), "", source);
      return std::ranges::any_of(patterns, [&](const auto& each) { return each.matches(inner); });
    };
    const std::string prefix = unknown[0].substr(0, unknown[0].find('.') + 1);
    const bool prefixed =
        places_.empty() && std::ranges::all_of(unknown, [&](const std::string& name) {
          return name.starts_with(prefix) && is_known(name.substr(prefix.size()));
        });
    if (prefixed) fail("{}: all names begin with '{}'; remove the prefix", from, prefix);
    fail("{}: {} of another kind of network: {}; {}", from,
         count_text(std::ssize(unknown), "tensor"), quoted_names(unknown), kKnown);
  }
  fail("{}: no patch embedding, such as 'patch_embed.proj.weight'; {}", from, kKnown);
}

std::vector<int64_t> Tensors::shape(const std::string& name) const {
  const Parts& parts = places_.at(name);
  std::vector<int64_t> shape = parts.begin()->second.values.sizes().vec();
  const bool side_by_side = is_head(name) && shape.size() == 2;
  if (shape.empty() || (is_head(name) && !side_by_side)) return shape;
  int64_t& size = side_by_side ? shape.back() : shape.front();
  size = 0;
  for (const auto& [unused, part] : parts) {
    std::vector<int64_t> own = part.values.sizes().vec();
    if (own.size() == shape.size()) size += side_by_side ? own.back() : own.front();
  }
  return shape;
}

at::Tensor Tensors::values(const std::string& name) const {
  std::vector<at::Tensor> parts;
  for (const auto& [unused, part] : places_.at(name)) parts.push_back(part.values.to(at::kFloat));
  if (parts.size() == 1) return parts.front();
  for (const at::Tensor& part : parts) {
    const bool fits = is_head(name) ? part.sizes() == parts.front().sizes()
                                    : part.sizes().slice(1) == parts.front().sizes().slice(1);
    if (!fits) {
      fail("{}: tensors {} are {} and {}, which are no parts of one", from, source(name),
           shape_text(parts.front().sizes().vec()), shape_text(part.sizes().vec()));
    }
  }
  if (!is_head(name)) return at::cat(parts);
  if (parts.front().dim() == 2) return at::cat(parts, 1) * 0.5;
  return (parts.front() + parts.back()) * 0.5;
}

std::string Tensors::source(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) return likely_source(name, 0);
  const bool more = found->second.size() > 1;
  return found->second.begin()->second.source + (more ? " + ..." : "");
}

std::string Tensors::likely_source(const std::string& name, int part) const {
  const std::string block = block_of(name);
  for (const auto& [other, parts] : places_) {
    const std::string number = block_of(other);
    const auto found = parts.find(part);
    if (block.empty() || number.empty() || found == parts.end()) continue;
    if (of_block(other, number, block) == name) {
      return of_block(found->second.source, number, block);
    }
  }
  const auto sibling = places_.find(other_end(name));
  if (sibling != places_.end() && sibling->second.contains(part)) {
    return other_end(sibling->second.at(part).source);
  }
  if (name == "cls") return "cls_token";
  if (name != "position_embedding") return name;
  return any_source_has("patch_embed.") ? "pos_embed" : "embeddings.position_embeddings";
}

std::vector<std::string> Tensors::missing_parts(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end() || found->second.size() == 1 || is_head(name)) return {};
  const int count = name.starts_with("map_head.") ? 2 : 3;
  std::vector<std::string> missing;
  for (int part = 0; part < count; ++part) {
    if (!found->second.contains(part)) missing.push_back(likely_source(name, part));
  }
  return missing;
}

void Tensors::drop(std::string_view prefix) {
  std::erase_if(places_, [&](const auto& place) {
    if (!place.first.starts_with(prefix)) return false;
    for (const auto& [unused, part] : place.second) dropped.push_back(part.source);
    return true;
  });
}

std::vector<std::string> Tensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, unused] : places_) names.push_back(name);
  return names;
}

bool Tensors::any_source_has(std::string_view text) const {
  for (const auto& [unused, parts] : places_) {
    for (const auto& [number, part] : parts) {
      if (part.source.find(text) != std::string::npos) return true;
    }
  }
  return false;
}

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
