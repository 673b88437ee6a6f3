// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/vmoe/vmoe.h"

#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/nn/batch_shard.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/patches.h"
#include "moesaic/nn/script.h"

namespace moesaic {
namespace {

nn::MoELayerOptions moe_options(const VMoEConfig& config, int64_t block) {
  const VMoEMoeConfig& moe = config.encoder.moe;
  nn::MoELayerOptions options;
  options.width = config.hidden_size;
  options.hidden = config.encoder.expert_dim();
  options.activation = activation_from_name(config.encoder.activation);
  options.num_experts = moe.num_experts;
  options.num_members = moe.ensemble_size;
  options.bfloat16 = moe.router.bfloat16;
  options.dropout = moe.dropout_rate.value_or(config.encoder.dropout_rate);
  options.shared_init = !moe.split_rngs;
  options.rule = route_options(moe.router, config.group_size());
  options.noise.scale = moe.router.noise == kNoiseNever ? 0.0 : moe.router.noise_std;
  if (moe.router.noise == kNoiseAlways) options.evaluation_seed = static_cast<uint64_t>(block);
  const auto kept = moe.kept_experts.find(std::to_string(block));
  const bool pruned = kept != moe.kept_experts.end() && std::ssize(kept->second) < moe.num_experts;
  if (pruned) options.rule.kept = kept->second;
  options.mean_replacement = moe.mean_replacement;
  if (const auto into = moe.merged_into.find(std::to_string(block));
      into != moe.merged_into.end()) {
    options.merged_into = into->second;
  }
  return options;
}

nn::AttentionOptions attention_options(const VMoEConfig& config) {
  return {.width = config.hidden_size,
          .num_heads = config.encoder.num_heads,
          .qk_norm = config.encoder.attention_qk_norm,
          .dropout = config.encoder.attention_dropout_rate};
}

bool has_experts(const VMoEConfig& config, int64_t block) {
  return std::ranges::count(config.encoder.moe.layers, block) > 0;
}

nn::MlpOptions mlp_options(const VMoEConfig& config, double dropout) {
  return {.width = config.hidden_size,
          .hidden = config.encoder.mlp_dim,
          .dropout = dropout,
          .activation = activation_from_name(config.encoder.activation)};
}

nn::EncoderBlockOptions block_options(const VMoEConfig& config, int64_t block) {
  nn::EncoderBlockOptions options{
      .attention = attention_options(config),
      .mlp = mlp_options(config, config.encoder.dropout_rate),
      .epsilon = config.encoder.layer_norm_eps,
      .drop_path = config.encoder.drop_path_rate * static_cast<double>(block) /
                   static_cast<double>(std::max<int64_t>(1, config.encoder.num_layers - 1)),
      .layer_scale = config.encoder.layer_scale,
      .moe = std::nullopt};
  if (has_experts(config, block)) options.moe = moe_options(config, block);
  return options;
}

/// Returns the embeddings [1, h * w, d] of patches in row y and column x: sin(x w), cos(x w),
/// sin(y w), cos(y w), where w falls from 1 to 1 / temperature over the d / 4 columns of each. Each
/// step is rounded to float32, as in the reference.
at::Tensor sincos2d(const VMoEConfig& config) {
  const Size2d grid = config.grid();
  const int64_t waves = config.hidden_size / 4;
  const double temperature = static_cast<float>(config.encoder.position_emb.temperature);
  const auto rounded = [](const at::Tensor& x) { return x.to(at::kFloat); };
  const at::Tensor exponent = at::arange(waves, at::kFloat) / static_cast<double>(waves - 1);
  const at::Tensor omega = at::reciprocal(rounded(at::pow(temperature, exponent.to(at::kDouble))));
  const auto angles = [&](const at::Tensor& place) {
    return at::outer(place.reshape({-1}), omega).to(at::kDouble);
  };
  const auto steps = [&](int64_t count) { return at::arange(count, at::kFloat); };
  const at::Tensor x = angles(steps(grid.width).repeat({grid.height}));
  const at::Tensor y = angles(steps(grid.height).repeat_interleave(grid.width));
  return rounded(at::cat({x.sin(), x.cos(), y.sin(), y.cos()}, 1)).unsqueeze(0);
}

/// Returns the multiplications of the stem for an image.
double stem_products(const VMoEConfig& config) {
  double products = 0.0;
  int64_t pixels = config.image_size.height * config.image_size.width, inputs = config.channels;
  for (const nn::StemLayer& layer : config.stem) {
    pixels /= layer.stride * layer.stride;
    products +=
        9.0 * static_cast<double>(pixels * layer.channels * std::exchange(inputs, layer.channels));
  }
  return products;
}

torch::nn::Linear fresh_head(const VMoEConfig& config) {
  torch::nn::Linear linear(config.pre_logits_size(), config.num_classes);
  const torch::NoGradGuard no_grad;
  linear->weight.zero_();
  linear->bias.fill_(config.head_bias_init.value_or(-std::log(config.num_classes)));
  return linear;
}

constexpr char kEmbedding[] = R"(
def forward(self, images: Tensor) -> Tensor:
    x = torch.conv2d(images, self.weight, self.bias, [{patch_height}, {patch_width}])
    return x.flatten(2).transpose(1, 2)
)";

constexpr char kPositions[] = R"(
def forward(self, x: Tensor) -> Tensor:
    return x + self.waves
)";

/// Returns the expression of what the head gets of tokens x.
std::string pooled_source(const VMoEConfig& config) {
  const int64_t prefix = config.num_prefix_tokens();
  const std::string patches = prefix > 0 ? fmt::format("x[:, {}:]", prefix) : "x";
  if (config.has_map_head()) return fmt::format("self.map_head.forward({})", patches);
  if (config.classifier == kPoolMean) return patches + ".mean([1])";
  if (config.classifier == kPoolTokens) return fmt::format("x[:, :{}].flatten(1)", prefix);
  if (config.classifier == kPoolTokenAndMean) {
    return fmt::format("torch.cat([x[:, 0], {}.mean([1])], 1)", patches);
  }
  return "x[:, 0]";
}

std::string forward_source(const VMoE& from) {
  std::string source = script::input_check_source(from.input_shape()) +
                       fmt::format("    x = self.embedding.forward({})\n",
                                   from.stem.is_empty() ? "images" : "self.stem.forward(images)");
  if (from.sincos_position_embedding().defined()) source += "    x = self.positions.forward(x)\n";
  const auto before = [&](const char* tokens) {
    source += fmt::format("    x = torch.cat([self.{}.expand([images.size(0), -1, -1]), x], 1)\n",
                          tokens);
  };
  const bool early = from.embeds_class_token();
  if (early) before("cls");
  if (from.position_embedding.defined()) source += "    x = x + self.position_embedding\n";
  if (from.registers.defined()) before("registers");
  if (from.cls.defined() && !early) before("cls");
  const std::vector<MoEBlock> with_experts = from.moe_blocks();
  for (size_t block = 0; block < from.blocks->size(); ++block) {
    const bool divides = from.num_members() > 1 && !with_experts.empty() &&
                         with_experts.front().block == static_cast<int64_t>(block);
    if (divides) source += fmt::format("    x = x.repeat_interleave({}, 0)\n", from.num_members());
    source += fmt::format("    x = getattr(self.blocks, \"{}\").forward(x)\n", block);
  }
  const bool norm_last = from.settings().norm_after_pooling;
  if (!norm_last) source += "    x = self.norm.forward(x)\n";
  source += fmt::format("    x = {}\n", pooled_source(from.settings()));
  if (norm_last) source += "    x = self.norm.forward(x)\n";
  if (!from.pre_logits.is_empty()) source += "    x = torch.tanh(self.pre_logits.forward(x))\n";
  source += from.head.is_empty() ? "    return x\n" : "    return self.head.forward(x)\n";
  return source;
}

}  // namespace

VMoE::VMoE(VMoEConfig config, uint64_t seed) : config_(std::move(config)) {
  const ConfigProblem problem = config_problem(config_);
  if (!problem.empty()) fail_usage("vmoe: {}", problem.text);
  at::Generator generator = nn::make_generator(seed);
  const int64_t width = config_.hidden_size;
  const Size2d patch = config_.embedding_patch_size();
  int64_t inputs = config_.channels;

  if (!config_.stem.empty()) {
    stem = register_module("stem", nn::ConvStem(inputs, config_.stem, generator));
    inputs = config_.stem.back().channels;
  }
  const torch::ExpandingArray<2> kernel({patch.height, patch.width});
  embedding = register_module(
      "embedding",
      torch::nn::Conv2d(torch::nn::Conv2dOptions(inputs, width, kernel).stride(kernel)));
  nn::lecun_normal(embedding->weight, inputs * patch.height * patch.width, generator);
  if (config_.has_class_token()) {
    cls = register_parameter("cls", torch::zeros({1, 1, width}));
  }
  if (config_.num_registers > 0) {
    registers = register_parameter(
        "registers", torch::empty({1, config_.num_registers, width}).normal_(0.0, 0.02, generator));
  }
  if (config_.has_learned_positions()) {
    position_embedding = register_parameter(
        "position_embedding",
        torch::empty({1, config_.num_embedded_tokens(), width}).normal_(0.0, 0.02, generator));
  } else if (config_.encoder.position_emb.name == kSinCos2d) {
    sincos_position_embedding_ = sincos2d(config_);
  }
  blocks = register_module("blocks", torch::nn::ModuleList());
  for (int64_t block = 0; block < config_.encoder.num_layers; ++block) {
    blocks->push_back(nn::EncoderBlock(block_options(config_, block), generator));
  }
  norm = register_module("norm", nn::make_layer_norm(width, config_.encoder.layer_norm_eps));
  if (config_.has_map_head()) {
    nn::AttentionOptions options = attention_options(config_);
    options.qk_norm = config_.has_map_head_qk_norm();
    map_head = register_module("map_head", nn::MapHead(options, mlp_options(config_, 0.0),
                                                       generator, config_.encoder.layer_norm_eps));
  }
  if (config_.representation_size > 0) {
    const int64_t pooled = config_.pooled_size();
    pre_logits =
        register_module("pre_logits", torch::nn::Linear(pooled, config_.representation_size));
    nn::lecun_normal(pre_logits->weight, pooled, generator);
  }
  if (config_.has_head()) head = register_module("head", fresh_head(config_));
  const torch::NoGradGuard no_grad;
  embedding->bias.zero_();
  if (!pre_logits.is_empty()) pre_logits->bias.zero_();
}

void VMoE::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  Model::to(device, dtype, non_blocking);
  move_positions(device, non_blocking);
}

void VMoE::to(torch::Device device, bool non_blocking) {
  Model::to(device, non_blocking);
  move_positions(device, non_blocking);
}

void VMoE::move_positions(torch::Device device, bool non_blocking) {
  if (sincos_position_embedding_.defined())
    sincos_position_embedding_ = sincos_position_embedding_.to(device, non_blocking);
}

at::Tensor VMoE::embed(const at::Tensor& images_BCHW) {
  const at::Tensor maps = stem.is_empty() ? images_BCHW : stem->forward(images_BCHW);
  // A convolution whose patches do not overlap. Its gradient in bfloat16 would take a fifth of a
  // step on a CPU, and its result would lie channel by channel.
  at::Tensor x_BTd = at::linear(nn::patches_of(maps, config_.embedding_patch_size()),
                                embedding->weight.flatten(1), embedding->bias);
  const auto before = [&](const at::Tensor& tokens, const at::Tensor& x) {
    return tokens.defined() ? torch::cat({tokens.expand({x.size(0), -1, -1}), x}, 1) : x;
  };
  if (sincos_position_embedding_.defined()) x_BTd = x_BTd + sincos_position_embedding_;
  const bool early = embeds_class_token();
  if (early) x_BTd = before(cls, x_BTd);
  if (position_embedding.defined()) x_BTd = x_BTd + position_embedding;
  x_BTd = before(registers, x_BTd);
  return early ? x_BTd : before(cls, x_BTd);
}

at::Tensor VMoE::pool(const at::Tensor& x_BTd) {
  const int64_t prefix = config_.num_prefix_tokens();
  const at::Tensor patches_BPd = prefix > 0 ? x_BTd.slice(1, prefix) : x_BTd;
  at::Tensor x_Bd;
  if (!map_head.is_empty()) {
    x_Bd = map_head->forward(patches_BPd);
  } else if (config_.classifier == kPoolMean) {
    x_Bd = patches_BPd.mean(1);
  } else if (config_.classifier == kPoolTokens) {
    x_Bd = x_BTd.slice(1, 0, prefix).flatten(1);
  } else {
    x_Bd = x_BTd.select(1, 0);
    if (config_.classifier == kPoolTokenAndMean) x_Bd = torch::cat({x_Bd, patches_BPd.mean(1)}, 1);
  }
  if (config_.norm_after_pooling) x_Bd = norm->forward(x_Bd);
  return pre_logits.is_empty() ? x_Bd : pre_logits->forward(x_Bd).tanh();
}

ModelOutput VMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "images", images_BCHW);
  ModelOutput out;
  at::Tensor x_BTd = embed(images_BCHW);
  x_BTd =
      nn::dropout(x_BTd, is_training() ? config_.encoder.dropout_rate : 0.0, random, batch_shard());
  for (size_t block = 0; block < blocks->size(); ++block) {
    const auto encoder = std::dynamic_pointer_cast<nn::EncoderBlockImpl>(blocks->ptr(block));
    const bool divides = out.routings.empty() && !encoder->moe.is_empty() && num_members() > 1;
    if (divides) x_BTd = x_BTd.repeat_interleave(num_members(), 0);
    auto result = activation_checkpointing() ? nn::forward_checkpointed(encoder, x_BTd, random)
                                             : encoder->forward(x_BTd, random);
    x_BTd = result.x_BTd;
    if (!result.moe) continue;
    out.routings.push_back(*result.moe);
    out.routings.back().block = static_cast<int64_t>(block);
  }
  if (!config_.norm_after_pooling) x_BTd = norm->forward(x_BTd);
  out.pre_logits = pool(x_BTd);
  out.logits = head.is_empty() ? out.pre_logits : head->forward(out.pre_logits);
  return out;
}

void VMoE::set_first_sample_index(int64_t image) {
  for (MoEBlock& block : moe_blocks())
    block.layer->router->set_first_token_index(image * tokens_per_image());
}

Json VMoE::config() const {
  VMoEConfig config = config_;
  VMoEMoeConfig& moe = config.encoder.moe;
  moe.kept_experts.clear();
  moe.mean_replacement = false;
  moe.merged_into.clear();
  for (const MoEBlock& block : moe_blocks()) {
    if (!block.layer->is_pruned()) continue;
    moe.kept_experts[std::to_string(block.block)] = block.layer->kept();
    if (!block.layer->merged_into.empty()) {
      moe.merged_into[std::to_string(block.block)] = block.layer->merged_into;
    }
    moe.mean_replacement |= block.layer->replacement_outputs.defined();
    if (block.layer->options().rule.pruned == PrunedSelection::reroute) {
      moe.router.pruned = PrunedSelection::reroute;
    }
  }
  return to_json(config);
}

Json VMoE::constants() const {
  const VMoEEncoderConfig& encoder = config_.encoder;
  return {{"layer_norm_eps", encoder.layer_norm_eps},
          {"gelu", encoder.activation == "gelu" ? "erf" : "tanh"}};
}

void VMoE::reset_head(int64_t classes) {
  config_.num_classes = classes;
  head = head.is_empty() ? register_module("head", fresh_head(config_))
                         : replace_module("head", fresh_head(config_));
}

std::map<std::string, double> VMoE::aux_losses() const {
  const VMoERouterConfig& router = config_.encoder.moe.router;
  std::map<std::string, double> weights = {{"importance", router.importance_loss_weight},
                                           {"load", router.load_loss_weight},
                                           {"gshard", router.gshard_loss_weight}};
  std::erase_if(weights, [](const auto& item) { return item.second == 0.0; });
  return weights;
}

std::vector<MoEBlock> VMoE::moe_blocks() const {
  std::vector<MoEBlock> list;
  for (size_t block = 0; block < blocks->size(); ++block) {
    const auto encoder = std::dynamic_pointer_cast<nn::EncoderBlockImpl>(blocks->ptr(block));
    if (!encoder->moe.is_empty()) list.push_back({static_cast<int64_t>(block), encoder->moe});
  }
  return list;
}

double VMoE::flops_per_image(const RowsPerToken& rows_per_token) const {
  const auto T = static_cast<double>(config_.num_tokens());
  const auto d = static_cast<double>(config_.hidden_size);
  const auto m = static_cast<double>(config_.encoder.mlp_dim);
  const auto& moe = config_.encoder.moe;
  const auto expert = static_cast<double>(config_.encoder.expert_dim());
  double products = stem_products(config_) + static_cast<double>(config_.num_patches()) *
                                                 static_cast<double>(embedding->weight.numel());
  const double attention = T * d * 3 * d + 2 * T * T * d + T * d * d;
  double views = 1.0;  // of an image: one before the first MoE block, then one for each member
  for (int64_t block = 0; block < config_.encoder.num_layers; ++block) {
    if (!has_experts(config_, block)) {
      products += views * (attention + 2 * T * d * m);
      continue;
    }
    views = static_cast<double>(num_members());
    const auto found = rows_per_token.find(block);
    const double rows =
        found == rows_per_token.end()
            ? nn::rows_per_token(route_options(config_.encoder.moe.router, config_.group_size()),
                                 tokens_per_image(), moe.num_experts)
            : found->second;
    products += views * (attention + T * d * static_cast<double>(moe.num_experts) +
                         rows * T * 2 * d * expert);
  }
  for (const MoEBlock& block : moe_blocks()) {
    products += views * T * replacement_flops(block.layer) / 2;
  }
  if (!map_head.is_empty()) products += views * (2 * d * d + T * 2 * d * d + 2 * T * d + 2 * d * m);
  const auto representation = static_cast<double>(config_.pre_logits_size());
  if (!pre_logits.is_empty()) {
    products += views * static_cast<double>(pre_logits->weight.numel());
  }
  return 2 * (products + views * representation * static_cast<double>(config_.num_classes));
}

// Functions of VMoE for fine-tuning, pruning and export.

SettingPaths VMoE::setting_paths() const {
  const std::string moe = "encoder.moe.", router = moe + "router.";
  return {.router_name = router + "name",
          .router_noise = router + "noise_std",
          .rows_per_expert = router + "num_selected_tokens",
          .capacity_factor = router + "dispatcher.capacity_factor",
          .evaluation_capacity_factor = router + "dispatcher.evaluation_capacity_factor",
          .group_size =
              moe + (settings().encoder.moe.group_size > 0 ? "group_size" : "num_group_images"),
          .members = moe + "ensemble_size",
          .classes = "num_classes",
          .image_size = "image_size",
          .channels = "channels",
          .kept_experts = moe + "kept_experts",
          .merged_into = moe + "merged_into",
          .pruned_selection = router + "pruned_selection"};
}

bool VMoE::may_differ_from_pretrained(const std::string& parameter) const {
  return parameter.starts_with("pre_logits") || parameter == "position_embedding" ||
         Model::may_differ_from_pretrained(parameter);
}

std::optional<int64_t> VMoE::layers_after(const std::string& parameter) const {
  const std::string module = parameter.substr(0, parameter.find('.'));
  const int64_t num_blocks = config_.encoder.num_layers;
  if (module == "head" || module == "pre_logits" || module == "map_head") return 0;
  if (module == "norm") return config_.norm_after_pooling ? 0 : 1;  // As timm's `fc_norm`.
  if (module != "blocks") return num_blocks + 1;
  return num_blocks - std::stoll(parameter.substr(module.size() + 1));
}

std::optional<torch::jit::Module> VMoE::torchscript(const script::Context& context) const {
  script::Children layers;
  for (size_t block = 0; block < blocks->size(); ++block) {
    const auto encoder = std::dynamic_pointer_cast<nn::EncoderBlockImpl>(blocks->ptr(block));
    layers.emplace_back(std::to_string(block), script::make_encoder_block(context, *encoder));
  }
  const Size2d patch = config_.embedding_patch_size();
  const std::string embed = fmt::format(kEmbedding, fmt::arg("patch_height", patch.height),
                                        fmt::arg("patch_width", patch.width));
  script::Children children = {
      {"embedding", script::make_module(context, "PatchEmbedding", *embedding, {}, embed)},
      {"blocks", script::make_module(context, "Blocks", *blocks, layers, "")},
      {"norm", script::make_layer_norm(context, *norm)}};
  if (!stem.is_empty()) {
    const auto convolve = [&](const at::Tensor& x) { return stem.ptr()->forward(x); };
    children.emplace_back("stem",
                          script::make_traced(context, *stem.ptr(), convolve, input_shape()));
  }
  if (sincos_position_embedding_.defined()) {
    torch::nn::Module holder("positions");
    holder.register_buffer("waves", sincos_position_embedding_);
    children.emplace_back("positions",
                          script::make_module(context, "PositionWaves", holder, {}, kPositions));
  }
  if (!head.is_empty()) children.emplace_back("head", script::make_linear(context, *head));
  if (!map_head.is_empty()) {
    children.emplace_back("map_head", script::make_map_head(context, *map_head.ptr()));
  }
  if (!pre_logits.is_empty()) {
    children.emplace_back("pre_logits", script::make_linear(context, *pre_logits));
  }
  return script::make_module(context, "VMoE", *this, children, forward_source(*this));
}

}  // namespace moesaic
