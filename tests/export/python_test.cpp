// SPDX-License-Identifier: Apache-2.0
// Networks as plain PyTorch, and what Python records of them.
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>
#include <stdexcept>

#include "base/support.h"
#include "export/torchscript_models.h"
#include "moesaic/checkpoint/program.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/nn/init.h"
#include "moesaic/ops/device.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using testing::build_variant;
using testing::kScriptInfo;
using testing::network_of;
using testing::python_here;
using Variant = testing::ScriptVariant;

std::string modeling_of(const Model& model) {
  const test::TempDir folder;
  export_pytorch(model, folder / "out", kScriptInfo);
  return test::get(folder / "out/modeling.py");
}

TEST(ExportPyTorch, WritesTextTensorsAndACard) {
  const test::TempDir folder;
  const auto model = build_variant({.capacity_factor = 0.7, .kept = {0, 2, 4}});
  ExportInfo info = kScriptInfo;
  info.evaluation = {{"kind", "eval"}, {"step", 7}, {"split", "test"}, {"accuracy", 81.25}};
  export_pytorch(*model, folder / "out", info);
  EXPECT_THAT(
      test::names_in(folder / "out"),
      ::testing::UnorderedElementsAre("README.md", "config.json", "evaluation.json", "labels.json",
                                      "model.safetensors", "modeling.py", "preprocess.json"));
  const TensorMap found = read_tensors(folder / "out/model.safetensors"), wanted = state_of(*model);
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, value] : wanted) EXPECT_TRUE(at::equal(found.at(name), value)) << name;
  EXPECT_THAT(test::get(folder / "out/README.md"),
              AllOf(HasSubstr("| test accuracy | 81.25 |"), HasSubstr("3 of 6"), HasSubstr("toys"),
                    HasSubstr("depends on the others of its batch")));
}

TEST(ExportPyTorch, HasNoSizeThatDependsOnValuesWithoutOurOperators) {
  std::string text = modeling_of(
      *build_variant({.capacity_factor = 0.7, .group_size = 12, .kept = {0, 2}, .members = 2}));
  EXPECT_THAT(text, AllOf(HasSubstr("class VMoE(nn.Module):"), HasSubstr("class MoELayer"),
                          HasSubstr("network = VMoE()"), HasSubstr("aten.linear")));
  static const std::regex operators("if has_operators\\(\\):\n(            .*\n)+");
  text = std::regex_replace(text, operators, "");
  for (const char* word : {"nonzero", "tolist", "masked_select", "-(-", "ops.prim", "torch.linear",
                           "torch.gelu", "__torch__"}) {
    EXPECT_EQ(text.find(word), std::string::npos) << word;
  }
}

TEST(ExportPyTorch, HasTheMethodsThatItsNetworkCalls) {
  const auto text = [](double factor) {
    return modeling_of(*build_variant({.capacity_factor = factor, .kept = {0, 2}}));
  };
  EXPECT_THAT(text(0.7), AllOf(HasSubstr("def all_at_once"), Not(HasSubstr("def one_by_one")),
                               Not(HasSubstr("def removed_weights"))));
  EXPECT_THAT(text(0.0), AllOf(HasSubstr("def one_by_one"), Not(HasSubstr("def all_at_once"))));
}

TEST(ExportPyTorch, OnlyRecordedExpertsWithoutACapacityComputeAllTokens) {
  const auto has_room = [](const char* config) {
    return modeling_of(*network_of(config)).find("def room") != std::string::npos;
  };
  EXPECT_FALSE(has_room(R"({"name": "latent-moe"})"));
  EXPECT_FALSE(has_room(R"({"name": "cluster-moe", "router": {}})"));
  EXPECT_TRUE(
      has_room(R"({"name": "image-moe", "num_experts": 2, "image_size": 8, "width": 0.1})"));
}

TEST(ExportPyTorch, EqualModulesShareAClass) {
  const std::string text = modeling_of(*build_variant({}));
  const size_t first = text.find("class LayerNorm(nn.Module)");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(text.find("class LayerNorm(nn.Module)", first + 1), std::string::npos);
}

TEST(ExportPyTorch, PositionWavesAreNoPartOfTheStateDict) {
  const test::TempDir folder;
  const auto model = build_variant({.position = kSinCos2d});
  export_pytorch(*model, folder / "out", kScriptInfo);
  EXPECT_TRUE(read_tensors(folder / "out/constants.safetensors").contains("positions.waves"));
  EXPECT_THAT(test::get(folder / "out/modeling.py"), HasSubstr("persistent=False"));
}

TEST(ExportPyTorch, AFolderIsAnExport) {
  const test::TempDir folder;
  const auto model = build_variant({.kept = {0, 2, 4}});
  export_pytorch(*model, folder / "out", kScriptInfo);
  const auto again = model_of(load_newest_checkpoint(folder / "out"));
  EXPECT_TRUE(at::equal(run(*again, small_images(3)).logits, run(*model, small_images(3)).logits));
}

TEST(ExportPyTorch, WithPreprocessingTakesBytesOfWhichItsExportTells) {
  const test::TempDir folder;
  const auto model = build_variant({});
  export_pytorch(*model, folder / "out", with_preprocessing(kScriptInfo));
  EXPECT_THAT(test::get(folder / "out/modeling.py"),
              AllOf(HasSubstr("class Normalized(VMoE):"), HasSubstr("(\"image_mean\", [0.5])"),
                    HasSubstr("network = Normalized()")));
  EXPECT_THAT(test::get(folder / "out/README.md"), HasSubstr("uint8, resized as"));
  const Checkpoint checkpoint = load_newest_checkpoint(folder / "out");
  const auto again = model_of(checkpoint);
  EXPECT_TRUE(input_spec_of(checkpoint, *again).takes_bytes);
  EXPECT_FALSE(export_info(checkpoint, *again).input.takes_bytes) << "the tensors do not";
}

TEST(ExportPyTorch, RefusesExpertsThatChooseAcrossImages) {
  const test::TempDir folder;
  const auto model =
      build_variant({.group_size = 20, .router = R"({"name": "NoisyTopItemsPerExpertRouter",
       "gate": "softmax_tokens", "dispatcher": {"capacity_factor": 0.7}})"});
  EXPECT_THAT(test::usage_of([&] { export_pytorch(*model, folder / "out", kScriptInfo); }),
              AllOf(HasSubstr("groups of 20 tokens"), HasSubstr("the 17 tokens of an image")));
  EXPECT_TRUE(folder.names().empty());
}

TEST(ExportPt2, SaysThatItNeedsPython) {
  const test::TempDir folder;
  const test::ScopedEnv none("MOESAIC_PYTHON", std::nullopt);
  const test::ScopedEnv empty("MOESAIC_VENV", folder.path().string());
  const auto model = build_variant({});
  EXPECT_THAT(test::usage_of([&] { export_pt2(*model, folder / "x.pt2", kScriptInfo); }),
              AllOf(HasSubstr("needs Python with PyTorch"), HasSubstr("--format pytorch")));
  const test::ScopedEnv wrong("MOESAIC_PYTHON", (folder / "python").string());
  EXPECT_THAT(test::usage_of([&] { export_onnx(*model, folder / "x.onnx", kScriptInfo); }),
              HasSubstr("no such program"));
  EXPECT_TRUE(folder.names().empty());
}

/// A program of a small network whose experts have a capacity.
class ExportedProgramFile : public ::testing::Test {
 protected:
  void SetUp() override {
    NEEDS_PYTHON();
    export_pt2(*model_, file_, kScriptInfo);
  }

  test::TempDir folder_;
  fs::path file_ = folder_ / "model.pt2";
  std::shared_ptr<Model> model_ = build_variant({.capacity_factor = 0.7, .kept = {0, 2, 4}});
};

/// A folder with a shell script `python` of these lines, which exports take for Python.
class FolderWithPython : public test::TempDir {
 public:
  explicit FolderWithPython(const std::string& lines) {
    test::put(path() / "python", "#!/bin/sh\n" + lines + "\n");
    fs::permissions(path() / "python", fs::perms::owner_all);
  }

 private:
  const test::ScopedEnv python_{"MOESAIC_PYTHON", (path() / "python").string()};
};

/// Expects that both formats fail with this text where Python is such a script, and leave nothing.
void expect_not_written(const Model& model, const std::string& script, const std::string& text) {
  const FolderWithPython folder(script);
  for (const auto write : {export_pt2, export_onnx}) {
    EXPECT_THAT(test::failure_of([&] { write(model, folder / "x", kScriptInfo, {}); }),
                HasSubstr(text));
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"python"});
}

/// Runs a script as where the package is not installed.
constexpr const char* kNoOnnxRuntime = R"(import importlib.util as util, runpy, sys
find = util.find_spec
util.find_spec = lambda name, *more: None if name == "onnxruntime" else find(name, *more)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__"))";

TEST_F(ExportedProgramFile, RunsWithoutPythonForAnyBatch) {
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"model.pt2"});
  const ExportedProgram program(file_);
  for (const int64_t batch : {1, 2, 3, 7, 32}) {
    SCOPED_TRACE(batch);
    const at::Tensor images = small_images(batch, 100 + batch);
    expect_close(program.run(images), run(*model_, images).logits, 1e-5);
  }
}

TEST_F(ExportedProgramFile, ComputesExpertsThatAllTokensSelectAndThatNoneDo) {
  const auto model = build_variant({});
  for (const auto& item : model->named_parameters()) {  // Normalised tokens have the mean 0.
    const at::Tensor value = item.value().detach();
    if (item.key().ends_with("norm2.bias")) value.add_(1.0);
    if (!item.key().ends_with("router.weight")) continue;
    value[0].add_(0.5);
    value[1].sub_(0.5);
  }
  export_pt2(*model, folder_ / "uneven.pt2", kScriptInfo);
  export_onnx(*model, folder_ / "uneven.onnx", kScriptInfo);  // It compares 1, 2 and 7 images.
  const ExportedProgram program(folder_ / "uneven.pt2");
  for (const int64_t batch : {1, 2, 7}) {
    SCOPED_TRACE(batch);
    const at::Tensor images = small_images(batch, 200 + batch);
    const ModelOutput wanted = run(*model, images);
    expect_close(program.run(images), wanted.logits, 1e-5);
    const Routing& routing = wanted.routings.front().routing;
    const at::Tensor rows = routing.offsets.diff();
    EXPECT_EQ(rows[0].item<int64_t>(), routing.num_tokens());
    EXPECT_EQ(rows[1].item<int64_t>(), 0);
  }
}

// Proofs compare 1, 2 and 7 rows.
TEST_F(ExportedProgramFile, ComputesTheSelectedRowsOfExpertsThatAreNoMlps) {
  const auto config = R"({"name": "latent-moe", "width": 24, "num_experts": 4, "num_neurons": 16,
      "routing": "top1"})";
  const auto model = network_of(config);
  ExportInfo info = kScriptInfo;
  info.input.input_size = model->input_shape();
  export_pt2(*model, folder_ / "rows.pt2", info);
  export_onnx(*model, folder_ / "rows.onnx", info);
}

// Proofs of both exports compare them with the network's own forward pass in int8.
TEST_F(ExportedProgramFile, ComputesExpertsInInt8) {
  if (!has_int8_matmul()) GTEST_SKIP() << "no VNNI";
  const auto config = R"({"name": "vmoe", "image_size": 8, "channels": 1, "patch_size": 4,
      "hidden_size": 8, "num_classes": 3, "encoder": {"num_layers": 2, "num_heads": 2,
      "mlp_dim": 900, "moe": {"layers": [1], "num_experts": 4}}})";
  const auto model = network_of(config);
  const at::Generator generator = nn::make_generator(5);
  for (const at::Tensor& value : model->parameters()) value.detach().normal_(0.0, 0.3, generator);
  const at::Tensor images = small_images(5), exact = run(*model, images).logits;
  for (const auto& network : {model, model_}) use_precision(*network, "int8");
  export_pt2(*model, folder_ / "3.pt2", kScriptInfo);
  export_onnx(*model_, folder_ / "5.onnx", kScriptInfo);
  const at::Tensor found = ExportedProgram(folder_ / "3.pt2").run(images);
  expect_close(found, run(*model, images).logits, 1e-5);
  EXPECT_GT((found - exact).abs().max().item<double>(), 1e-5);
  export_pytorch(*model, folder_ / "folder", kScriptInfo);
  const TensorMap stored = read_tensors(folder_ / "folder/model.safetensors");
  for (const auto& [name, value] : stored) {
    const bool is_expert = name.ends_with("experts.w1") || name.ends_with("experts.w2");
    EXPECT_EQ(value.scalar_type(), is_expert ? at::kChar : at::kFloat) << name;
  }
  EXPECT_THAT(test::get(folder_ / "folder/README.md"), HasSubstr("int8; accuracy and loss"));
}

// The noise of three experts is a part of four numbers, a view with gaps that a number multiplies.
TEST_F(ExportedProgramFile, KeepsItsResultsAndReadsViews) {
  const auto noisy = build_variant({.router = R"({"noise": "always", "noise_std": 1.0,
                                                  "num_selected_experts": 1})",
                                    .members = 2});
  export_pt2(*noisy, folder_ / "noisy.pt2", kScriptInfo);
  const ExportedProgram program(folder_ / "noisy.pt2");
  const at::Tensor first = program.run(small_images(3)), second = program.run(small_images(3, 8));
  expect_close(first, run(*noisy, small_images(3)).logits, 1e-5);
  expect_close(second, run(*noisy, small_images(3, 8)).logits, 1e-5);
}

TEST_F(ExportedProgramFile, IsACheckpointThatCanOnlyBeRun) {
  const Checkpoint checkpoint = load_newest_checkpoint(file_, {.accept_program = true});
  const auto program = model_of(checkpoint);
  const at::Tensor images = small_images(5);
  expect_close(run(*program, images).logits, run(*model_, images).logits, 1e-5);
  EXPECT_EQ(program->num_parameters(), model_->num_parameters());
  EXPECT_EQ(class_names_of(checkpoint), kScriptInfo.input.classes);
  EXPECT_THAT(test::usage_of([&] { load_newest_checkpoint(file_); }),
              HasSubstr("only eval, predict and bench can use"));
  EXPECT_THAT(test::usage_of([&] { program->to(at::Device("cuda")); }), HasSubstr("on the CPU"));
}

TEST_F(ExportedProgramFile, WithPreprocessingComputesBytesAndIsRunAsOthers) {
  const fs::path file = folder_ / "bytes.pt2";
  export_pt2(*model_, file, with_preprocessing(kScriptInfo));
  at::Generator generator = nn::make_generator(3);
  const at::Tensor bytes = at::empty({5, 1, 8, 8}, at::kByte).random_(256, generator);
  const at::Tensor images = (bytes.to(at::kDouble) / 255.0 - 0.5) / 0.25;
  const at::Tensor wanted = run(*model_, images.to(at::kFloat)).logits;
  expect_close(ExportedProgram(file).run(bytes), wanted, 1e-5);
  const auto program = model_of(load_newest_checkpoint(file, {.accept_program = true}));
  const auto predict = [&](const at::Tensor& x) { return run(*program, x).logits; };
  EXPECT_EQ(test::said_by([&] { expect_close(predict(images.to(at::kFloat)), wanted, 1e-5); }), "");
  EXPECT_THAT(test::said_by([&] { predict(images.to(at::kFloat) * 2); }),
              HasSubstr("the program takes bytes, and the inputs are none"));
}

TEST_F(ExportedProgramFile, ThatCannotBeWrittenLeavesNothing) {
  expect_not_written(*model_, "echo 'error: no torch here' >&2\nexit 1", "no torch here");
}

TEST_F(ExportedProgramFile, ThatIsStoppedLeavesNothing) {
  const FolderWithPython folder("exec sleep 1000");
  int64_t calls = 0;
  const auto stop = [&] {
    if (++calls == 3) throw std::runtime_error("stopped");
  };
  for (const auto write : {export_pt2, export_onnx}) {
    calls = 0;
    EXPECT_THROW(write(*model_, folder / "x", kScriptInfo, stop), std::runtime_error);
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"python"});
}

TEST_F(ExportedProgramFile, OfOnnxNeedsOnnxRuntime) {
  const FolderWithPython folder(
      fmt::format("exec '{}' -c '{}' \"$@\"", python_here(), kNoOnnxRuntime));
  EXPECT_THAT(test::failure_of([&] { export_onnx(*model_, folder / "x.onnx", kScriptInfo); }),
              AllOf(HasSubstr(" has no onnxruntime: "), HasSubstr("-m pip install ")));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"python"});
}

// Equal experts hide from the logits which of them a token selects.
TEST_F(ExportedProgramFile, ThatRoutesOtherwiseIsNotWrittenThoughLogitsAreEqual) {
  const auto tokens_choose = build_variant({});
  const auto experts_choose = build_variant({.group_size = 17, .router = R"({"name":
                     "NoisyTopItemsPerExpertRouter", "num_selected_tokens": 3})"});
  for (const auto& model : {tokens_choose, experts_choose}) {
    for (const auto& item : model->named_parameters()) {
      const at::Tensor value = item.value().detach();
      if (item.key().find(".experts.") != std::string::npos) value.copy_(value[0].clone());
    }
  }
  const FolderWithPython folder(
      fmt::format("sed -i -e 's/return self.weights_of_seen(logits)/&.flip([1])/' "
                  "-e '/return .token/s/flatten(1)/&.flip([0])/g' "
                  "\"$3/modeling.py\"\nexec '{}' \"$@\"",
                  python_here()));
  const auto expect_refused = [&](const auto write, const Model& model) {
    EXPECT_THAT(test::failure_of([&] { write(model, folder / "x", kScriptInfo, {}); }),
                HasSubstr("computes another routing in MoE layer 0 than the network for "));
  };
  expect_refused(export_pt2, *tokens_choose);
  expect_refused(export_onnx, *tokens_choose);
  expect_refused(export_pt2, *experts_choose);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"python"});
}

TEST_F(ExportedProgramFile, WithOtherLogitsIsNotWritten) {
  expect_not_written(*model_,
                     fmt::format("printf 'plain = load\\ndef load(*a):\\n    n = plain(*a)\\n    "
                                 "n.head.bias.data[0] += 1e-3\\n    return n\\n' "
                                 ">> \"$3/modeling.py\"\nexec '{}' \"$@\"",
                                 python_here()),
                     "computes other logits than the network for ");
}

std::string program_failure(const fs::path& file) {
  return test::failure_of([&] { ExportedProgram program(file); });
}

TEST_F(ExportedProgramFile, ThatIsDamagedIsRefusedBeforeItRuns) {
  std::string bytes = test::get(file_);
  const std::string whole = bytes;
  const size_t weights = bytes.find("data/weights/weight_0");
  ASSERT_NE(weights, std::string::npos);
  bytes[weights + 200] ^= 1;
  test::put(file_, bytes);
  EXPECT_THAT(program_failure(file_), HasSubstr("its checksum differs"));
  test::put(file_, whole.substr(0, whole.size() / 2));
  EXPECT_THAT(program_failure(file_), HasSubstr("corrupt archive"));
}

TEST_F(ExportedProgramFile, WithAShortTensorIsRefusedBeforeItRuns) {
  caffe2::serialize::PyTorchStreamReader whole(file_.string());
  for (const std::string cut : {"data/weights/weight_0", "data/constants/tensor_0"}) {
    const fs::path file = folder_ / "short.pt2";
    caffe2::serialize::PyTorchStreamWriter writer(file.string());
    for (const std::string& name : whole.getAllRecords()) {
      if (name == "version" || name.starts_with(".")) continue;
      const auto [content, size] = whole.getRecord(name);
      writer.writeRecord(name, content.get(), name == cut ? 4 : size);
    }
    writer.writeEndOfFile();
    EXPECT_THAT(program_failure(file), HasSubstr("do not match its sizes")) << cut;
  }
}

TEST(ExportedProgram, WithoutAGraphIsRefusedBeforeItRuns) {
  const test::TempDir folder;
  const std::string graph = "{}";
  caffe2::serialize::PyTorchStreamWriter writer((folder / "x.pt2").string());
  writer.writeRecord("models/model.json", graph.data(), graph.size());
  writer.writeEndOfFile();
  EXPECT_THAT(program_failure(folder / "x.pt2"), HasSubstr("a corrupt program: "));
}

TEST_F(ExportedProgramFile, OfAnotherProgramIsRefusedBeforeItRuns) {
  std::string bytes = test::get(file_);
  for (size_t at = 0; (at = bytes.find("extra/config.json", at)) != bytes.npos; ++at) {
    bytes.replace(at, 17, "extra/konfig.json");
  }
  test::put(file_, bytes);
  EXPECT_THAT(test::usage_of([&] { load_newest_checkpoint(file_, {.accept_program = true}); }),
              HasSubstr("of another program"));
  for (size_t at = 0; (at = bytes.find("models/model.json", at)) != bytes.npos; ++at) {
    bytes.replace(at, 17, "models/modem.json");
  }
  test::put(file_, bytes);
  EXPECT_TRUE(is_exported_program(file_)) << "else its author would have to be trusted";
  EXPECT_THAT(program_failure(file_), HasSubstr("has no models/model.json"));
  test::put(folder_ / "x.onnx", "x");
  EXPECT_THAT(test::usage_of([&] { load_newest_checkpoint(folder_ / "x.onnx"); }),
              HasSubstr("which ONNX Runtime runs"));
}

}  // namespace
}  // namespace moesaic
