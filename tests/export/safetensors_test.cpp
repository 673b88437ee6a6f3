// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/formats.h"

#include "base/support.h"
#include "export/toy_info.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/formats/safetensors.h"
#include "moesaic/models/registry.h"
#include "support/faults.h"
#include "support/matchers.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const ExportInfo kInfo = testing::toy_info();

std::shared_ptr<VMoE> pruned_model() {
  auto model = small_vmoe();
  model->moe_blocks()[1].layer->keep_experts({0, 4});
  return model;
}

class ExportSafetensors : public ::testing::TestWithParam<const char*> {};

TEST_P(ExportSafetensors, ComesBackBitByBit) {
  const test::TempDir folder;
  const auto model = pruned_model();
  export_safetensors(*model, folder / GetParam(), kInfo);
  EXPECT_EQ(folder.names(), std::vector<std::string>{GetParam()});
  const auto loaded = load_model(folder / GetParam());
  EXPECT_EQ(loaded->config(), model->config());
  const TensorMap wanted = state_of(*model), found = state_of(*loaded);
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, ExportSafetensors, ::testing::Values("folder", "one.safetensors"));

TEST(ExportSafetensors, OnFaultsIsCompleteOrAbsent) {
  NEEDS_FAULTS();
  const test::TempDir folder;
  const fs::path disk = folder / "disk";
  const auto model = pruned_model();
  const auto prepare = [&] {
    fs::remove_all(disk);
    fs::create_directory(disk);
  };
  for (const char* name : {"a/folder", "one.safetensors"}) {
    const auto write = [&] { export_safetensors(*model, disk / name, kInfo); };
    const auto check = [&](const test::Outcome&) {
      if (!fs::exists(disk / name)) write();
      EXPECT_EQ(load_model(disk / name)->config(), model->config());
    };
    for (const char* effect : {"kill", "power", "EIO", "ENOSPC"}) {
      EXPECT_GT(test::for_every_call({"change", effect}, disk, prepare, write, check), 3);
    }
  }
}

TEST(ExportSafetensors, AFolderHoldsTheFactsBesideTheWeights) {
  const test::TempDir folder;
  const auto model = pruned_model();
  fs::create_directory(folder / "out");
  export_safetensors(*model, folder / "out", kInfo);
  EXPECT_EQ(nlohmann::json::parse(test::get(folder / "out/labels.json")), kInfo.input.classes);
  const auto preprocess = nlohmann::json::parse(test::get(folder / "out/preprocess.json"));
  EXPECT_EQ(preprocess["dataset"], "toys");
  EXPECT_EQ(preprocess["input_size"], (std::vector<int64_t>{1, 8, 8}));
  EXPECT_EQ(preprocess["mean"], kInfo.input.mean);
  EXPECT_EQ(preprocess["std"], kInfo.input.std);
  EXPECT_DOUBLE_EQ(preprocess["rescale_factor"].get<double>(), 1.0 / 255.0);
  auto config = nlohmann::ordered_json::parse(test::get(folder / "out/config.json"));
  EXPECT_EQ(config.at(kConstantsKey), model->constants());
  EXPECT_EQ(config.at(kConstantsKey).at("layer_norm_eps"), 1e-6);
  EXPECT_EQ(config.at(kConstantsKey).at("gelu"), "tanh");
  config.erase(kConstantsKey);
  EXPECT_EQ(config, model->config());
  EXPECT_TRUE(fs::exists(folder / "out/model.safetensors"));
}

TEST(ExportSafetensors, AFileHoldsTheFactsInItsMetadata) {
  const test::TempDir folder;
  const auto model = pruned_model();
  export_safetensors(*model, folder / "one.safetensors", kInfo);
  const safetensors::File file(folder / "one.safetensors");
  const auto texts = side_files(*model, kInfo);
  EXPECT_EQ(file.metadata().at("config"), texts.at("config.json"));
  EXPECT_EQ(file.metadata().at("labels"), texts.at("labels.json"));
  EXPECT_EQ(file.metadata().at("preprocess"), texts.at("preprocess.json"));
}

TEST(ExportSafetensors, ItsConfigurationBuildsTheNetworkAndItsConstantsCannotBeSet) {
  const auto model = pruned_model();
  auto config = nlohmann::ordered_json::parse(side_files(*model, kInfo).at("config.json"));
  EXPECT_EQ(build_meta_model(Value::from_json(config, "model"))->config(), model->config());
  config[kConstantsKey]["layer_norm_eps"] = 1e-5;
  EXPECT_THAT(test::usage_of([&] { build_meta_model(Value::from_json(config, "mine.json")); }),
              HasSubstr("cannot be set"));
}

TEST(ExportSafetensors, UnknownFactsAreNull) {
  const auto text = side_files(*pruned_model(), {}).at("preprocess.json");
  const auto preprocess = nlohmann::json::parse(text);
  for (const char* key : {"rescale_factor", "mean", "std"})
    EXPECT_TRUE(preprocess.at(key).is_null());
}

TEST(ExportSafetensors, OverwritesNoFolder) {
  const test::TempDir folder;
  const auto model = pruned_model();
  fs::create_directory(folder / "out");
  test::put(folder / "out/mine.txt", "mine");
  EXPECT_THAT(test::usage_of([&] { export_safetensors(*model, folder / "out"); }),
              HasSubstr("already exists"));
  test::put(folder / "file", "mine");
  test::usage_of([&] { export_safetensors(*model, folder / "file"); });
  EXPECT_EQ(test::get(folder / "file"), "mine");
  EXPECT_EQ(test::get(folder / "out/mine.txt"), "mine");
}

TEST(LoadExported, RefusesOtherFiles) {
  const test::TempDir folder;
  write_tensors(folder / "plain.safetensors", {{"x", torch::ones({2})}});
  EXPECT_THAT(test::usage_of([&] { load_model(folder / "plain.safetensors"); }),
              HasSubstr("no model configuration"));
  export_safetensors(*pruned_model(), folder / "out");
  fs::rename(folder / "out/config.json", folder / "kept.json");
  EXPECT_THAT(test::failure_of([&] { load_model(folder / "out"); }),
              HasSubstr("out/config.json: the file is missing"));
  fs::rename(folder / "kept.json", folder / "out/config.json");
  auto config = nlohmann::ordered_json::parse(test::get(folder / "out/config.json"));
  config["encoder"]["moe"]["kept_experts"] = nlohmann::ordered_json::object();
  test::put(folder / "out/config.json", config.dump());
  EXPECT_THAT(test::failure_of([&] { load_model(folder / "out"); }),
              HasSubstr("blocks.3.moe.experts"));
}

TEST(ExportSafetensors, OverwritesNoFile) {
  const test::TempDir folder;
  test::put(folder / "a.safetensors", "mine");
  test::usage_of([&] { export_safetensors(*pruned_model(), folder / "a.safetensors"); });
  EXPECT_EQ(test::get(folder / "a.safetensors"), "mine");
}

}  // namespace
}  // namespace moesaic
