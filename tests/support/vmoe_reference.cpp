// SPDX-License-Identifier: Apache-2.0
#include "support/vmoe_reference.h"

#include "moesaic/checkpoint/tensors.h"
#include "moesaic/models/registry.h"
#include "support/reference_files.h"

namespace moesaic::testing {
namespace {

using Json = nlohmann::ordered_json;

/// Adds the views of a module's tensors to `out`.
class View {
 public:
  View(const std::map<std::string, at::Tensor>& native, Reference& out)
      : native_(native), out_(out) {}

  template <class F>
  void add(const std::string& native, const std::string& reference, F&& shape) const {
    const auto found = native_.find(native);
    if (found != native_.end()) out_[reference] = shape(found->second);
  }
  void same(const std::string& native, const std::string& reference) const {
    add(native, reference, [](const at::Tensor& x) { return x; });
  }
  void norm(const std::string& native, const std::string& reference) const {
    same(native + ".weight", reference + "/scale");
    same(native + ".bias", reference + "/bias");
  }
  void linear(const std::string& native, const std::string& reference) const {
    add(native + ".weight", reference + "/kernel", [](const at::Tensor& x) { return x.t(); });
    same(native + ".bias", reference + "/bias");
  }
  void mlp(const std::string& native, const std::string& reference) const {
    linear(native + ".fc1", reference + "/Dense_0");
    linear(native + ".fc2", reference + "/Dense_1");
  }
  void attention(const std::string& native, const std::string& reference, int64_t heads) const {
    const char* parts[] = {"/query", "/key", "/value"};
    for (int64_t part = 0; part < 3; ++part) {
      add(native + ".qkv.weight", reference + parts[part] + "/kernel", [&](const at::Tensor& x) {
        const int64_t d = x.size(1);
        return x.narrow(0, part * d, d).t().view({d, heads, d / heads});
      });
      add(native + ".qkv.bias", reference + parts[part] + "/bias", [&](const at::Tensor& x) {
        return x.view({3, heads, -1})[part];
      });
    }
    add(native + ".out.weight", reference + "/out/kernel", [&](const at::Tensor& x) {
      return x.t().view({heads, -1, x.size(0)});
    });
    same(native + ".out.bias", reference + "/out/bias");
    same(native + ".query_norm.weight", reference + "/query_ln/scale");
    same(native + ".key_norm.weight", reference + "/key_ln/scale");
  }
  void moe(const std::string& native, const std::string& reference, int64_t members) const {
    same(native + ".experts.w1", reference + "/Mlp/Dense_0/kernel");
    same(native + ".experts.b1", reference + "/Mlp/Dense_0/bias");
    same(native + ".experts.w2", reference + "/Mlp/Dense_1/kernel");
    same(native + ".experts.b2", reference + "/Mlp/Dense_1/bias");
    add(native + ".router.weight", reference + "/Router/dense/kernel", [&](const at::Tensor& x) {
      return members == 1 ? x.t() : x.t().view({x.size(1), members, -1});
    });
  }

 private:
  const std::map<std::string, at::Tensor>& native_;
  Reference& out_;
};

}  // namespace

Json native_config(const Json& case_config) {
  Json model = case_config.at("model");
  const bool ensemble = model["name"] == "VisionTransformerMoeEnsemble";
  model["name"] = ensemble ? kE3 : kVMoE;
  model["image_size"] = case_config.at("image_size");
  model["channels"] = 3;
  model["patch_size"] = model["patch_size"][0];
  if (model["representation_size"].is_null()) model["representation_size"] = 0;
  Json& moe = model["encoder"]["moe"];
  moe.erase("split_rngs");
  moe["router"]["dispatcher"].erase("name");
  return model;
}

Reference as_reference(const std::map<std::string, at::Tensor>& native, const VMoEConfig& config) {
  Reference out;
  const View view(native, out);
  view.add("embedding.weight", "embedding/kernel", [](const at::Tensor& x) {
    return x.permute({2, 3, 1, 0});
  });
  view.same("embedding.bias", "embedding/bias");
  view.same("cls", "cls");
  view.same("position_embedding", "Encoder/posembed_input/pos_embedding");
  for (int64_t i = 0; i < config.encoder.num_layers; ++i) {
    const std::string block = "blocks." + std::to_string(i);
    const std::string place = "Encoder/encoderblock_" + std::to_string(i);
    view.norm(block + ".norm1", place + "/LayerNorm_0");
    view.norm(block + ".norm2", place + "/LayerNorm_1");
    view.attention(block + ".attention", place + "/SelfAttention", config.encoder.num_heads);
    view.mlp(block + ".mlp", place + "/Mlp");
    view.moe(block + ".moe", place + "/Moe", config.encoder.moe.ensemble_size);
  }
  view.norm("norm", "Encoder/encoder_norm");
  view.linear("pre_logits", "pre_logits");
  view.linear("head", "head");
  return out;
}

ReferenceCase::ReferenceCase(const std::string& name)
    : folder_(reference_path(name)), config_(reference_config(name)) {}

std::shared_ptr<VMoE> ReferenceCase::model(bool bfloat16) const {
  Json config = native_config(config_);
  config["encoder"]["moe"]["router"]["dispatcher"]["bfloat16"] = bfloat16;
  const auto model =
      std::dynamic_pointer_cast<VMoE>(build_model(Value::from_json(config, folder_.string()), 1));
  const torch::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : model->named_parameters()) parameters[item.key()] = item.value();
  Reference given = read_tensors(folder_ / "params.safetensors");
  for (auto& [place, view] : as_reference(parameters, model->settings())) {
    if (!given.contains(place)) {
      ADD_FAILURE() << "the reference has no " << place;
      continue;
    }
    view.copy_(given.at(place));
    given.erase(place);
  }
  for (const auto& [place, unused] : given) ADD_FAILURE() << "no parameter takes " << place;
  return model;
}

Reference ReferenceCase::tensors(const std::string& file) const {
  return read_tensors(folder_ / (file + ".safetensors"));
}

}  // namespace moesaic::testing
