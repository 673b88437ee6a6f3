// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/model.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/models/meta_device.h"

namespace moesaic {

bool Model::may_differ_from_pretrained(const std::string& parameter) const {
  return parameter.starts_with("head") ||
         (is_expert_parameter(parameter) && parameter.find(".head.") != std::string::npos);
}

bool is_expert_parameter(const std::string& parameter) {
  return parameter.starts_with("experts.") || parameter.find(".experts.") != std::string::npos;
}

void Model::initialise_from(const Model& source, const TensorMap& values, bool new_head,
                            const std::string& from) {
  if (new_head && source.num_classes() != num_classes()) replace_head(*this, source.num_classes());
  load_state(*this, values, from, setting_paths().kept_experts);
}

std::shared_ptr<Model> Model::upcycled(const Upcycling&, uint64_t) const {
  fail_usage("this family of networks gets no experts; leave upcycle out");
}

std::optional<torch::jit::Module> Model::torchscript(const script::Context&) const {
  return std::nullopt;
}

double replacement_flops(const nn::MoELayer& layer) {
  return layer->replacement_outputs.defined()
             ? 2.0 * static_cast<double>(layer->replacement_outputs.numel())
             : 0.0;
}

double layer_flops(const MoEBlock& block, int64_t tokens, const RowsPerToken& rows_per_token) {
  const nn::RouterOptions& options = block.layer->options();
  const auto found = rows_per_token.find(block.block);
  const double rows = found == rows_per_token.end()
                          ? nn::rows_per_token(options.rule, tokens, options.num_experts)
                          : found->second;
  const auto router = static_cast<double>(2 * options.width * options.num_experts);
  return static_cast<double>(tokens) *
         (router + rows * block.layer->experts->flops_per_row() + replacement_flops(block.layer));
}

int64_t Model::num_parameters() const {
  int64_t count = 0;
  for (const auto& parameter : parameters()) count += parameter.numel();
  return count;
}

void check_input_shape(const Model& model, const std::string& name, const char* what,
                       const at::Tensor& inputs_BCHW) {
  const std::vector<int64_t> shape = model.input_shape();
  const bool fits =
      inputs_BCHW.dim() == 4 && inputs_BCHW.sizes().slice(1) == at::IntArrayRef(shape);
  if (fits) return;
  fail("{}: {} must be [B, {}, {}, {}], found {}", name, what, shape[0], shape[1], shape[2],
       c10::str(inputs_BCHW.sizes()));
}

std::string use_precision(Model& model, const std::string& precision) {
  if (precision != "int8") return precision;
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  if (blocks.empty()) fail_usage("precision int8 needs a network with experts; leave it out");
  for (const MoEBlock& block : blocks) block.layer->experts->use_int8();
  return "float32";
}

nlohmann::ordered_json with_kept_experts(nlohmann::ordered_json config, const Model& model) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  if (blocks.empty()) return config;
  std::string path = "/" + model.setting_paths().kept_experts;
  std::replace(path.begin(), path.end(), '.', '/');
  const nlohmann::ordered_json::json_pointer kept(path);
  config.at(kept) = blocks[0].layer->options().rule.kept;
  nlohmann::ordered_json& router = config.at(kept.parent_pointer());
  if (router.contains("mean_replacement"))
    router["mean_replacement"] = blocks[0].layer->replacement_outputs.defined();
  return config;
}

void replace_head(Model& model, int64_t classes) {
  std::optional<MetaDeviceGuard> on_meta;
  if (model.device().is_meta()) on_meta.emplace();
  model.reset_head(classes);
}

}  // namespace moesaic
