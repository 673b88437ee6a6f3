// SPDX-License-Identifier: Apache-2.0
#include "moesaic/import/vit/import.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "moesaic/base/path.h"
#include "moesaic/base/random.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/schema.h"
#include "moesaic/data/fetch_file.h"
#include "moesaic/import/vmoe/import.h"
#include "moesaic/models/registry.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "moesaic/nn/init.h"
#include "vit.h"

namespace moesaic {
namespace vit {
namespace {

constexpr const char* kRouter = ".moe.router.weight";

/// Returns the shape that a tensor of the dense network has for one of ours.
std::vector<int64_t> dense_shape(const std::string& name, std::vector<int64_t> shape) {
  if (dense_name(name).empty()) return shape;
  shape.erase(shape.begin());  // The experts.
  if (shape.size() == 2) std::swap(shape[0], shape[1]);
  return shape;
}

std::vector<int64_t> without_leading_ones(std::vector<int64_t> shape) {
  while (shape.size() > 1 && shape.front() == 1) shape.erase(shape.begin());
  return shape;
}

/// Makes the tensors of the network from those of the file.
class Maker {
 public:
  /// Throws Error (failure) that names tensors that are missing, have no place or another shape.
  Maker(const Tensors& tensors, const Network& network, const ImportVitOptions& options)
      : tensors_(tensors),
        network_(network),
        options_(options),
        shapes_(state_of(*build_meta_model(Value::from_json(to_json(network.config), "model")))) {
    check();
  }

  /// Returns the shapes of the network's tensors, on the meta device.
  const TensorMap& shapes() const { return shapes_; }

  /// Returns one of them, float32. Throws Error (failure) where the file's holds NaN or infinity.
  at::Tensor make(const std::string& name) const {
    const at::NoGradGuard no_grad;
    const at::IntArrayRef shape = shapes_.at(name).sizes();
    const std::string dense = dense_name(name);
    if (!dense.empty()) {
      return expert_copies(stored(dense), name, shape, options_.upcycling.noise, options_.seed);
    }
    if (name.ends_with(kRouter)) {
      const at::Tensor weight = at::empty(shape, at::kFloat);
      nn::lecun_normal(weight, shape[1],
                       nn::make_generator(mix64(options_.seed + stream_id(name))));
      return weight;
    }
    if (!tensors_.has(name)) return at::zeros(shape, at::kFloat);  // Biases, or a new head.
    if (name == "position_embedding") return positions();
    const at::Tensor values = stored(name).reshape(shape);
    // The rows of tokens that have no position in the network are added to the tokens themselves.
    const bool folded =
        network_.embedded_prefix > 0 && !network_.config.encoder.position_emb.class_token;
    const int64_t tokens = network_.config.has_class_token() ? 1 : 0;
    if (folded && name == "cls") return values + prefix_row(0, 1);
    const bool all = network_.embedded_prefix == network_.config.num_prefix_tokens();
    if (name == "registers" && all && network_.embedded_prefix > 0) {
      return values + prefix_row(tokens, network_.config.num_registers);
    }
    return values;
  }

 private:
  void check() const {
    std::vector<std::string> missing, unused;
    std::set<std::string> used;
    const bool has_biases = tensors_.has("blocks.0.attention.qkv.bias");
    for (const auto& [name, tensor] : shapes_) {
      const std::string dense = dense_name(name), &place = dense.empty() ? name : dense;
      const bool fresh = name.ends_with(kRouter) ||
                         (options_.num_classes && name.starts_with("head.")) ||
                         (name.ends_with(".attention.qkv.bias") && !has_biases);
      used.insert(place);
      if (!tensors_.has(place)) {
        if (!fresh) missing.push_back(tensors_.source(place));
        continue;
      }
      const std::vector<std::string> parts = tensors_.missing_parts(place);
      missing.insert(missing.end(), parts.begin(), parts.end());
      if (!parts.empty()) continue;
      std::vector<int64_t> wanted = dense_shape(name, tensor.sizes().vec());
      if (name == "position_embedding") {
        wanted[1] =
            network_.embedded_prefix + network_.stored_grid.height * network_.stored_grid.width;
      }
      const std::vector<int64_t> found = tensors_.shape(place);
      if (without_leading_ones(found) == without_leading_ones(wanted)) continue;
      fail("{}: tensor '{}' is {}, a network of its other tensors' sizes has {}", tensors_.from,
           tensors_.source(place), shape_text(found), shape_text(wanted));
    }
    if (!missing.empty()) {
      fail("{}: {} missing: {}", tensors_.from, count_text(std::ssize(missing), "tensor"),
           quoted_names(missing));
    }
    for (const std::string& name : tensors_.names()) {
      if (!used.contains(name)) unused.push_back(tensors_.source(name));
    }
    if (unused.empty()) return;
    fail("{}: {} without a place in the network: {}", tensors_.from,
         count_text(std::ssize(unused), "tensor"), quoted_names(unused));
  }

  at::Tensor stored(const std::string& name) const {
    at::Tensor values = tensors_.values(name);
    if (all_finite(values)) return values;
    fail("{}: tensor '{}' holds NaN or infinity", tensors_.from, tensors_.source(name));
  }

  at::Tensor prefix_row(int64_t first, int64_t count) const {
    const int64_t width = network_.config.hidden_size;
    return stored("position_embedding").reshape({1, -1, width}).narrow(1, first, count);
  }

  /// Resizes the patches' rows as timm's resample_abs_pos_embed() does: bicubic, antialiased,
  /// without aligned corners. Rows of other tokens stay.
  at::Tensor positions() const {
    const VMoEConfig& config = network_.config;
    const Size2d &from = network_.stored_grid, to = config.grid();
    const int64_t prefix = network_.embedded_prefix, width = config.hidden_size;
    const at::Tensor all_1Td = stored("position_embedding").reshape({1, -1, width});
    at::Tensor patches_1Pd = all_1Td.slice(1, prefix);
    if (from != to) {
      const at::Tensor grid_1dhw =
          patches_1Pd.reshape({1, from.height, from.width, width}).permute({0, 3, 1, 2});
      const std::array<int64_t, 2> size = {to.height, to.width};
      patches_1Pd = at::_upsample_bicubic2d_aa(grid_1dhw, size, /*align_corners=*/false)
                        .permute({0, 2, 3, 1})
                        .reshape({1, -1, width});
    }
    const int64_t kept = config.num_embedded_tokens() - config.num_patches();
    return kept == 0 ? patches_1Pd : at::cat({all_1Td.slice(1, 0, kept), patches_1Pd}, 1);
  }

  const Tensors& tensors_;
  const Network& network_;
  const ImportVitOptions& options_;
  TensorMap shapes_;
};

}  // namespace
}  // namespace vit

namespace {

constexpr const char* kPickled = "a pickle is not read; save it as model.safetensors in Python";

/// Returns the file of tensors, or their index, that a path stands for.
fs::path weights_at(const fs::path& path) {
  if (!path_exists(path)) {
    for (const ReleasedCheckpoint& known : released_checkpoints()) {
      if (path != known.name) continue;
      fail_usage("{0}: no such file or folder; for the released checkpoint choose import vmoe {0}",
                 known.name);
    }
    fail_usage("{}: no such file or folder{}", path.string(), nearest_sibling(path));
  }
  if (!fs::is_directory(path)) {
    for (const char* end : {".bin", ".pt", ".pth"}) {
      if (path.extension() == end) fail_usage("{}: {}", path.string(), kPickled);
    }
    check_tensor_file(path, "a folder with model.safetensors or an index of such files");
    return path;
  }
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (path_exists(path / name)) return path / name;
  }
  const fs::path pickled = path / "pytorch_model.bin";
  if (path_exists(pickled)) fail_usage("{}: {}", pickled.string(), kPickled);
  fail_usage(
      "{}: no model.safetensors; give the folder that has it, or a .safetensors file of another "
      "name",
      path.string());
}

Checkpoint checkpoint_of(const ImportVitOptions& options, const ImportVitResult& result) {
  const Upcycling& upcycling = options.upcycling;
  Checkpoint checkpoint;
  checkpoint.config = {{"model", result.model}, {kInputKey, document_of(result.input)}};
  checkpoint.state = {{"imported",
                       {{"from", options.from.filename().string()},
                        {"dropped", result.dropped},
                        {"expert_noise", upcycling.noise},
                        {"seed", options.seed}}}};
  return checkpoint;
}

constexpr const char* kWeights = "model.safetensors";

/// Fetches a file that a repository need not have.
void fetch_if_there(const FetchRequest& request) {
  try {
    fetch_file(request);
  } catch (const Error& error) {
    // The end of libcurl's message for an answer of this status.
    if (!std::string_view(error.what()).ends_with("error: 404")) throw;
  }
}

}  // namespace

ImportVitResult import_vit(const ImportVitOptions& options) {
  check_new_folder(options.out, "--out");
  const fs::path file = weights_at(options.from);
  vit::Tensors tensors(file);
  const vit::SideFiles beside = vit::side_files_in(file.parent_path());
  const vit::Network network = vit::network_of(tensors, beside, options);
  ImportVitResult result;
  result.notes = network.notes;
  result.input = vit::input_of(network.config, beside, result.notes);
  if (options.num_classes) result.input.classes.clear();  // They are those of the former head.
  const vit::Maker maker(tensors, network, options);
  result.from = file.string();
  result.out = options.out.string();
  result.model = to_json(network.config);
  result.num_tensors = tensors.count;
  result.dropped = tensors.dropped;
  Checkpoint checkpoint = checkpoint_of(options, result);
  checkpoint.model = maker.shapes();
  for (const auto& [unused, shape] : checkpoint.model) result.num_parameters += shape.numel();
  const auto make = [&](const std::string& name) { return maker.make(name); };
  save_checkpoint(options.out, checkpoint, make, options.progress);
  return result;
}

Json to_json(const ImportVitResult& result) {
  return {{"from", result.from},
          {"out", result.out},
          {"parameters", result.num_parameters},
          {"tensors", result.num_tensors},
          {"dropped", result.dropped},
          {"notes", result.notes},
          {"input", document_of(result.input)},
          {"model", result.model}};
}

std::string describe(const ImportVitResult& result) {
  const Json &model = result.model, &encoder = model.at("encoder"), &moe = encoder.at("moe");
  const auto line = [](const char* label, const std::string& text) {
    return fmt::format("  {:<12}{}\n", label, text);
  };
  std::string text = fmt::format("{}: {}\n", result.from, count_text(result.num_tensors, "tensor"));
  text +=
      line("network", fmt::format("{} blocks of width {}, {} heads, {} classes",
                                  encoder.at("num_layers").dump(), model.at("hidden_size").dump(),
                                  encoder.at("num_heads").dump(), model.at("num_classes").dump()));
  if (!moe.at("layers").empty()) {
    text += line("experts", fmt::format("{} in blocks {}, {} for each token",
                                        moe.at("num_experts").dump(), moe.at("layers").dump(),
                                        moe.at("router").at("num_selected_experts").dump()));
  }
  const PreprocessConfig& images = result.input.preprocess;
  text += line("images", fmt::format("{} x {}, {}", images.size.height, images.size.width,
                                     images.interpolation));
  if (!result.dropped.empty()) {
    text +=
        line("dropped", fmt::format("{}: {}", result.dropped.size(), quoted_names(result.dropped)));
  }
  for (const std::string& note : result.notes) text += line("note", note);
  return text + fmt::format("{}: {} parameters\n", result.out, result.num_parameters);
}

fs::path fetch_hub_model(const fs::path& from) {
  std::string name = from.string();
  if (name.find("://") == name.npos) return from;
  while (name.ends_with('/')) name.pop_back();
  if (const std::string problem = url_problem(name); !problem.empty()) fail_usage("{}", problem);
  const bool of_hub = name.starts_with("hf://");
  if (!of_hub || std::ranges::count(name, '/') != 3) {
    fail_usage("'{}': the address of a network is hf://OWNER/NAME[@REVISION]", name);
  }
  resolved_url(name + "/config.json");  // Refuses what is none.
  const fs::path folder = download_folder("checkpoints") / name.substr(5);
  if (path_exists(folder / kWeights)) return folder;
  try {
    for (const std::string file : {"config.json", "preprocessor_config.json"}) {
      fetch_if_there({.url = name + "/" + file, .path = folder / file, .max_bytes = kMaxListBytes});
    }
    // Last, since what has weights is whole.
    fetch_file({.url = fmt::format("{}/{}", name, kWeights),
                .path = folder / kWeights,
                .label = kWeights});
  } catch (const Error& error) {
    throw Error(
        error.kind(),
        fmt::format("{}; or put {}, config.json and preprocessor_config.json by hand into {}",
                    error.what(), kWeights, folder.string()));
  }
  return folder;
}

}  // namespace moesaic
