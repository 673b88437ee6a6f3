// SPDX-License-Identifier: Apache-2.0
// TorchScript forms of networks whose tokens are whole images, and of all families in stock Python.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/script.h>

#include <cstdlib>

#include "base/support.h"
#include "export/torchscript_models.h"
#include "moesaic/checkpoint/tensors.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using testing::build_variant;
using testing::forward;
using testing::images_for;
using testing::kScriptInfo;

struct ImageTokenCase {
  std::string name, config;
};
void PrintTo(const ImageTokenCase& example, std::ostream* out) {
  *out << example.name;
}

/// A network of the configuration, with every parameter random, in evaluation.
std::shared_ptr<Model> image_token_model(const std::string& config) {
  const auto model = testing::network_of(config);
  const torch::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (auto& parameter : model->parameters()) {
    parameter.add_(randn(parameter.sizes().vec(), ++seed, torch::kFloat) * 0.2);
  }
  for (auto& buffer : model->buffers()) {
    if (buffer.is_floating_point()) {
      buffer.copy_(randn(buffer.sizes().vec(), ++seed, torch::kFloat).abs() + 0.5);
    }
  }
  return model;
}

class ImageTokenTorchScript : public ::testing::TestWithParam<ImageTokenCase> {};

TEST_P(ImageTokenTorchScript, EqualsTheFrameworkForAnyBatch) {
  const auto model = image_token_model(GetParam().config);
  torch::jit::Module script = to_torchscript(*model);
  for (const int64_t batch : {1, 7, 32, 0, 3}) {
    SCOPED_TRACE(batch);
    const at::Tensor images = images_for(*model, batch, 50 + batch);
    expect_close(forward(script, images), run(*model, images).logits, 1e-5);
  }
  const TensorMap wanted = state_of(*model);
  size_t count = 0;
  for (const auto& item : script.named_attributes()) count += wanted.contains(item.name) ? 1 : 0;
  EXPECT_EQ(count, wanted.size());
  const torch::NoGradGuard no_grad;
  const at::Tensor images = images_for(*model, 3, 53), before = forward(script, images);
  for (auto& parameter : model->parameters()) parameter.zero_();
  EXPECT_TRUE(at::equal(forward(script, images), before)) << "it shares the network's parameters";
}

const std::string kClusters = R"({"name": "cluster-moe", "num_patches": 3, "width": 6,
    "num_experts": 4, "num_filters": 8, "init_scale": 1.0)";
const std::string kPatches = R"({"name": "pmoe", "channels": 2, "image_size": [6, 8],
    "patch_size": [3, 2], "num_neurons": 3, "divisor": "selected")";
const std::string kWide =
    R"({"name": "wrn-pmoe", "image_size": 16, "widen_factor": 0.25, "num_classes": 3)";
const std::string kImages = R"({"name": "image-moe", "image_size": 8, "channels": 2,
    "num_classes": 3, "width": 0.1, "num_experts": 3, "router": {"gate": "logit", "patch_size": 4})";

INSTANTIATE_TEST_SUITE_P(
    Families, ImageTokenTorchScript,
    ::testing::Values(
        ImageTokenCase{"clusters", kClusters + R"(, "router": {"gate": "logit"}})"},
        ImageTokenCase{"pieces", kClusters + R"(, "activation": "celu",
                           "router": {"gate": "softmax_all", "width": 3,
                                      "kept_experts": [0, 3]}})"},
        ImageTokenCase{"mean_replacement", kClusters + R"(,
                           "router": {"gate": "softmax_all", "num_selected_experts": 2,
                                      "kept_experts": [0, 3], "mean_replacement": true}})"},
        ImageTokenCase{"patches", kPatches + R"(})"},
        ImageTokenCase{"patches_of_one", kPatches + R"(, "num_classes": 3, "output": "by_class",
                           "num_experts": 6, "router": {"num_selected_patches": 2, "gate": "one",
                                                    "kept_experts": [0, 2, 5]}})"},
        ImageTokenCase{"patches_alone", kPatches + R"(, "num_experts": 1, "router": null})"},
        ImageTokenCase{"maps", kWide + R"(, "moe": {"router": {"num_selected_patches": 5}}})"},
        ImageTokenCase{"maps_pruned", kWide + R"(, "moe": {"patch_size": 2, "kernel_size": 3,
                           "router": {"num_selected_patches": 2, "kept_experts": [1, 2]}}})"},
        ImageTokenCase{
            "maps_of_two",
            R"({"name": "wrn-pmoe", "image_size": 24, "widen_factor": 0.25, "num_classes": 2,
                           "moe": {"patch_size": 2, "kernel_size": 3, "router": {"num_selected_patches": 2}}})"},
        ImageTokenCase{"maps_alone", kWide + R"(, "moe": null})"},
        ImageTokenCase{"noisy", kClusters + R"(, "activation": "identity",
                           "router": {"gate": "logit", "noise_in_evaluation": true}})"},
        ImageTokenCase{"as_printed", kClusters + R"(, "has_scalar_output": true, "bias": false,
                           "router": {"gate": "softmax_all", "gate_noise": false,
                                      "noise_in_evaluation": false}})"},
        ImageTokenCase{"as_printed_rerouted",
                       kClusters + R"(, "has_scalar_output": true, "bias": false,
                           "router": {"gate": "softmax_all", "gate_noise": false,
                                      "pruned_selection": "reroute", "kept_experts": [0, 3],
                                      "noise_in_evaluation": false}})"},
        ImageTokenCase{"one_filter_network",
                       R"({"name": "cluster-moe", "num_patches": 3, "width": 6, "num_experts": 1,
                           "num_filters": 8, "router": null, "activation": "relu"})"},
        ImageTokenCase{"cnn", kImages + R"(, "expert": "cnn"})"},
        ImageTokenCase{"resnet18", kImages + R"(, "expert": "resnet18"})"},
        ImageTokenCase{"mobilenetv2", kImages + R"(, "expert": "mobilenetv2"})"},
        ImageTokenCase{"one_network",
                       R"({"name": "image-moe", "image_size": 8, "channels": 2, "num_classes": 3,
                           "width": 0.1, "num_experts": 1, "router": null, "expert": "resnet18"})"}),
    [](const auto& info) { return info.param.name; });

constexpr const char* kPythonCheck = R"(
import sys, torch
torch.set_num_threads(1)
for file, data in zip(sys.argv[1::2], sys.argv[2::2]):
    extra = {"labels.json": "", "config.json": "", "preprocess.json": ""}
    model = torch.jit.load(file, _extra_files=extra).eval()
    given = torch.jit.load(data)
    for network in (model, torch.jit.freeze(model)):
        worst = (network(given.images) - given.logits).abs().max().item()
        assert worst < 1e-5 * max(1, given.logits.abs().max().item()), (file, worst)
    members = given.logits.size(0) // given.images.size(0)
    for batch in (0, 1, 3):
        assert model(given.images[:batch]).shape == (batch * members, given.logits.size(1)), file
    assert any(name.endswith("experts.w1") or ".experts." in name for name in model.state_dict()), file
    assert b"toys" in extra["preprocess.json"], extra
)";

TEST(ExportTorchScript, StockPythonRunsIt) {
  NEEDS_PYTHON();
  const test::TempDir folder;
  const std::vector<std::shared_ptr<Model>> models = {
      build_variant({.capacity_factor = 0.7, .kept = {0, 2, 4}}),
      build_variant(
          {.router = R"({"dispatcher": {"capacity_factor": 0.5, "batch_priority": true}})"}),
      build_variant({.router = R"({"name": "NoisyTopItemsPerExpertRouter",
                           "dispatcher": {"capacity_factor": 1.0}})"}),
      build_variant({.members = 3}),
      build_variant({.router = R"({"noise": "always", "noise_std": 1.0})"}),
      image_token_model(kClusters + R"(, "router": {"gate": "logit"}})"),
      image_token_model(kImages + R"(, "expert": "resnet18"})")};
  test::put(folder / "check.py", kPythonCheck);
  std::string command =
      fmt::format("'{}' -W ignore '{}'", testing::python_here(), (folder / "check.py").string());
  for (size_t i = 0; i < models.size(); ++i) {
    const fs::path file = folder / fmt::format("{}.pt", i), data = folder / fmt::format("{}.in", i);
    export_torchscript(*models[i], file, kScriptInfo);
    torch::jit::Module given("given");
    const at::Tensor images = images_for(*models[i], 6, 56);
    given.register_buffer("images", images);
    given.register_buffer("logits", run(*models[i], images).logits);
    given.save(data.string());
    command += fmt::format(" '{}' '{}'", file.string(), data.string());
  }
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace moesaic
