// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/script.h>

#include <set>

#include "base/support.h"
#include "export/torchscript_models.h"
#include "moesaic/checkpoint/tensors.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using testing::forward;
using testing::keep_everywhere;
using testing::kScriptInfo;
using Variant = testing::ScriptVariant;

std::shared_ptr<VMoE> build(const Variant& variant) {
  return testing::build_variant(variant);
}

class TorchScript : public ::testing::TestWithParam<Variant> {};

TEST_P(TorchScript, EqualsTheFrameworkForAnyBatch) {
  const auto model = build(GetParam());
  torch::jit::Module script = to_torchscript(*model);
  for (const int64_t batch : {1, 7, 32, 0, 3}) {
    SCOPED_TRACE(batch);
    const at::Tensor images = small_images(batch, 100 + batch);
    expect_close(forward(script, images), run(*model, images).logits, 1e-5);
  }
}

TEST_P(TorchScript, BreaksTiesLikeTheFramework) {
  const auto model = build(GetParam());
  for (MoEBlock& block : model->moe_blocks()) {
    // Rows of zeros: the logits of these experts are equal to the last bit, however they are
    // summed.
    for (const int64_t e : {1, 2, 4}) block.layer->router->weight.detach()[e].zero_();
  }
  torch::jit::Module script = to_torchscript(*model);
  const at::Tensor images = small_images(16);
  expect_close(forward(script, images), run(*model, images).logits, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, TorchScript,
    ::testing::Values(
        Variant{.name = "capacity_of_evaluation",
                .capacity_factor = 4.0,
                .group_size = 34,
                .multiple_of = 1,
                .evaluation_capacity_factor = 0.6},
        Variant{.name = "no_capacity_in_evaluation",
                .capacity_factor = 0.6,
                .group_size = 34,
                .evaluation_capacity_factor = 0.0},
        Variant{"dense"}, Variant{.name = "selected", .gate = "softmax_selected"},
        Variant{.name = "gap", .classifier = "gap"},
        Variant{.name = "first_patch", .classifier = "0", .representation = 9},
        Variant{.name = "map", .classifier = "map"},
        Variant{.name = "map_qk_norm", .classifier = "map", .qk_norm = true},
        Variant{.name = "map_head_qk_norm", .classifier = "map", .head_qk_norm = true},
        Variant{.name = "waves", .position = kSinCos2d},
        Variant{.name = "wide_waves", .classifier = "gap", .patch = {2, 4}, .position = kSinCos2d},
        Variant{.name = "top1", .selected = 1}, Variant{.name = "top6", .selected = 6},
        Variant{.name = "pruned", .kept = {0, 3, 4}}, Variant{.name = "one_left", .kept = {5}},
        Variant{.name = "pruned_selected", .gate = "softmax_selected", .kept = {1, 2}},
        Variant{.name = "mean_replacement", .kept = {0, 3, 4}, .mean_replacement = true},
        Variant{.name = "crowded_replacements",
                .capacity_factor = 0.6,
                .kept = {1, 2},
                .mean_replacement = true},
        Variant{.name = "capacity", .capacity_factor = 0.6},
        Variant{.name = "so_many_rows", .group_size = 20, .capacity = 3},
        Variant{.name = "headless", .representation = 9, .classes = 0},
        Variant{.name = "wide_patches", .patch = {2, 4}, .position = kNoPosition},
        Variant{.name = "stem", .stem = {{6, 1}, {9, 2, "batch_norm"}}},
        Variant{.name = "stem_before_patches", .classifier = "gap", .patch = {2, 4}, .stem = {{5}}},
        Variant{.name = "roomy", .capacity_factor = 3.0},
        Variant{.name = "raised_to_sevens", .capacity_factor = 0.6, .multiple_of = 7},
        Variant{.name = "groups", .capacity_factor = 0.5, .group_size = 20},
        Variant{.name = "logits", .gate = "logit"}, Variant{.name = "ones", .gate = "one"},
        Variant{.name = "adaptive",
                .router = R"({"name": "adaptive", "gate": "one", "threshold": 0.1})"},
        Variant{.name = "pruned_adaptive",
                .kept = {0, 2, 5},
                .router = R"({"name": "adaptive", "gate": "one"})"},
        Variant{.name = "rounded", .router = R"({"dispatcher": {"capacity_factor": 0.55,
            "capacity_rounding": "round", "capacity_multiple_of": 1}})"},
        Variant{.name = "rounded_groups", .group_size = 15, .router = R"({"dispatcher":
            {"capacity_factor": 0.8, "capacity_rounding": "round",
             "capacity_multiple_of": 1}})"},
        Variant{
            .name = "rerouted", .kept = {1, 2, 4}, .router = R"({"pruned_selection": "reroute"})"},
        Variant{.name = "rerouted_selected",
                .kept = {0, 5},
                .router = R"({"pruned_selection": "reroute", "gate": "softmax_selected",
                              "dispatcher": {"capacity_factor": 0.8}})"},
        Variant{.name = "priority",
                .router = R"({"dispatcher": {"capacity_factor": 0.5, "batch_priority": true}})"},
        Variant{.name = "priority_groups",
                .group_size = 20,
                .kept = {0, 1, 4},
                .router = R"({"num_selected_experts": 3, "dispatcher":
                             {"capacity_factor": 0.4, "batch_priority": true}})"},
        Variant{.name = "priority_rows",
                .group_size = 34,
                .router = R"({"gate": "logit", "dispatcher": {"capacity": 5,
                              "batch_priority": true}})"},
        Variant{.name = "expert_choice", .router = R"({"name": "NoisyTopItemsPerExpertRouter",
                "gate": "softmax_all", "dispatcher": {"capacity_factor": 1.0}})"},
        Variant{.name = "expert_choice_of_images",
                .group_size = 17,
                .router = R"({"name": "NoisyTopItemsPerExpertRouter",
                              "gate": "softmax_selected", "num_selected_tokens": 3})"},
        Variant{.name = "expert_choice_over_tokens",
                .group_size = 20,
                .kept = {1, 2, 5},
                .router = R"({"name": "NoisyTopItemsPerExpertRouter",
                              "gate": "softmax_tokens", "dispatcher": {"capacity_factor": 0.7}})"},
        Variant{.name = "expert_choice_with_replacements",
                .group_size = 20,
                .kept = {1, 2, 5},
                .mean_replacement = true,
                .router = R"({"name": "NoisyTopItemsPerExpertRouter",
                              "gate": "softmax_selected", "dispatcher": {"capacity_factor": 0.7}})"},
        Variant{.name = "expert_choice_rerouted",
                .group_size = 20,
                .kept = {1, 2, 5},
                .router = R"({"name": "NoisyTopItemsPerExpertRouter", "pruned_selection": "reroute",
                              "gate": "one", "dispatcher": {"capacity_factor": 0.9,
                              "capacity_rounding": "round"}})"},
        Variant{.name = "noisy", .router = R"({"noise": "always", "noise_std": 1.0})"},
        Variant{.name = "two_members", .members = 2},
        Variant{
            .name = "three_members", .capacity_factor = 0.6, .kept = {0, 2, 3, 4, 5}, .members = 3},
        Variant{.name = "noisy_members",
                .router = R"({"noise": "always", "noise_std": 1.0,
                "num_selected_experts": 1})",
                .members = 2},
        Variant{.name = "members_by_priority",
                .group_size = 34,
                .router = R"({"dispatcher": {"capacity_factor": 0.5, "batch_priority": true}})",
                .members = 2},
        Variant{.name = "pruned_groups",
                .gate = "softmax_selected",
                .capacity_factor = 0.7,
                .group_size = 11,
                .kept = {0, 2, 3, 5}}),
    [](const auto& info) { return info.param.name; });

// A number at the edge between two of bfloat16 may fall to the other side here.
TEST(TorchScriptBFloat16, RoundsWhatEntersAndLeavesTheExperts) {
  const auto model = build({.bfloat16 = true});
  const auto exact = build({});
  torch::jit::Module script = to_torchscript(*model);
  const at::Tensor images = small_images(32);
  const at::Tensor found = forward(script, images), wanted = run(*model, images).logits;
  const auto distance = [&](const at::Tensor& to) {
    return (found - to).abs().mean().item<double>();
  };
  EXPECT_LT(distance(wanted), 0.1 * distance(run(*exact, images).logits));
}

TEST(TorchScriptCapacity, IsTightEnoughToDropInTheseTests) {
  const auto tight = build({.capacity_factor = 0.5, .group_size = 20});
  const ModelOutput out = run(*tight, small_images(7));
  EXPECT_LT(out.routings[0].routing.offsets[6].item<int>(), 7 * 17 * 2);
}

TEST(TorchScriptPriority, DropsOthersThanTheOrderOfTokens) {
  const char* text = R"({{"dispatcher": {{"capacity_factor": 0.5, "batch_priority": {}}}}})";
  const at::Tensor images = small_images(7);
  std::vector<at::Tensor> logits;
  for (const char* priority : {"true", "false"}) {
    torch::jit::Module script =
        to_torchscript(*build({.router = fmt::format(fmt::runtime(text), priority)}));
    logits.push_back(forward(script, images));
  }
  EXPECT_GT((logits[0] - logits[1]).abs().max().item<double>(), 1e-2);
}

TEST(TorchScriptPruned, ATokenWithoutAnExpertGetsZero) {
  const auto model = build({.kept = {5}});
  const at::Tensor images = small_images(1);
  const torch::NoGradGuard no_grad;
  for (MoEBlock& block : model->moe_blocks()) {
    // Nobody selects the last expert: the lower one wins every tie.
    block.layer->router->weight.zero_();
  }
  torch::jit::Module script = to_torchscript(*model);
  EXPECT_EQ(run(*model, images).routings[0].routing.offsets[1].item<int>(), 0);
  expect_close(forward(script, images), run(*model, images).logits, 1e-5);
}

TEST(TorchScriptImages, OfAnotherShapeAreRefusedWithBothShapes) {
  const auto model = build({.classifier = "gap", .position = kNoPosition});
  torch::jit::Module script = to_torchscript(*model);
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {2, 1, 9, 8}, {2, 1, 8, 10}, {2, 3, 8, 8}, {1, 8, 8}, {1, 2, 1, 8, 8}}) {
    std::string said;
    try {
      forward(script, torch::zeros(shape));
    } catch (const std::exception& error) {
      said = error.what();
    }
    EXPECT_THAT(said, HasSubstr(fmt::format("images must have the shape [batch, 1, 8, 8], found "
                                            "[{}]\n",
                                            fmt::join(shape, ", "))));
  }
}

void collect_kinds(torch::jit::Block* block, std::set<std::string>& kinds) {
  for (torch::jit::Node* node : block->nodes()) {
    kinds.insert(node->kind().toQualString());
    for (torch::jit::Block* inner : node->blocks()) collect_kinds(inner, kinds);
  }
}

TEST(TorchScriptGraph, HoldsAtenOperatorsOnly) {
  const auto model = build({.capacity_factor = 0.7, .group_size = 11, .kept = {0, 2}});
  const torch::jit::Module script = to_torchscript(*model);
  std::set<std::string> kinds;
  for (const torch::jit::Module& module : script.modules()) {
    for (const auto& method : module.get_methods()) {
      auto graph = method.graph()->copy();
      torch::jit::Inline(*graph);
      collect_kinds(graph->block(), kinds);
    }
  }
  EXPECT_TRUE(kinds.contains("aten::addmm"));
  for (const std::string& kind : kinds) {
    EXPECT_TRUE(kind.starts_with("aten::") || kind.starts_with("prim::")) << kind;
  }
}

TEST(TorchScriptModule, HasTheParametersOfTheStateDict) {
  const auto model = build({.kept = {1, 2}});
  const torch::jit::Module script = to_torchscript(*model);
  const TensorMap wanted = state_of(*model);
  EXPECT_TRUE(wanted.contains("blocks.0.attention.qkv.weight"));
  size_t count = 0;
  for (const auto& parameter : script.named_parameters()) {
    ASSERT_TRUE(wanted.contains(parameter.name)) << parameter.name;
    EXPECT_TRUE(at::equal(parameter.value, wanted.at(parameter.name))) << parameter.name;
    ++count;
  }
  EXPECT_EQ(count, wanted.size());
  EXPECT_EQ(script.named_buffers().size(), 0U);
}

TEST(TorchScriptModule, IsACopy) {
  const auto model = build({});
  torch::jit::Module script = to_torchscript(*model);
  const at::Tensor images = small_images(2);
  const at::Tensor before = forward(script, images);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) parameter.zero_();
  EXPECT_TRUE(at::equal(forward(script, images), before));
}

TEST(TorchScriptModule, LetsGradientsReachTheImage) {
  const auto model = build({.capacity_factor = 0.7});
  torch::jit::Module script = to_torchscript(*model);
  std::vector<at::Tensor> gradients;
  for (int pass = 0; pass < 3; ++pass) {  // from the second on, the graph runs optimised
    const at::Tensor images = small_images(4).requires_grad_();
    script.forward({images}).toTensor().square().sum().backward();
    gradients.push_back(images.grad());
  }
  const at::Tensor images = small_images(4).requires_grad_();
  model->forward(images).logits.square().sum().backward();
  for (const at::Tensor& gradient : gradients) expect_close(gradient, images.grad(), 1e-4);
}

TEST(ExportTorchScript, TheFileRunsWithoutTheLibraryAndCarriesItsFacts) {
  const test::TempDir folder;
  const auto model = build({.kept = {0, 2, 4}});
  export_torchscript(*model, folder / "model.ts.pt", kScriptInfo);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"model.ts.pt"});
  torch::jit::ExtraFilesMap extra = {
      {"config.json", ""}, {"evaluation.json", ""}, {"labels.json", ""}, {"preprocess.json", ""}};
  torch::jit::Module script =
      torch::jit::load((folder / "model.ts.pt").string(), std::nullopt, extra);
  const at::Tensor images = small_images(5);
  expect_close(forward(script, images), run(*model, images).logits, 1e-5);
  for (const auto& [name, text] : side_files(*model, kScriptInfo))
    EXPECT_EQ(extra[name], text) << name;
}

TEST(ExportTorchScript, AFailureLeavesNothing) {
  const test::TempDir folder;
  const auto model = build({});
  test::failure_of([&] { export_torchscript(*model, folder / "no/such/folder.pt"); });
  {
    const test::FileSizeLimit limit(4096);
    const std::string error =
        test::failure_of([&] { export_torchscript(*model, folder / "model.pt"); });
    EXPECT_EQ(error.find((folder / "model.pt").string() + ": cannot write: "), 0U) << error;
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(TorchScriptModule, PositionWavesAreItsBuffer) {
  const auto model = build({.position = kSinCos2d});
  const torch::jit::Module script = to_torchscript(*model);
  ASSERT_EQ(script.named_buffers().size(), 1U);
  EXPECT_EQ((*script.named_buffers().begin()).name, "positions.waves");
  EXPECT_EQ(script.named_parameters().size(), state_of(*model).size());
}

class UnknownFamily : public Model {
 public:
  ModelOutput forward(const at::Tensor&, const at::Generator&) override { return {}; }
  nlohmann::ordered_json config() const override { return {{"name", "other"}}; }
  void reset_head(int64_t) override {}
  std::vector<MoEBlock> moe_blocks() const override { return {}; }
  std::vector<int64_t> input_shape() const override { return {1, 8, 8}; }
  int64_t tokens_per_image() const override { return 1; }
  int64_t num_classes() const override { return 1; }
  double flops_per_image(const RowsPerToken&) const override { return 0.0; }
};

TEST(ExportTorchScript, NamesAFamilyThatHasNoSuchForm) {
  const test::TempDir folder;
  EXPECT_THAT(test::usage_of([&] { export_torchscript(UnknownFamily(), folder / "model.pt"); }),
              HasSubstr("'other'"));
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace moesaic
