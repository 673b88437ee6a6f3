// SPDX-License-Identifier: Apache-2.0
// The configuration of a network whose weights are in a file, from shapes and config.json.

#include <algorithm>
#include <cmath>

#include "moesaic/base/path.h"
#include "moesaic/base/pattern.h"
#include "moesaic/base/suggestions.h"
#include "vit.h"

namespace moesaic::vit {
namespace {

constexpr int64_t kHeadWidth = 64;

/// What timm's names of architectures say beyond the tensors: those with heads of another width
/// than kHeadWidth, and those with the approximate GELU. The first match counts.
struct HeadsOf {
  const char* pattern;
  int64_t num_heads;
};
constexpr HeadsOf kHeadsOf[] = {{"_(huge|giant|giantopt|gigantic|so400m)_", 16},
                                {"^vit_base_patch16_gap", 16},
                                {"^test_vit4", 3},
                                {"^test_vit", 2}};
constexpr const char* kTanhOf =
    "^vit_((base_patch32|so400m_patch16|giantopt_patch16)_siglip|large_patch16_siglip(_gap)?_512)";

/// Networks of timm whose class token has no position.
constexpr const char* kNoEmbedClassOf = "^deit3|^flexivit|_(xp|reg[0-9]+|radio)";
Value read_object(const fs::path& file) {
  if (!path_exists(file)) return {};
  Value value = read_stored(file, kMaxListBytes);
  with_errors_as_failures([&] { value.members(file.filename().string()); });
  return value;
}

/// Returns a setting of the first of these objects that has it, or else of `model` itself.
Value found_in(const Value& model, std::initializer_list<const char*> objects,
               std::string_view key) {
  for (const char* inner : objects) {
    const Value* const object = model.find(inner);
    const Value* const found = object == nullptr ? nullptr : object->find(key);
    if (found != nullptr && !found->is_null()) return *found;
  }
  const Value* const found = model.find(key);
  return found == nullptr ? Value() : *found;
}

std::optional<Size2d> sides_of(const Value& value) {
  if (value.is_null()) return std::nullopt;
  return with_errors_as_failures([&] {
    if (value.kind() != Value::Kind::array) return Size2d(value.as_int("the size of images"));
    const Value::Array& sides = value.items();  // timm's have the channels first.
    if (sides.size() < 2) fail("{}: two sides of an image expected", value.where());
    return Size2d{sides[sides.size() - 2].as_int("height"), sides.back().as_int("width")};
  });
}

class SettingsReader {
 public:
  SettingsReader(Tensors& tensors, const SideFiles& beside, const ImportVitOptions& options)
      : tensors_(tensors), beside_(beside), options_(options) {
    check_kind(tensors, beside);
    sizes();
    heads();
    arithmetic();
    tokens();
    pooling();
    positions();
    upcycling();
    config_ = parse<VMoEConfig>(Value::from_json(to_json(config_), tensors.from), "model");
  }

  Network take() { return std::move(network_); }

 private:
  std::vector<int64_t> need(const std::string& name, size_t rank) const {
    if (!tensors_.has(name)) {
      fail("{}: tensor '{}' is missing", tensors_.from, tensors_.source(name));
    }
    std::vector<int64_t> shape = tensors_.shape(name);
    if (shape.size() == rank) return shape;
    fail("{}: tensor '{}' is {}, which must have {} axes", tensors_.from, tensors_.source(name),
         shape_text(shape), rank);
  }
  bool has(const std::string& name) const { return tensors_.has(name); }
  void note(std::string text) { network_.notes.push_back(std::move(text)); }

  std::string architecture() const { return text_of(beside_.setting("architecture")); }
  /// Returns whether config.json tells which network this is, so that defaults are known.
  bool is_described() const {
    return !architecture().empty() || !text_of(beside_.setting("model_type")).empty() ||
           beside_.model.find("model_args") != nullptr;
  }

  /// Refuses a value of config.json, times a number where that is whole, that is not the tensors'.
  void agree(std::initializer_list<const char*> keys, int64_t found, const std::string& text,
             int64_t times = 1) const {
    for (const char* key : keys) {
      const Value given = beside_.setting(key);
      if (given.is_null()) continue;
      const double stated = static_cast<double>(times) *
                            with_errors_as_failures([&] { return given.as_double(key); });
      if (stated == static_cast<double>(found)) continue;
      if (times > 1 && stated != std::floor(stated)) continue;
      refuse_contradiction(tensors_.from, key, given.to_json().dump(), text);
    }
  }
  void sizes() {
    const std::vector<int64_t> kernel = need("embedding.weight", 4);
    config_.hidden_size = kernel[0];
    config_.channels = kernel[1];
    config_.patch_size = {kernel[2], kernel[3]};
    std::set<int64_t> blocks;
    for (const std::string& name : tensors_.names()) {
      if (!name.starts_with("blocks.")) continue;
      blocks.insert(*parsed_number<int64_t>(split(name, '.')[1]));
    }
    for (int64_t i = 0; const int64_t block : blocks) {
      if (block != i) fail("{}: no tensors of block {}", tensors_.from, i);
      ++i;
    }
    if (blocks.empty()) fail("{}: no tensors of blocks", tensors_.from);
    config_.encoder.num_layers = std::ssize(blocks);
    config_.encoder.mlp_dim = need("blocks.0.mlp.fc1.weight", 2)[0];
    if (2 * need("blocks.0.mlp.fc2.weight", 2)[1] == config_.encoder.mlp_dim) {
      fail("{}: its MLPs are SwiGLU, which no network here has; choose a ViT whose MLPs are GELU",
           tensors_.from);
    }
    check_sizes();
  }

  void check_sizes() const {
    const int64_t width = config_.hidden_size, hidden = config_.encoder.mlp_dim;
    const std::string mlps = fmt::format("MLPs of width {}", hidden);
    agree({"depth", "num_hidden_layers"}, config_.encoder.num_layers,
          count_text(config_.encoder.num_layers, "block"));
    agree({"embed_dim", "hidden_size"}, width, fmt::format("width {}", width));
    agree({"intermediate_size"}, hidden, mlps);
    agree({"mlp_ratio"}, hidden, mlps, width);
    const Size2d& patch = config_.patch_size;
    const Value given = beside_.setting("patch_size");
    if (sides_of(given).value_or(patch) == patch) return;
    refuse_contradiction(tensors_.from, "patch_size", given.to_json().dump(),
                         fmt::format("patches of {} x {}", patch.height, patch.width));
  }

  void heads() {
    const int64_t width = config_.hidden_size;
    const Value of_hugging_face = beside_.setting("num_attention_heads");
    const Value of_timm = beside_.setting("num_heads");
    const Value& given = of_hugging_face.is_null() ? of_timm : of_hugging_face;
    int64_t& heads = config_.encoder.num_heads;
    if (!given.is_null()) {
      heads = with_errors_as_failures([&] { return given.as_int("the number of heads"); });
      if (options_.num_heads && *options_.num_heads != heads) {
        fail_usage("{}: --num-heads is {}, the network's own number is {}; leave it out",
                   given.where(), *options_.num_heads, heads);
      }
    } else if (options_.num_heads) {
      heads = *options_.num_heads;
    } else if (const auto known = known_heads()) {
      heads = *known;
    } else {
      heads = width % kHeadWidth == 0 ? width / kHeadWidth : 0;
      if (heads == 0) {
        fail_usage(
            "{}: no file states the number of heads, and {} is no multiple of {}; give "
            "--num-heads N",
            tensors_.from, width, kHeadWidth);
      }
      note(fmt::format("{} assumed: heads of width {}", count_text(heads, "head"), kHeadWidth));
    }
    if (heads >= 1 && width % heads == 0) return;
    fail_usage("{}: {} heads do not divide the width {}; choose --num-heads {}", tensors_.from,
               heads, width, nearest_divisor(width, heads));
  }

  std::optional<int64_t> known_heads() const {
    const std::string architecture = this->architecture();
    for (const auto& [pattern, heads] : kHeadsOf) {
      if (Pattern(pattern).matches(architecture)) return heads;
    }
    return std::nullopt;
  }

  /// The activation and the epsilon.
  void arithmetic() {
    const bool siglip = tensors_.any_source_has(".self_attn.");
    const std::string architecture = this->architecture();
    const bool approximate = siglip || Pattern(kTanhOf).matches(architecture);
    config_.encoder.activation = approximate ? "gelu_tanh" : "gelu";
    std::string name = text_of(beside_.setting("hidden_act"));
    if (name.empty()) name = text_of(beside_.setting("act_layer"));
    if (name.empty() && architecture.find("quickgelu") != std::string::npos) name = "quick_gelu";
    if (name == "gelu_pytorch_tanh" || name == "gelu_new" || name == "gelu_tanh") {
      config_.encoder.activation = "gelu_tanh";
    } else if (name == "gelu") {
      config_.encoder.activation = "gelu";
    } else if (!name.empty()) {
      fail("{}: the activation must be 'gelu' or 'gelu_pytorch_tanh', found {}", tensors_.from,
           printable(name));
    }
    const Value epsilon = beside_.setting("layer_norm_eps");
    if (!epsilon.is_null()) {
      config_.encoder.layer_norm_eps =
          with_errors_as_failures([&] { return epsilon.as_double("layer_norm_eps"); });
    } else if (tensors_.any_source_has("layernorm_before")) {
      config_.encoder.layer_norm_eps = 1e-12;  // The default of Hugging Face's ViT and DeiT.
    }
    if (has("blocks.0.scale1")) config_.encoder.layer_scale = 1e-5;  // The file has the values.
    const std::string bias = "blocks.0.attention.qkv.bias";
    if (!has(bias)) note("queries, keys and values have no biases: zeros");
  }

  void tokens() {
    config_.class_token = has("cls");
    if (has("registers")) config_.num_registers = need("registers", 3)[1];
  }

  void pooling() {
    const bool siglip_classifier =
        has("map_head.probe") && has("head.weight") && tensors_.any_source_has(".self_attn.");
    if (siglip_classifier) tensors_.drop("map_head.");
    // Beside a classifier Hugging Face's pooler is unused, timm's pre_logits stand before it.
    if (has("head.weight") && tensors_.any_source_has("pooler.")) tensors_.drop("pre_logits.");
    const bool distilled = tensors_.any_source_has("head_dist.") ||
                           tensors_.any_source_has("distillation_classifier.");
    const bool of_hugging_face = tensors_.any_source_has(".lambda1");
    const int64_t width = config_.hidden_size;
    config_.classifier = choose_pooling();
    config_.norm_after_pooling =
        config_.classifier == kPoolMean && tensors_.any_source_has("fc_norm.");
    config_.num_classes = 0;
    if (has("head.weight") || (has("head.bias") && !options_.num_classes)) {
      const std::vector<int64_t> head = need("head.weight", 2);
      config_.num_classes = head[0];
      if (!options_.num_classes) check_classes();
      if (distilled) config_.classifier = kPoolTokens;
      if (of_hugging_face && head[1] == 2 * width) config_.classifier = kPoolTokenAndMean;
    } else if (tensors_.any_source_has("dist_token")) {
      note(
          "without heads the output is the class token's; timm's is the mean with the "
          "distillation token's");
    }
    const std::string& classifier = config_.classifier;
    const bool assumed = !is_described() && text_of(beside_.setting("global_pool")).empty();
    if (assumed && (classifier == kPoolToken || classifier == kPoolMean)) {
      note(fmt::format("pooling '{}' assumed: no file tells it", classifier));
    }
    if (options_.num_classes) {
      tensors_.drop("head.");
      tensors_.drop("pre_logits.");
      config_.num_classes = *options_.num_classes;
    }
    if (has("pre_logits.weight")) {
      config_.representation_size = need("pre_logits.weight", 2)[0];
      const std::string act = text_of(beside_.setting("pooler_act"));
      if (!act.empty() && act != "tanh") {
        fail("{}: the pooler's activation {} is not 'tanh'", tensors_.from, printable(act));
      }
    }
    if (config_.class_token == config_.classifier.starts_with(kPoolToken)) {
      config_.class_token = std::nullopt;  // As the classifier says.
    }
  }

  void check_classes() const {
    const std::string classes = fmt::format("{} classes", config_.num_classes);
    agree({"num_classes", "num_labels"}, config_.num_classes, classes);
    const Value* const labels = beside_.model.find("id2label");
    if (labels == nullptr || !labels->is_object()) return;
    const int64_t count = std::ssize(labels->members());
    if (count != config_.num_classes) {
      refuse_contradiction(tensors_.from, "id2label", "of " + count_text(count, "label"), classes);
    }
  }

  /// Returns whether the norm after pooling is that of a mean, as it is with timm unless 'fc_norm'
  /// asks for it. After the class token's pooling it equals one before.
  bool norm_means_mean() const {
    const Value given = beside_.setting("fc_norm");
    const bool asked = given.kind() == Value::Kind::boolean && given.as_bool() &&
                       architecture().find("gap") == std::string::npos;
    return tensors_.any_source_has("fc_norm.") && !asked;
  }

  std::string choose_pooling() const {
    const bool map = has("map_head.probe");
    if (map && tensors_.any_source_has("fc_norm.")) {
      fail("{}: attention pooling before the norm '{}' is not supported", tensors_.from,
           tensors_.source("norm.weight"));
    }
    const std::string pooling = text_of(beside_.setting("global_pool"));
    if (map && (pooling.empty() || pooling == "map")) return kPoolMap;
    if (!has("cls") && pooling.empty()) return kPoolMean;
    if (pooling == "avg" || (pooling.empty() && norm_means_mean())) return kPoolMean;
    if (has("cls") && (pooling.empty() || pooling == "token")) return kPoolToken;
    fail("{}: global_pool must be 'token', 'avg' or 'map', found {}", tensors_.from,
         printable(pooling));
  }

  void positions() {
    config_.encoder.position_emb.class_token = true;
    std::optional<Size2d> trained_size;
    for (const char* key : {"img_size", "image_size"}) {
      if (!trained_size) trained_size = sides_of(beside_.setting(key));
    }
    if (!trained_size) trained_size = sides_of(beside_.pretrained("input_size"));
    if (!has("position_embedding")) {
      config_.encoder.position_emb.name = kNoPosition;
      if (!options_.image_size && !trained_size) {
        fail_usage(
            "{}: without a position embedding no file states the size of images; give "
            "--image-size S",
            tensors_.from);
      }
      note("no position embedding: patches get no position");
      config_.image_size = options_.image_size.value_or(trained_size.value_or(Size2d()));
      return check_image_size();
    }
    const std::vector<int64_t> shape = tensors_.shape("position_embedding");
    const int64_t rows = shape.size() > 1 ? shape[shape.size() - 2] : 0;
    find_grid(rows, trained_size);
    check_class_row(rows);
    const Size2d stored = {network_.stored_grid.height * config_.patch_size.height,
                           network_.stored_grid.width * config_.patch_size.width};
    if (trained_size && !options_.image_size && *trained_size != stored) {
      note(fmt::format("images of {} x {} became {} x {}, whole patches", trained_size->height,
                       trained_size->width, stored.height, stored.width));
    }
    config_.image_size = options_.image_size.value_or(stored);
    const bool keeps = network_.embedded_prefix == 1 && config_.num_registers == 0;
    if (config_.num_prefix_tokens() > 0) config_.encoder.position_emb.class_token = keeps;
    check_image_size();
    if (config_.grid() != network_.stored_grid) {
      note(fmt::format("position embedding resized from {} x {} to {} x {} patches (bicubic)",
                       network_.stored_grid.height, network_.stored_grid.width,
                       config_.grid().height, config_.grid().width));
    }
  }

  /// Checks that the class token may lack a position, where it does.
  void check_class_row(int64_t rows) {
    if (!config_.has_class_token() || network_.embedded_prefix > 0) return;
    const Value given = beside_.setting("no_embed_class");
    const bool lacks = given.kind() == Value::Kind::boolean
                           ? given.as_bool()
                           : Pattern(kNoEmbedClassOf).matches(architecture());
    if (lacks) return;
    const std::string found = fmt::format("the {} rows of '{}' have none for the class token", rows,
                                          tensors_.source("position_embedding"));
    if (!is_described()) return note(found + ": it gets no position");
    fail("{}: {}, as only with \"no_embed_class\": true in config.json", tensors_.from, found);
  }

  /// Finds the patches of an embedding of these rows, which may begin with rows of other tokens.
  void find_grid(int64_t rows, const std::optional<Size2d>& trained_size) {
    std::vector<int64_t> prefixes = {0};
    if (config_.has_class_token()) prefixes.push_back(1);
    if (config_.num_registers > 0) prefixes.push_back(config_.num_prefix_tokens());
    const auto is_grid = [&](const Size2d& grid) {
      for (const int64_t prefix : prefixes) {
        if (rows - prefix < 1 || grid.height * grid.width != rows - prefix) continue;
        network_.embedded_prefix = prefix;
        network_.stored_grid = grid;
        return true;
      }
      return false;
    };
    const auto is_of = [&](const std::optional<Size2d>& sides) {
      const Size2d& patch = config_.patch_size;
      return sides && is_grid({sides->height / patch.height, sides->width / patch.width});
    };
    const auto is_square = [&] {
      int64_t side = 0;
      while ((side + 1) * (side + 1) <= rows) ++side;
      while (side > 0 && !is_grid({side, side})) --side;
      return side > 0;
    };
    if (is_of(trained_size)) return;
    const Size2d& grid = network_.stored_grid;
    if (is_square()) {
      if (trained_size) return;
      return note(fmt::format("{} x {} patches assumed: a square, from the {} positions",
                              grid.height, grid.width, rows));
    }
    if (is_of(options_.image_size)) return;
    prefixes = {1};
    if (!has("cls") && (is_of(trained_size) || is_square())) {
      fail("{}: the {} rows of '{}' are {} x {} patches + 1, but '{}' is missing", tensors_.from,
           rows, tensors_.source("position_embedding"), grid.height, grid.width,
           tensors_.source("cls"));
    }
    fail_usage(
        "{}: the {} rows of '{}' are no square grid of patches{}; give --image-size HxW as "
        "the network was trained with",
        tensors_.from, rows, tensors_.source("position_embedding"),
        config_.num_prefix_tokens() > 0
            ? fmt::format(" beside {}", count_text(config_.num_prefix_tokens(), "token"))
            : "");
  }

  void check_image_size() const {
    const Size2d &image = config_.image_size, &patch = config_.patch_size;
    const auto nearest = [](int64_t side, int64_t of) {
      return std::max<int64_t>(1, (side + of / 2) / of) * of;
    };
    if (image.height % patch.height == 0 && image.width % patch.width == 0) return;
    fail_usage("--image-size {} x {} cannot be cut into patches of {} x {}; choose {}x{}",
               image.height, image.width, patch.height, patch.width,
               nearest(image.height, patch.height), nearest(image.width, patch.width));
  }

  void upcycling() {
    const Upcycling& wanted = options_.upcycling;
    if (wanted.num_experts == 0) return;
    const int64_t blocks = config_.encoder.num_layers;
    const std::set<int64_t> layers(wanted.layers.begin(), wanted.layers.end());
    if (layers.empty()) {
      fail_usage("--experts needs --layers, the blocks that get them, from 0 to {}", blocks - 1);
    }
    for (const int64_t layer : layers) {
      if (layer >= 0 && layer < blocks) continue;
      fail_usage("--layers names block {}, {} has blocks 0 to {}", layer, tensors_.from,
                 blocks - 1);
    }
    if (layers.size() < wanted.layers.size()) {
      fail_usage("--layers names a block twice; choose --layers {}", fmt::join(layers, ","));
    }
    if (wanted.num_selected_experts > wanted.num_experts) {
      fail_usage("--k {} is more than the {} experts; choose at most {}",
                 wanted.num_selected_experts, wanted.num_experts, wanted.num_experts);
    }
    config_.encoder.moe = upcycled_config(config_, wanted).encoder.moe;
    config_.encoder.moe.layers.assign(layers.begin(), layers.end());
    if (wanted.num_selected_experts == 1) {
      note("with --k 1 each gate is 1, so that no loss of the outputs trains the router");
    }
  }

  Tensors& tensors_;
  const SideFiles& beside_;
  const ImportVitOptions& options_;
  Network network_;
  VMoEConfig& config_ = network_.config;
};

}  // namespace

Value SideFiles::setting(std::string_view key) const {
  return found_in(model, {"vision_config", "model_args"}, key);
}

Value SideFiles::pretrained(std::string_view key) const {
  return found_in(model, {"pretrained_cfg"}, key);
}

SideFiles side_files_in(const fs::path& folder) {
  return {read_object(folder / "config.json"), read_object(folder / "preprocessor_config.json")};
}

Network network_of(Tensors& tensors, const SideFiles& beside, const ImportVitOptions& options) {
  return SettingsReader(tensors, beside, options).take();
}

}  // namespace moesaic::vit
