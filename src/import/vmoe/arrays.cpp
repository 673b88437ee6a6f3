// SPDX-License-Identifier: Apache-2.0
#include "reference.h"

#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/path.h"
#include "moesaic/base/pattern.h"
#include "moesaic/models/vmoe/vmoe.h"

namespace moesaic {
namespace {

using vmoe_checkpoint::Entry;

using Shape = std::vector<int64_t>;

class VMoETable {
 public:
  explicit VMoETable(const VMoEConfig& config) : config_(config), d_(config.hidden_size) {
    const Shape kernel = {config.patch_size.height, config.patch_size.width, config.channels, d_};
    add("embedding.weight", {{"embedding/kernel", kernel, kernel, {3, 2, 0, 1}}});
    same("embedding.bias", "embedding/bias", {d_});
    if (config.has_class_token()) same("cls", "cls", {1, 1, d_});
    if (config.has_learned_positions()) {
      same("position_embedding", "Encoder/posembed_input/pos_embedding",
           {1, config.num_tokens(), d_});
    }
    for (int64_t block = 0; block < config.encoder.num_layers; ++block) add_block(block);
    layer_norm("norm", "Encoder/encoder_norm");
    if (config.has_map_head()) {
      same("map_head.probe", "MapHead/probe", {1, 1, d_});
      attention("map_head.attention", "MapHead/MultiHeadDotProductAttention",
                config.has_map_head_qk_norm());
      layer_norm("map_head.norm", "MapHead/LayerNorm");
      mlp("map_head.mlp", "MapHead/Mlp");
    }
    if (config.representation_size > 0) {
      linear("pre_logits", "pre_logits", d_, config.representation_size);
    }
    if (config.has_head()) linear("head", "head", config.pre_logits_size(), config.num_classes);
  }

  std::vector<VMoETensor> tensors;

 private:
  void add(const std::string& name, std::vector<VMoEArray> arrays) {
    const VMoEArray& first = arrays.front();
    Shape shape = first.view;
    for (size_t i = 0; i < first.axes.size(); ++i) {
      shape[i] = first.view[static_cast<size_t>(first.axes[i])];
    }
    shape.front() *= std::ssize(arrays);
    tensors.push_back({name, std::move(shape), std::move(arrays)});
  }

  void same(const std::string& name, const std::string& array, const Shape& shape) {
    add(name, {{array, shape, shape, {}}});
  }

  static VMoEArray transposed(const std::string& array, const Shape& shape, int64_t in,
                              int64_t out) {
    return {array, shape, {in, out}, {1, 0}};
  }

  void linear(const std::string& name, const std::string& array, int64_t in, int64_t out) {
    add(name + ".weight", {transposed(array + "/kernel", {in, out}, in, out)});
    same(name + ".bias", array + "/bias", {out});
  }

  void layer_norm(const std::string& name, const std::string& array) {
    same(name + ".weight", array + "/scale", {d_});
    same(name + ".bias", array + "/bias", {d_});
  }

  void attention(const std::string& name, const std::string& array, bool norms) {
    const int64_t heads = config_.encoder.num_heads, of_head = d_ / heads;
    std::vector<VMoEArray> kernels, biases;
    for (const char* part : {"/query", "/key", "/value"}) {
      kernels.push_back(transposed(array + part + "/kernel", {d_, heads, of_head}, d_, d_));
      biases.push_back({array + part + "/bias", {heads, of_head}, {d_}, {}});
    }
    add(name + ".qkv.weight", std::move(kernels));
    add(name + ".qkv.bias", std::move(biases));
    if (norms) {
      same(name + ".query_norm.weight", array + "/query_ln/scale", {of_head});
      same(name + ".key_norm.weight", array + "/key_ln/scale", {of_head});
    }
    add(name + ".out.weight", {transposed(array + "/out/kernel", {heads, of_head, d_}, d_, d_)});
    same(name + ".out.bias", array + "/out/bias", {d_});
  }

  void mlp(const std::string& name, const std::string& array) {
    linear(name + ".fc1", array + "/Dense_0", d_, config_.encoder.mlp_dim);
    linear(name + ".fc2", array + "/Dense_1", config_.encoder.mlp_dim, d_);
  }

  void moe(const std::string& name, const std::string& array) {
    const VMoEMoeConfig& moe = config_.encoder.moe;
    const int64_t m = config_.encoder.expert_dim(), experts = moe.num_experts;
    const Shape kernel = config_.name == kE3
                             ? Shape{d_, moe.ensemble_size, experts / moe.ensemble_size}
                             : Shape{d_, experts};
    add(name + ".router.weight", {transposed(array + "/Router/dense/kernel", kernel, d_, experts)});
    same(name + ".experts.w1", array + "/Mlp/Dense_0/kernel", {experts, d_, m});
    same(name + ".experts.b1", array + "/Mlp/Dense_0/bias", {experts, m});
    same(name + ".experts.w2", array + "/Mlp/Dense_1/kernel", {experts, m, d_});
    same(name + ".experts.b2", array + "/Mlp/Dense_1/bias", {experts, d_});
  }

  void add_block(int64_t block) {
    const std::string name = "blocks." + std::to_string(block);
    const std::string array = "Encoder/encoderblock_" + std::to_string(block);
    layer_norm(name + ".norm1", array + "/LayerNorm_0");
    attention(name + ".attention", array + "/SelfAttention", config_.encoder.attention_qk_norm);
    layer_norm(name + ".norm2", array + "/LayerNorm_1");
    const bool routes = std::ranges::count(config_.encoder.moe.layers, block) > 0;
    routes ? moe(name + ".moe", array + "/Moe") : mlp(name + ".mlp", array + "/Mlp");
  }

  const VMoEConfig& config_;
  const int64_t d_;
};

/// Array that marks parameters: every V-MoE has it; only the optimizer state repeats its name.
constexpr std::string_view kMark = "embedding/kernel";

/// Returns the branch that holds the parameters.
std::string find_branch(const std::vector<vmoe_checkpoint::Array>& entries,
                        const std::string& file) {
  static const Pattern kOptimizer(
      "(^|/)(opt_state|optimizer_state|optimizer/state|state/param_states|trace|mu|nu|momentum|ema)"
      "(/|$)");
  std::vector<std::string> branches;
  for (const Entry& entry : entries) {
    if (!entry.name.ends_with(kMark)) continue;
    const std::string branch = entry.name.substr(0, entry.name.size() - kMark.size());
    if (branch.empty() || branch.ends_with('/')) branches.push_back(branch);
  }
  for (const char* usual : {"", "params/", "target/", "optimizer/target/"}) {
    if (std::ranges::find(branches, usual) != branches.end()) return usual;
  }
  std::erase_if(branches, [](const std::string& name) { return kOptimizer.matches(name); });
  if (branches.size() > 1) {
    fail("{}: parameters in several places: {}", file, fmt::join(branches, ", "));
  }
  return branches.empty() ? "" : branches.front();
}

}  // namespace

std::string vmoe_lacks(const VMoEConfig& config) {
  const VMoEEncoderConfig usual, &encoder = config.encoder;
  if (!config.stem.empty()) return "stem";
  if (config.num_registers > 0) return "num_registers";
  if (config.norm_after_pooling) return "norm_after_pooling";
  if (config.classifier == kPoolTokenAndMean || config.classifier == kPoolTokens)
    return "classifier";
  if (config.has_class_token() != (config.classifier == kPoolToken)) return "class_token";
  if (config.has_class_token() && !encoder.position_emb.class_token) {
    return "encoder.position_emb.class_token";
  }
  if (encoder.activation != usual.activation) return "encoder.activation";
  if (encoder.layer_norm_eps != usual.layer_norm_eps) return "encoder.layer_norm_eps";
  return encoder.layer_scale ? "encoder.layer_scale" : "";
}

std::vector<VMoETensor> vmoe_tensors(const VMoEConfig& config) {
  const std::string foreign = vmoe_lacks(config);
  if (!foreign.empty()) {
    fail_usage("a V-MoE of the reference has no '{}'; leave it out", foreign);
  }
  return std::move(VMoETable(config).tensors);
}

at::Tensor tensor_of_arrays(const VMoETensor& tensor,
                            const std::function<at::Tensor(const VMoEArray&)>& array) {
  const VMoEArray& first = tensor.arrays.front();
  if (tensor.arrays.size() == 1 && first.axes.empty()) {
    return array(first).contiguous().view(tensor.shape);
  }
  at::Tensor whole = at::empty(tensor.shape, at::kFloat);
  const std::vector<at::Tensor> places = whole.chunk(std::ssize(tensor.arrays));
  for (size_t a = 0; a < places.size(); ++a) {
    const VMoEArray& part = tensor.arrays[a];
    const at::Tensor values = array(part).contiguous().view(part.view);
    places[a].copy_(part.axes.empty() ? values : values.permute(part.axes));
  }
  return whole;
}

at::Tensor array_of_tensor(const VMoETensor& tensor, size_t array, const at::Tensor& values) {
  const VMoEArray& part = tensor.arrays.at(array);
  const at::Tensor own = values.chunk(std::ssize(tensor.arrays))[array];
  Shape back(part.axes.size());
  for (size_t i = 0; i < back.size(); ++i) {
    back[static_cast<size_t>(part.axes[i])] = static_cast<int64_t>(i);
  }
  return (back.empty() ? own : own.permute(back)).contiguous().view(part.shape);
}

std::optional<at::ScalarType> scalar_type_of(const std::string& dtype) {
  static const std::map<std::string, at::ScalarType> kTypes = {
      {"bool", at::kBool},        {"int8", at::kChar},     {"uint8", at::kByte},
      {"int16", at::kShort},      {"uint16", at::kShort},  {"int32", at::kInt},
      {"uint32", at::kInt},       {"int64", at::kLong},    {"uint64", at::kLong},
      {"float16", at::kHalf},     {"float32", at::kFloat}, {"float64", at::kDouble},
      {"bfloat16", at::kBFloat16}};
  const auto found = kTypes.find(dtype);
  return found == kTypes.end() ? std::nullopt : std::optional(found->second);
}

bool is_float(const std::string& dtype) {
  return at::isFloatingType(scalar_type_of(dtype).value_or(at::kBool));
}

at::Tensor stored_array(const vmoe_checkpoint::Reader& reader, const Entry& entry) {
  at::Tensor out = at::empty(entry.shape, scalar_type_of(entry.dtype).value());
  reader.read(entry, std::span(static_cast<std::byte*>(out.mutable_data_ptr()), out.nbytes()));
  return out;
}

const Entry* VMoEArrays::find(std::string_view name) const {
  const auto found = std::ranges::find(entries, name, &Entry::name);
  return found == entries.end() ? nullptr : &*found;
}

VMoEArrays arrays_of_network(const VMoEConfig& config, TensorMap state, const std::string& from) {
  if (config.encoder.moe.mean_replacement) {
    fail_usage("{}: a V-MoE of the reference cannot store mean outputs of removed experts", from);
  }
  VMoEArrays arrays{.from = from};
  std::map<std::string, std::pair<VMoETensor, size_t>> places;
  for (const VMoETensor& tensor : vmoe_tensors(config)) {
    if (!state.contains(tensor.name)) fail("{}: '{}' is missing", from, tensor.name);
    for (size_t a = 0; a < tensor.arrays.size(); ++a) {
      const VMoEArray& array = tensor.arrays[a];
      arrays.entries.push_back({array.name, "float32", array.shape});
      places[array.name] = {tensor, a};
    }
  }
  arrays.read = [config, from, state = std::move(state),
                 places = std::move(places)](const Entry& entry) {
    const auto place = places.find(entry.name);
    if (place == places.end()) fail_usage("{}: no array '{}'", from, entry.name);
    const auto& [tensor, array] = place->second;
    const torch::NoGradGuard no_grad;
    const at::Tensor values = with_removed_experts(config, tensor.name, state.at(tensor.name));
    if (values.sizes() == tensor.shape) return array_of_tensor(tensor, array, values);
    fail("{}: '{}' is {}, the network has {}", from, tensor.name, c10::str(values.sizes()),
         c10::str(at::IntArrayRef(tensor.shape)));
  };
  return arrays;
}

VMoEFileArrays arrays_of_files(const fs::path& path) {
  const fs::path prefix = vmoe_prefix(path);
  const auto reader = std::make_shared<const vmoe_checkpoint::Reader>(prefix);
  VMoEFileArrays arrays{{.from = prefix.string()}};
  arrays.branch = find_branch(reader->entries(), prefix.string() + ".index");
  for (const Entry& entry : reader->entries()) {
    if (!entry.name.starts_with(arrays.branch)) continue;
    arrays.entries.push_back({entry.name.substr(arrays.branch.size()), entry.dtype, entry.shape});
  }
  arrays.others = static_cast<int64_t>(reader->entries().size() - arrays.entries.size());
  arrays.shards = reader->shard_count();
  arrays.read = [reader, from = arrays.from, branch = arrays.branch](const Entry& entry) {
    if (!is_float(entry.dtype)) {
      fail("{}: array '{}' of {} cannot be read as float32", from, entry.name, entry.dtype);
    }
    const Entry stored{branch + entry.name, entry.dtype, entry.shape};
    at::Tensor out = stored_array(*reader, stored).to(at::kFloat);
    if (all_finite(out)) return out;
    fail("{}: array '{}' holds NaN, infinity or what float32 cannot hold", from, stored.name);
  };
  return arrays;
}

std::string prefix_of_part(const fs::path& path) {
  static const Pattern kEnding(R"((\.index|\.data-\d{5}-of-\d{5})$)");
  const std::string name = path.string();
  const auto ending = kEnding.find(name);
  return ending.empty() ? "" : name.substr(0, name.size() - ending[0].size());
}

fs::path vmoe_prefix(const fs::path& given) {
  if (given.empty()) fail_usage("the prefix of a checkpoint must not be empty");
  const fs::path index = given.string() + ".index";
  if (path_exists(index)) return given;
  if (const std::string prefix = prefix_of_part(given); !prefix.empty()) {
    if (path_exists(prefix + ".index")) return prefix;
    for (std::string less = prefix_of_part(prefix); !less.empty(); less = prefix_of_part(less)) {
      if (!path_exists(less + ".index")) continue;
      fail_usage("{}: no such file; did you mean '{}'?", given.string(), less);
    }
    check_input_file(prefix + ".index");
  }
  const bool is_folder = path_exists(given) && fs::is_directory(given);
  const fs::path parent = given.has_parent_path() ? given.parent_path() : fs::path(".");
  const fs::path folder = is_folder ? given : parent;
  if (!path_exists(folder)) {
    fail_usage("{}: no such folder{}", folder.string(), nearest_sibling(folder));
  }
  std::vector<std::string> prefixes;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".index") prefixes.push_back(it->path().stem().string());
  }
  std::ranges::sort(prefixes);
  const auto meant = is_folder ? std::nullopt : nearest(given.filename().string(), prefixes);
  const std::string hint =
      meant ? fmt::format("did you mean '{}'?", (given.parent_path() / *meant).string())
            : did_you_mean("", prefixes);
  fail_usage("{}: {}; {}", is_folder ? given.string() : index.string(),
             is_folder ? "a folder, not the prefix of files" : "no such file",
             hint.empty() ? "a checkpoint has the files PREFIX.index and PREFIX.data-nnnnn-of-NNNNN"
                          : hint);
}

}  // namespace moesaic
