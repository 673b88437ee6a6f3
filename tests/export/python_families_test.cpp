// SPDX-License-Identifier: Apache-2.0
// Networks of every family as plain PyTorch, and what Python records of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/support.h"
#include "export/torchscript_models.h"
#include "moesaic/checkpoint/tensors.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using testing::build_variant;
using testing::kScriptInfo;
using testing::network_of;
using Variant = testing::ScriptVariant;

constexpr const char* kCheck = R"(
import importlib.util, inspect, sys, torch
torch.set_num_threads(1)
if sys.argv[1]:
    torch.ops.load_library(sys.argv[1])
for folder in sys.argv[2:]:
    spec = importlib.util.spec_from_file_location("modeling", folder + "/modeling.py")
    modeling = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(modeling)
    network, given = modeling.load(folder), modeling.read_tensors(folder + "/given.safetensors")
    for batch in (1, 2, 7):
        wanted = given["logits.%d" % batch]
        found = network(given["images.%d" % batch])
        assert found.shape == wanted.shape, (folder, batch, found.shape)
        error = (found - wanted).abs().max().item()
        assert error < 1e-5 * max(1, wanted.abs().max().item()), (folder, batch, error)
    def loss():
        return (network(given["images.7"]) - 1).square().mean()
    before = loss()
    before.backward()
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    assert gradients, folder
    if type(network).__name__ == "VMoE":
        learnt = ["experts.w1"]
        if ">= " not in inspect.getsource(modeling.MoELayer.weights_of_seen):  # Gates of 1 teach no router.
            learnt.append("router.weight")
        for part in learnt:
            found = [name for name in gradients if name.endswith(part) and gradients[name].any()]
            assert found, (folder, part)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1e-4)
        torch.optim.SGD(network.parameters(), lr=1.0).step()
        assert loss() < before, folder
    try:
        network(given["images.1"][:, :, :0])
    except AssertionError as error:
        assert "images must have the shape" in str(error), error
    else:
        assert False, "another shape was taken"
)";

/// A network of every family but V-MoE.
std::vector<std::shared_ptr<Model>> families() {
  std::vector<std::shared_ptr<Model>> models;
  for (const char* config :
       {R"({"name": "cluster-moe", "num_patches": 3, "width": 6, "num_experts": 4, "num_filters": 8,
            "init_scale": 1.0, "router": {"gate": "logit"}})",
        R"({"name": "pmoe", "channels": 2, "image_size": [6, 8], "patch_size": [3, 2],
            "num_neurons": 3, "divisor": "selected"})",
        R"({"name": "wrn-pmoe", "image_size": 16, "widen_factor": 0.25, "num_classes": 3,
            "moe": {"patch_size": 2, "kernel_size": 3, "router": {"num_selected_patches": 2}}})",
        R"({"name": "image-moe", "image_size": 8, "channels": 2, "num_classes": 3, "width": 0.1,
            "num_experts": 3})",
        R"({"name": "latent-moe"})", R"({"name": "gated-moe"})", R"({"name": "gru"})"}) {
    models.push_back(network_of(config));
  }
  return models;
}

/// Networks of every way of routing, and of every family.
std::vector<std::shared_ptr<Model>> networks() {
  std::vector<std::shared_ptr<Model>> models = families();
  models.push_back(network_of(
      R"({"name": "image-moe", "image_size": 8, "channels": 2, "num_classes": 3, "width": 0.1,
          "num_experts": 3, "router": {"gate": "logit", "patch_size": 4}, "expert": "resnet18"})"));
  for (const Variant& variant : {
           Variant{.classifier = "map", .kept = {0, 3, 4}, .mean_replacement = true},
           Variant{.gate = "softmax_selected", .capacity_factor = 0.6},
           Variant{.capacity_factor = 0.5, .group_size = 20},
           Variant{.group_size = 20, .capacity = 3, .stem = {{6, 1}, {9, 2, "batch_norm"}}},
           Variant{.position = kSinCos2d, .members = 2},
           Variant{.capacity_factor = 0.6, .kept = {0, 2, 3, 4, 5}, .members = 3},
           Variant{.router = R"({"dispatcher": {"capacity_factor": 0.55,
                   "capacity_rounding": "round", "capacity_multiple_of": 1}})"},
           Variant{.group_size = 20, .kept = {0, 1, 4}, .router = R"({
                   "num_selected_experts": 3, "dispatcher":
                   {"capacity_factor": 0.4, "batch_priority": true}})"},
           Variant{.router = R"({"name": "NoisyTopItemsPerExpertRouter",
                   "gate": "softmax_all", "dispatcher": {"capacity_factor": 1.0}})"},
           Variant{.router = R"({"name": "NoisyTopItemsPerExpertRouter",
                   "gate": "softmax_selected", "dispatcher": {"capacity_factor": 0.7}})"},
           Variant{.group_size = 17, .router = R"({"name":
                   "NoisyTopItemsPerExpertRouter", "gate": "softmax_selected",
                   "num_selected_tokens": 3})"},
           Variant{.group_size = 17,
           .kept = {1, 2, 5},
           .bfloat16 = true,
           .router =
                       R"({"name": "NoisyTopItemsPerExpertRouter", "gate": "softmax_tokens",
                   "dispatcher": {"capacity_factor": 0.7}})"},
           Variant{.group_size = 17,
           .kept = {1, 2, 5},
           .mean_replacement = true,
           .router = R"({"name": "NoisyTopItemsPerExpertRouter", "gate":
                   "softmax_selected", "dispatcher": {"capacity_factor": 0.7}})"},
           Variant{.group_size = 17, .kept = {1, 2, 5}, .router = R"({"name":
                   "NoisyTopItemsPerExpertRouter", "pruned_selection": "reroute", "gate":
                   "softmax_all", "dispatcher": {"capacity_factor": 0.9}})"},
           Variant{.router = R"({"name": "adaptive", "gate": "one",
                   "threshold": 0.1})"},
           Variant{.router = R"({"noise": "always", "noise_std": 1.0})"},
       }) {
    models.push_back(build_variant(variant));
  }
  return models;
}

TEST(ExportPyTorch, StockPythonComputesTheSame) {
  NEEDS_PYTHON();
  const test::TempDir folder;
  test::put(folder / "check.py", kCheck);
  std::string folders;
  int64_t number = 0;
  for (const std::shared_ptr<Model>& model : networks()) {
    const fs::path out = folder / std::to_string(++number);
    export_pytorch(*model, out, kScriptInfo);
    TensorMap given;
    for (const int64_t batch : {1, 2, 7}) {
      const at::Tensor images = testing::images_for(*model, batch, 70 + batch);
      given[fmt::format("images.{}", batch)] = images;
      given[fmt::format("logits.{}", batch)] = run(*model, images).logits;
    }
    write_tensors(out / "given.safetensors", given);
    folders += fmt::format(" '{}'", out.string());
  }
  for (const char* library : {"", MOESAIC_BUILD_DIR "/lib/libmoesaic.so"}) {
    const std::string command = fmt::format("'{}' -W ignore '{}' '{}'{}", testing::python_here(),
                                            (folder / "check.py").string(), library, folders);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

// Proofs compare the logits and routing of 1, 2 and 7 images.
TEST(ExportPt2, IsOfEveryFamilyAsIsOnnx) {
  NEEDS_PYTHON();
  const test::TempDir folder;
  int64_t number = 0;
  const auto export_both = [&](const Model& model) {
    SCOPED_TRACE(model.config().dump());
    ExportInfo info = kScriptInfo;
    info.input.input_size = model.input_shape();
    const std::string name = std::to_string(++number);
    EXPECT_NO_THROW(export_pt2(model, folder / (name + ".pt2"), info));
    EXPECT_NO_THROW(export_onnx(model, folder / (name + ".onnx"), info));
  };
  for (const std::shared_ptr<Model>& model : families()) export_both(*model);
  export_both(*build_variant({.capacity_factor = 0.6, .members = 3}));
  export_both(*build_variant({.group_size = 17,
                              .kept = {1, 2, 5},
                              .router = R"({"name": "NoisyTopItemsPerExpertRouter", "gate":
                                  "softmax_all", "dispatcher": {"capacity_factor": 1.0}})"}));
}

}  // namespace
}  // namespace moesaic
