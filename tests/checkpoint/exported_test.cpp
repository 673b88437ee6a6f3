// SPDX-License-Identifier: Apache-2.0
// What `moesaic export` writes is taken where a checkpoint is.

#include <caffe2/serialize/inline_container.h>

#include <functional>

#include "base/support.h"
#include "export/toy_info.h"
#include "moesaic/checkpoint/inspect.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/export/formats.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/evaluate.h"
#include "support/matchers.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

using ExportedTorchScript = test::InFolder;

class Exported : public ::testing::TestWithParam<const char*> {
 protected:
  Exported() {
    ExportInfo info = testing::toy_info();
    info.loss = "sigmoid";
    info.batch_size = 12;
    model_->moe_blocks()[1].layer->keep_experts({0, 4});
    const bool script = path_.extension() == ".pt";
    script ? export_torchscript(*model_, path_, info) : export_safetensors(*model_, path_, info);
  }

  const test::TempDir folder_;
  const std::shared_ptr<VMoE> model_ = small_vmoe();
  const std::filesystem::path path_ = folder_ / GetParam();
};

TEST_P(Exported, IsACheckpointWithItsInputLossAndBatchSize) {
  const Checkpoint checkpoint = load_newest_checkpoint(path_);
  const auto model = model_of(checkpoint);
  EXPECT_EQ(model->config(), model_->config());
  const InputSpec input = input_spec_of(checkpoint, *model);
  EXPECT_EQ(document_of(input), document_of(testing::toy_info().input));
  EXPECT_EQ(trained_loss(checkpoint), "sigmoid");
  EXPECT_EQ(trained_batch_size(checkpoint), 12);
  EXPECT_EQ(checkpoint.config.at("data"), "toys");
}

TEST_P(Exported, HasTheNetworksTensors) {
  expect_equal_tensors(load_newest_checkpoint(path_).model, state_of(*model_));
}

TEST_P(Exported, IsPruned) {
  prune_checkpoint({.finetuned = path_,
                    .out = folder_ / "pruned",
                    .prune = {.criterion = "magnitude", .keep = KeepSpec::count(2)}});
  const Checkpoint pruned = load_newest_checkpoint(folder_ / "pruned");
  EXPECT_EQ(input_spec_of(pruned, *model_of(pruned)).mean, std::vector<double>{0.5});
  EXPECT_EQ(trained_loss(pruned), "sigmoid");
}

TEST_P(Exported, IsInspected) {
  const auto found = inspect(path_);
  const std::string form = GetParam();
  EXPECT_EQ(found.at("kind"), form == "folder"            ? "export"
                              : form == "one.safetensors" ? "safetensors"
                                                          : "torchscript");
  EXPECT_EQ(found.at("moe")[1].at("kept"), (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(found.at("classes").size(), 5U);
  EXPECT_EQ(found.at("parameters"), model_->num_parameters());
  EXPECT_TRUE(inspect_difference(path_, path_).at("changed").empty());
}

INSTANTIATE_TEST_SUITE_P(Forms, Exported,
                         ::testing::Values("folder", "one.safetensors", "model.ts.pt"));

TEST(ExportedInHalfPrecision, IsReadAsFloat32) {
  const test::TempDir folder;
  const auto model = small_vmoe();
  export_safetensors(*model, folder / "out", testing::toy_info());
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    TensorMap narrow = state_of(*model);
    for (auto& [name, tensor] : narrow) tensor = tensor.to(type);
    write_tensors(folder / "out/model.safetensors", narrow);
    for (const bool mapped : {false, true}) {
      const Checkpoint checkpoint = load_newest_checkpoint(folder / "out", {.mmap = mapped});
      const TensorMap found = state_of(*model_of(checkpoint));
      for (const auto& [name, tensor] : found) {
        EXPECT_TRUE(torch::equal(tensor, narrow.at(name).to(at::kFloat))) << name;
      }
    }
    EXPECT_EQ(inspect(folder / "out").at("tensors")[0].at("dtype"),
              type == at::kHalf ? "F16" : "BF16");
  }
}

TEST(ExportedByAnOlderVersion, IsCompletedWithAWarning) {
  const test::TempDir folder;
  const auto model = small_vmoe();
  export_safetensors(*model, folder / "out", testing::toy_info());
  std::filesystem::remove(folder / "out/evaluation.json");
  test::put(folder / "out/preprocess.json",
            R"({"dataset": "toys", "input_size": [1, 8, 8], "rescale_factor": 0.00392156862745098,
                "mean": [0.5], "std": [0.25]})");
  Checkpoint checkpoint;
  EXPECT_THAT(test::said_by([&] { checkpoint = load_newest_checkpoint(folder / "out"); }),
              HasSubstr("older version"));
  const InputSpec input = input_spec_of(checkpoint, *model);
  EXPECT_EQ(document_of(input), document_of(testing::toy_info().input));
  EXPECT_EQ(trained_loss(checkpoint), "");
}

TEST(ExportedFolder, WithOneFileInThePlaceOfAnotherIsRefused) {
  const auto refused = [](const std::string& from, const std::string& to, const std::string& what) {
    const test::TempDir folder;
    const auto out = folder / "out";
    export_safetensors(*small_vmoe(), out, testing::toy_info());
    std::filesystem::copy_file(out / from, out / to,
                               std::filesystem::copy_options::overwrite_existing);
    const std::string place = (out / to).string() + what;
    EXPECT_THAT(test::failure_of([&] { inspect(out); }), HasSubstr(place));
    EXPECT_THAT(test::failure_of([&] { load_model(out); }), HasSubstr(place));
  };
  refused("labels.json", "config.json", ":1:1: 'config' must be an object, found a list");
  refused("config.json", "labels.json", ":1:1: 'labels' must be a list, found an object");
  refused("labels.json", "preprocess.json", ":1:1: 'preprocess' must be an object");
  refused("labels.json", "evaluation.json", ":1:1: 'evaluation' must be an object");
  refused("config.json", "preprocess.json", ":1:1: missing key 'input_size'");
  refused("preprocess.json", "config.json", ":1:1: missing key 'name' in model");
}

TEST(ExportedFolder, WithSettingsOutOfRangeIsRefusedWithTheirPlace) {
  const test::TempDir folder;
  export_safetensors(*small_vmoe(), folder / "out", testing::toy_info());
  const auto file = folder / "out/config.json";
  auto config = nlohmann::ordered_json::parse(test::get(file));
  config["encoder"]["moe"]["num_experts"] = 1'000'000'000'000;
  test::put(file, config.dump());  // On one line.
  const auto place = HasSubstr(file.string() + ":1:");
  EXPECT_THAT(test::failure_of([&] { inspect(folder / "out"); }), place);
  EXPECT_THAT(test::failure_of([&] { load_model(folder / "out"); }), place);
  config = {{"name", "of-another-program"}};
  test::put(file, config.dump());
  EXPECT_EQ(inspect(folder / "out").at("moe").size(), 0U);
}

TEST_F(ExportedTorchScript, ThatIsDamagedIsRefused) {
  const auto file = folder / "model.ts.pt";
  export_torchscript(*small_vmoe(), file, testing::toy_info());
  const std::string whole = test::get(file);
  test::put(folder / "cut.pt", whole.substr(0, 1000));
  EXPECT_THAT(test::failure_of([&] { inspect(folder / "cut.pt"); }), HasSubstr("corrupt"));
  // Under another name a tensor is missing.
  std::string renamed = whole;
  const size_t place = renamed.find("moe.router.weight\":{\"dtype");
  ASSERT_NE(place, std::string::npos);
  renamed.replace(place + 4, 6, "ruoter");
  test::put(folder / "renamed.pt", renamed);
  EXPECT_THAT(test::failure_of([&] { load_model(folder / "renamed.pt"); }),
              HasSubstr("renamed.pt"));
}

TEST_F(ExportedTorchScript, IsReadWithoutItsPickle) {
  const auto file = folder / "model.ts.pt";
  const auto model = small_vmoe();
  export_torchscript(*model, file, testing::toy_info());
  std::string bytes = test::get(file);
  const size_t pickle = bytes.find("data.pkl") + 8;
  const size_t end = bytes.find("PK", pickle);
  ASSERT_LT(pickle, end);
  bytes.replace(pickle, end - pickle, std::string(end - pickle, '('));  // Marks without an end.
  test::put(file, bytes);
  EXPECT_TRUE(torch::equal(load_model(file)->parameters()[0], model->parameters()[0]));
  EXPECT_EQ(inspect(file).at("kind"), "torchscript");
}

/// TorchScript with the facts of an export but without its safetensors, as older versions and
/// strangers write it.
void write_pickled(const VMoE& model, const std::filesystem::path& file) {
  torch::jit::ExtraFilesMap extra;
  for (const auto& [name, text] : side_files(model, testing::toy_info())) extra[name] = text;
  to_torchscript(model).save(file.string(), extra);
}

TEST_F(ExportedTorchScript, OfAStrangerIsRefusedUnlessTrusted) {
  const auto file = folder / "theirs.pt";
  const auto model = small_vmoe();
  write_pickled(*model, file);
  const std::string advice = "export " + file.string() + " --trust --format safetensors";
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { load_newest_checkpoint(file); }, [&] { inspect(file); },
           [&] { inspect_difference(file, file); },
           [&] { evaluate_checkpoint({.checkpoint = file, .data = "toys"}); },
           [&] {
             prune_checkpoint({.finetuned = file, .pretrained = file, .out = folder / "pruned"});
           }}) {
    EXPECT_THAT(test::usage_of(use), HasSubstr(advice));
  }
  const Checkpoint trusted = load_newest_checkpoint(file, {.trust = true});
  expect_equal_tensors(trusted.model, state_of(*model));
  EXPECT_EQ(model_of(trusted)->config(), model->config());
  EXPECT_TRUE(inspect_difference(file, file, /*trust=*/true).at("changed").empty());
}

TEST_F(ExportedTorchScript, OfAnotherProgramIsRefusedByWhatItIs) {
  const auto file = folder / "other.pt";
  to_torchscript(*small_vmoe()).save(file.string());
  for (const bool trust : {false, true}) {
    EXPECT_THAT(test::usage_of([&] { load_newest_checkpoint(file, {.trust = trust}); }),
                HasSubstr("--trust does not help"));
  }
}

TEST_F(ExportedTorchScript, IsNotWhatTorchSaveWrites) {
  const std::string file = (folder / "state.pth").string();
  caffe2::serialize::PyTorchStreamWriter writer(file);
  writer.writeRecord("data.pkl", "}", 1);
  writer.writeEndOfFile();
  EXPECT_THAT(
      test::usage_of([&] { load_newest_checkpoint(file); }),
      ::testing::AllOf(HasSubstr("a pickle of PyTorch"), HasSubstr("moesaic import vit FOLDER")));
}

TEST(ExportedFolder, ItsWeightsAloneAreNone) {
  const test::TempDir folder;
  export_safetensors(*small_vmoe(), folder / "out", testing::toy_info());
  EXPECT_THAT(test::usage_of([&] { load_newest_checkpoint(folder / "out/model.safetensors"); }),
              HasSubstr("give its folder"));
}

TEST(ExportedOfAFolderOfImages, DoesNotSayThatItsNameIsListed) {
  const test::TempDir folder;
  ExportInfo info = testing::toy_info();
  info.input.is_listed = false;
  export_safetensors(*small_vmoe(), folder / "out", info);
  const Checkpoint checkpoint = load_newest_checkpoint(folder / "out");
  EXPECT_FALSE(checkpoint.config.contains("data"));
  EXPECT_THAT(test::usage_of([&] { evaluate_checkpoint({.checkpoint = folder / "out"}); }),
              HasSubstr("'toys' is not stored; give --data"));
}

TEST(NotExported, ACheckpointThatLostAFileIsDamagedWhicheverItIs) {
  const test::TempDir folder;
  const auto model = small_vmoe();
  save_checkpoint(folder / "it", {.config = {{"model", model->config()}},
                                  .state = {{"step", 1}},
                                  .model = state_of(*model),
                                  .optimizer = {}});
  std::filesystem::copy(folder / "it", folder / "other");
  std::filesystem::remove(folder / "it/MANIFEST.json");
  EXPECT_THAT(test::failure_of([&] { load_newest_checkpoint(folder / "it"); }),
              HasSubstr("MANIFEST.json is missing: not a checkpoint, or an incomplete one"));
  std::filesystem::remove(folder / "other/config.json");
  EXPECT_THAT(test::failure_of([&] { load_newest_checkpoint(folder / "other"); }),
              HasSubstr("config.json: the file is missing"));
}

}  // namespace
}  // namespace moesaic
