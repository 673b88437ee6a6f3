// SPDX-License-Identifier: Apache-2.0
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "data/http_server.h"
#include "import/vmoe/fixture.h"
#include "moesaic/base/path.h"
#include "moesaic/config/document.h"
#include "moesaic/config/schema.h"
#include "moesaic/import/vmoe/import.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;
using test::HttpServer;

std::vector<uint8_t> bytes_of(const fs::path& path) {
  const std::string text = test::get(path);
  return {text.begin(), text.end()};
}

/// A list of released checkpoints of its own, on a server that has the files `names` of them.
class Released : public ::testing::Test {
 protected:
  void serve(const VMoEConfig& config, const std::string& model, const std::string& more = "") {
    write_arrays(folder_ / "released-tiny", random_arrays(config), {.shards = 3});
    std::map<std::string, std::vector<uint8_t>> files;
    for (const std::string& name : folder_.names()) {
      if (!name.starts_with("released-tiny.")) continue;
      files[name] = bytes_of(folder_ / name);
      fs::remove(folder_ / name);
    }
    server_.emplace(std::move(files));
    fs::create_directory(folder_ / "checkpoints");
    test::put(folder_ / "checkpoints/released.json", fmt::format(R"({{
        "url": "{}", "licence": "MIT", "checkpoints": [
          {{"name": "released-tiny", "about": "tiny", "bytes": 1, {} "model": {}}},
          {{"name": "released-gone", "about": "gone", "bytes": 1, "model": {{}}}}]}})",
                                                                 server_->url(), more, model));
  }
  ImportVMoEOptions options(const std::string& name = "released-tiny") const {
    return {.prefix = name, .out = folder_ / "out"};
  }
  fs::path cache() const { return folder_ / "data/checkpoints"; }

  test::TempDir folder_;
  test::ScopedEnv home_{"MOESAIC_HOME", folder_.path().string()},
      data_{"MOESAIC_DATA", (folder_ / "data").string()}, proxy_{"no_proxy", "127.0.0.1"};
  std::optional<HttpServer> server_;
};

constexpr const char* kModel = R"({"name": "VisionTransformerMoe", "encoder": {"moe": {
    "group_size": 34, "router": {"num_selected_experts": 2, "dispatcher": {
      "capacity_factor": 1.5, "evaluation_capacity_factor": 4.0}}}}})";

TEST_F(Released, AreFetchedOnceAndImportedWithTheirConfiguration) {
  serve(import_config(), kModel);
  ImportVMoEOptions named = options();
  fetch_released(named);
  EXPECT_EQ(named.prefix, cache() / "released-tiny");
  const ImportVMoEResult result = import_vmoe(named);
  EXPECT_EQ(result.num_shards, 3);
  EXPECT_THAT(result.unused, IsEmpty());
  const Json& dispatcher = result.model["encoder"]["moe"]["router"]["dispatcher"];
  EXPECT_EQ(dispatcher["capacity_factor"], 1.5);
  EXPECT_EQ(dispatcher["evaluation_capacity_factor"], 4.0);
  const size_t requests = server_->requests().size();
  EXPECT_EQ(requests, 4U);
  ImportVMoEOptions again = options();
  again.model_config = folder_ / "own.json";
  fetch_released(again);
  EXPECT_TRUE(again.model.is_null());
  EXPECT_EQ(server_->requests().size(), requests);
}

TEST_F(Released, AShardThatBeganToArriveIsResumed) {
  serve(import_config(), kModel);
  ImportVMoEOptions whole = options();
  fetch_released(whole);
  const fs::path shard = cache() / "released-tiny.data-00001-of-00003";
  const std::string bytes = test::get(shard);
  fs::remove(shard);
  test::put(cache() / ("." + shard.filename().string() + ".moesaic.part"), bytes.substr(0, 10));
  ImportVMoEOptions rest = options();
  fetch_released(rest);
  EXPECT_EQ(test::get(shard), bytes);
  EXPECT_THAT(server_->requests(), Contains("released-tiny.data-00001-of-00003 10"));
}

/// Its router's array may be that of a network which is no ensemble.
TEST_F(Released, AnEnsembleTakesAFlatRouter) {
  serve(import_config(), R"({"name": "VisionTransformerMoeEnsemble", "encoder": {"moe": {
      "ensemble_size": 2, "group_size": 34, "router": {"num_selected_experts": 1,
        "dispatcher": {"capacity_factor": 1.5}}}}})",
        R"("image_size": 32,)");
  ImportVMoEOptions named = options();
  fetch_released(named);
  const ImportVMoEResult result = import_vmoe(named);
  EXPECT_EQ(result.model["name"], "e3");
  EXPECT_EQ(result.model["encoder"]["moe"]["group_size"], 34);
  EXPECT_THAT(result.fresh, IsEmpty());
}

TEST_F(Released, WhatIsNotThereIsSaidInOneLine) {
  serve(import_config(), kModel);
  const auto refused = [&](const std::string& name) {
    ImportVMoEOptions named = options(name);
    return test::usage_of([&] { fetch_released(named); });
  };
  EXPECT_THAT(refused("released-tinny"), HasSubstr("did you mean 'released-tiny'?"));
  EXPECT_THAT(refused("x"), AllOf(HasSubstr("x.index: no such file"), HasSubstr("released-gone")));
  EXPECT_THAT(refused("gs://vmoe_checkpoints/x"), HasSubstr("moesaic list checkpoints"));
  for (const char* address : {"https://me:s3cret@host/x", "https://host/x?token=s3cret"}) {
    EXPECT_THAT(refused(address), AllOf(HasSubstr("token"), Not(HasSubstr("s3cret"))));
  }
  ImportVMoEOptions gone = options("released-gone");
  EXPECT_THAT(test::failure_of([&] { fetch_released(gone); }),
              AllOf(HasSubstr(server_->url() + "released-gone.index: "), HasSubstr("404"),
                    HasSubstr("; or put released-gone.index and "),
                    EndsWith("by hand into " + cache().string())));
  EXPECT_THAT(test::names_in(cache()), IsEmpty());
}

TEST_F(Released, FilesOfOnesOwnAreLeftToTheImport) {
  serve(import_config(), kModel);
  for (const std::string& name : {(folder_ / "released-tiny").string(), std::string("a.index")}) {
    ImportVMoEOptions own = options(name);
    fetch_released(own);
    EXPECT_EQ(own.prefix, name);
    EXPECT_TRUE(own.model.is_null());
  }
  EXPECT_THAT(server_->requests(), IsEmpty());
}

/// The sizes are those of the reference's configurations; routing is checked against its text.
TEST(ReleasedList, HasTheNetworksOfTheReference) {
  struct Expected {
    const char* name;
    int64_t image, patch, classes;
    bool small, representation;
    double capacity, evaluated;
  };
  const std::vector<Expected> expected = {
      {"vmoe_s32_last2_ilsvrc2012_randaug_light1", 224, 32, 1000, true, true, 1.05, 4},
      {"vmoe_s32_last2_ilsvrc2012_randaug_light1_ft_ilsvrc2012", 384, 32, 1000, true, false, 1.5,
       -1},
      {"vmoe_s32_last2_ilsvrc2012_randaug_medium", 224, 32, 1000, true, true, 1.05, 4},
      {"vmoe_b16_imagenet21k_randaug_strong", 224, 16, 21843, false, false, 1.05, -1},
      {"vmoe_b16_imagenet21k_randaug_strong_ft_ilsvrc2012", 384, 16, 1000, false, false, 1.5, -1},
      {"eee_s32_last2_ilsvrc2012", 224, 32, 1000, true, true, 1.5, -1},
      {"eee_s32_last2_ilsvrc2012_ft_cifar100", 128, 32, 100, true, true, 1.5, -1}};
  const auto list = released_checkpoints();
  const Document document = Document::from_file(resource("checkpoints/released.json"));
  const auto items = document.root().at("checkpoints").items();
  ASSERT_EQ(list.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const Expected& e = expected[i];
    EXPECT_EQ(list[i].name, e.name);
    EXPECT_EQ(list[i].licence, "Apache-2.0");
    const int64_t width = e.small ? 512 : 768;
    const Json layers = e.small ? Json{5, 7} : Json{1, 3, 5, 7, 9, 11};
    const Json sizes = {{"image_size", e.image},
                        {"channels", 3},
                        {"patch_size", e.patch},
                        {"hidden_size", width},
                        {"num_classes", e.classes},
                        {"representation_size", e.representation ? width : 0},
                        {"encoder",
                         {{"num_layers", e.small ? 8 : 12},
                          {"num_heads", width / 64},
                          {"mlp_dim", 4 * width},
                          {"moe", {{"layers", layers}, {"num_experts", 8}}}}}};
    const VMoEModelConfig model = vmoe_model_config(items[i].at("model"));
    const auto config =
        parse<VMoEConfig>(Value::from_json(sizes, e.name).merged(model.model), "model");
    EXPECT_THAT(model.unused, IsEmpty());
    const auto& moe = config.encoder.moe;
    EXPECT_EQ(moe.router.capacity.factor, e.capacity);
    EXPECT_EQ(moe.router.capacity.evaluation_factor.value_or(-1), e.evaluated);
    EXPECT_EQ(moe.ensemble_size, list[i].name.starts_with("eee") ? 2 : 1);
    EXPECT_EQ(moe.router.k, list[i].name.starts_with("eee") ? 1 : 2);
    const int64_t tokens = (e.image / e.patch) * (e.image / e.patch) + 1;
    EXPECT_EQ(moe.group_size % (tokens * moe.ensemble_size), 0);
    int64_t bytes = 0;
    for (const VMoETensor& tensor : vmoe_tensors(config)) {
      bytes += 4 * c10::multiply_integers(tensor.shape);
    }
    EXPECT_EQ(list[i].bytes, bytes) << e.name;
  }
}

}  // namespace
}  // namespace moesaic::testing
