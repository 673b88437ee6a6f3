// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/torchscript.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/script.h>

#include <cstdlib>
#include <set>

#include "base/support.h"
#include "export/toy_info.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/config/document.h"
#include "prune/small_vmoe.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using testing::expect_close;
using ::testing::HasSubstr;
using testing::run;
using testing::small_images;
using testing::small_vmoe;
using testing::small_vmoe_config;

at::Tensor forward(torch::jit::Module& script, const at::Tensor& images) {
  const torch::NoGradGuard no_grad;
  return script.forward({images}).toTensor();
}

void keep_everywhere(const Model& model, const std::vector<int64_t>& ids) {
  for (MoEBlock& block : model.moe_blocks()) block.layer->keep_experts(ids);
}

struct Variant {
  std::string name, gate = "softmax_all", classifier = "token";
  double capacity_factor = 0.0;
  int64_t group_size = 0, selected = 2, multiple_of = 4;
  std::vector<int64_t> kept = {};
  bool qk_norm = false, bfloat16 = false;
  int64_t representation = 0, capacity = 0, classes = 5;
  Sides patch = 2;
  std::string position = kLearned;
  std::optional<bool> head_qk_norm = {};
  std::optional<double> evaluation_capacity_factor = {};
};

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

std::shared_ptr<VMoE> build(const Variant& variant) {
  VMoEConfig config = small_vmoe_config();
  config.classifier = variant.classifier;
  config.representation_size = variant.representation;
  config.encoder.attention_qk_norm = variant.qk_norm;
  config.map_head_qk_norm = variant.head_qk_norm;
  config.encoder.moe.router.dispatcher.bfloat16 = variant.bfloat16;
  config.encoder.moe.group_size = variant.group_size;
  config.encoder.moe.router.gate = variant.gate;
  config.encoder.moe.router.num_selected_experts = variant.selected;
  config.classes = variant.classes;
  config.patch_size = variant.patch;
  config.encoder.position_emb.name = variant.position;
  config.encoder.moe.router.dispatcher.capacity = variant.capacity;
  config.encoder.moe.router.dispatcher.capacity_factor = variant.capacity_factor;
  config.encoder.moe.router.dispatcher.capacity_multiple_of = variant.multiple_of;
  config.encoder.moe.router.dispatcher.evaluation_capacity_factor =
      variant.evaluation_capacity_factor;
  auto model = small_vmoe(config);
  if (!variant.kept.empty()) keep_everywhere(*model, variant.kept);
  model->eval();
  return model;
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
  {
    const torch::NoGradGuard no_grad;
    for (MoEBlock& block : model->moe_blocks()) {
      // Rows of zeros: the logits of these experts are equal to the last bit, however they are
      // summed.
      for (const int64_t expert : {1, 2, 4}) block.layer->router->weight[expert].zero_();
    }
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
        Variant{.name = "capacity", .capacity_factor = 0.6},
        Variant{.name = "so_many_rows", .group_size = 20, .capacity = 3},
        Variant{.name = "headless", .representation = 9, .classes = 0},
        Variant{.name = "wide_patches", .patch = {2, 4}, .position = kNoPosition},
        Variant{.name = "roomy", .capacity_factor = 3.0},
        Variant{.name = "raised_to_sevens", .capacity_factor = 0.6, .multiple_of = 7},
        Variant{.name = "groups", .capacity_factor = 0.5, .group_size = 20},
        Variant{.name = "pruned_groups",
                .gate = "softmax_selected",
                .capacity_factor = 0.7,
                .group_size = 11,
                .kept = {0, 2, 3, 5}}),
    [](const auto& info) { return info.param.name; });

// A number at the edge between two of bfloat16 may fall to the other side here.
TEST(TorchScriptBFloat16, RoundsWhatEntersAndLeavesTheExperts) {
  const auto model = build({.name = "", .bfloat16 = true});
  const auto exact = build({.name = ""});
  torch::jit::Module script = to_torchscript(*model);
  const at::Tensor images = small_images(32);
  const at::Tensor found = forward(script, images), wanted = run(*model, images).logits;
  const auto distance = [&](const at::Tensor& to) {
    return (found - to).abs().mean().item<double>();
  };
  EXPECT_LT(distance(wanted), 0.1 * distance(run(*exact, images).logits));
}

TEST(TorchScriptCapacity, IsTightEnoughToDropInTheseTests) {
  const auto tight = build({.name = "", .capacity_factor = 0.5, .group_size = 20});
  const ModelOutput out = run(*tight, small_images(7));
  EXPECT_LT(out.routings[0].routing.offsets[6].item<int>(), 7 * 17 * 2);
}

TEST(TorchScriptPruned, ATokenWithoutAnExpertGetsZero) {
  const auto model = build({.name = "", .kept = {5}});
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
  const auto model = build({.name = "", .classifier = "gap", .position = kNoPosition});
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
  const auto model = build({.name = "", .capacity_factor = 0.7, .group_size = 11, .kept = {0, 2}});
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
  const auto model = build({.name = "", .kept = {1, 2}});
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
  const auto model = build({.name = "", .capacity_factor = 0.7});
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

const ExportInfo kScriptInfo = testing::toy_info();

TEST(ExportTorchScript, TheFileRunsWithoutTheLibraryAndCarriesItsFacts) {
  const test::TempDir folder;
  const auto model = build({.name = "", .kept = {0, 2, 4}});
  export_torchscript(*model, folder / "model.ts.pt", kScriptInfo);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"model.ts.pt"});
  torch::jit::ExtraFilesMap extra = {
      {"config.json", ""}, {"labels.json", ""}, {"preprocess.json", ""}};
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
    test::failure_of([&] { export_torchscript(*model, folder / "model.pt"); });
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(ExportTorchScript, RefusesEnsemblesAndNamesTheOtherFormat) {
  VMoEConfig config = small_vmoe_config();
  config.name = kE3;
  config.encoder.moe.ensemble_size = 2;
  EXPECT_THAT(test::failure_of([&] { to_torchscript(VMoE(config, 1)); }),
              HasSubstr("--format safetensors holds every network"));
}

TEST(ExportTorchScript, RefusesNoiseInEvaluation) {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.router.noise = kNoiseAlways;
  EXPECT_NO_THROW(to_torchscript(VMoE(config, 1)));  // of deviation 0
  config.encoder.moe.router.noise_std = 1.0;
  EXPECT_THAT(test::failure_of([&] { to_torchscript(VMoE(config, 1)); }),
              HasSubstr("noise in evaluation cannot be exported; --format safetensors"));
}

TEST(TorchScriptModule, PositionWavesAreItsBuffer) {
  const auto model = build({.name = "", .position = kSinCos2d});
  const torch::jit::Module script = to_torchscript(*model);
  ASSERT_EQ(script.named_buffers().size(), 1U);
  EXPECT_EQ((*script.named_buffers().begin()).name, "positions.waves");
  EXPECT_EQ(script.named_parameters().size(), state_of(*model).size());
}

TEST(ExportTorchScript, RefusesRoutingsThatItCannotSay) {
  const test::TempDir folder;
  for (const auto& [change, said] :
       {std::pair{
            R"({"name": "NoisyTopItemsPerExpertRouter", "dispatcher": {"capacity_factor": 1}})",
            "expert choice"},
        std::pair{R"({"name": "adaptive", "gate": "one"})", "adaptive routing"},
        std::pair{R"({"gate": "logit"})", "gates 'logit'"},
        std::pair{R"({"dispatcher": {"capacity_factor": 1, "capacity_ceil_or_round": "round"}})",
                  "rounded to the nearest"},
        std::pair{R"({"dispatcher": {"capacity_factor": 1, "batch_priority": true}})",
                  "batch priority"}}) {
    VMoEConfig config = small_vmoe_config();
    config.encoder.moe.router =
        parse<VMoERouterConfig>(Document::from_text(change, "router.json").root());
    const auto model = small_vmoe(config);
    EXPECT_THAT(test::failure_of([&] { export_torchscript(*model, folder / "model.pt"); }),
                HasSubstr(said));
  }
  EXPECT_TRUE(folder.names().empty());
}

class UnknownFamily : public Model {
 public:
  ModelOutput forward(const at::Tensor&, const at::Generator&) override { return {}; }
  nlohmann::ordered_json config() const override { return {{"name", "other"}}; }
  void reset_head(int64_t) override {}
  std::vector<MoEBlock> moe_blocks() const override { return {}; }
  std::vector<int64_t> input_shape() const override { return {1, 8, 8}; }
  int64_t tokens_per_image() const override { return 1; }
  int64_t classes() const override { return 1; }
  double flops_per_image(const RowsPerToken&) const override { return 0.0; }
};

TEST(ExportTorchScript, NamesAFamilyThatHasNoSuchForm) {
  const test::TempDir folder;
  EXPECT_THAT(test::usage_of([&] { export_torchscript(UnknownFamily(), folder / "model.pt"); }),
              HasSubstr("'other'"));
  EXPECT_TRUE(folder.names().empty());
}

constexpr const char* kPythonCheck = R"(
import sys, torch
torch.set_num_threads(1)
extra = {"labels.json": "", "config.json": "", "preprocess.json": ""}
model = torch.jit.load(sys.argv[1], _extra_files=extra).eval()
given = torch.jit.load(sys.argv[2])
worst = (model(given.images) - given.logits).abs().max().item()
assert worst < 1e-5, worst
assert [tuple(model(torch.zeros(b, 1, 8, 8)).shape) for b in (0, 1, 3)] == [(0, 5), (1, 5), (3, 5)]
assert "blocks.1.moe.experts.w1" in model.state_dict(), list(model.state_dict())
assert b"toys" in extra["preprocess.json"], extra
frozen = torch.jit.freeze(model)
assert (frozen(given.images) - given.logits).abs().max().item() < 1e-5
)";

TEST(ExportTorchScript, StockPythonRunsIt) {
  const char* venv = std::getenv("MOESAIC_VENV");
  const fs::path python = fs::path(venv == nullptr ? "" : venv) / "bin/python";
  if (!fs::exists(python)) GTEST_SKIP() << "MOESAIC_VENV has no Python with torch";
  const test::TempDir folder;
  const auto model = build({.name = "", .capacity_factor = 0.7, .kept = {0, 2, 4}});
  export_torchscript(*model, folder / "model.pt", kScriptInfo);
  torch::jit::Module given("given");
  const at::Tensor images = small_images(6);
  given.register_buffer("images", images);
  given.register_buffer("logits", run(*model, images).logits);
  given.save((folder / "given.pt").string());
  test::put(folder / "check.py", kPythonCheck);
  const std::string command =
      fmt::format("'{}' -W ignore '{}' '{}' '{}'", python.string(), (folder / "check.py").string(),
                  (folder / "model.pt").string(), (folder / "given.pt").string());
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace moesaic
