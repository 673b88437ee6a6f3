// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <limits>

#include "base/support.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/models/registry.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using LoadModel = test::InFolder;

Json tiny_config() {
  return Json::parse(R"({"name": "vmoe", "image_size": 4, "patch_size": 2, "hidden_size": 6,
    "num_classes": 3, "encoder": {"num_layers": 2, "num_heads": 2, "mlp_dim": 5,
    "moe": {"layers": [1], "num_experts": 4}}})");
}

std::shared_ptr<Model> tiny_model() {
  auto model = build_model(Value::from_json(tiny_config(), "test"), 5);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) parameter.normal_();
  return model;
}

void save(const fs::path& folder, const Model& model, const Json& config) {
  save_checkpoint(folder, {{{"model", config}}, Json::object(), state_of(model), {}});
}

void save(const fs::path& folder, const Model& model) {
  save(folder, model, model.config());
}

std::string refused_model(const fs::path& folder) {
  return test::failure_of([&] { load_model(folder); });
}

at::Tensor logits(Model& model) {
  const torch::NoGradGuard no_grad;
  return model.forward(at::arange(32, at::kFloat).view({2, 1, 4, 4}) / 16).logits;
}

TEST_F(LoadModel, RebuildsTheModelOfARunOrACheckpoint) {
  const auto model = tiny_model();
  save(folder / "checkpoints/step_3", *model);
  for (const fs::path& path : {folder.path(), folder / "checkpoints/step_3"}) {
    const auto loaded = load_model(path);
    EXPECT_EQ(loaded->config(), model->config());
    EXPECT_TRUE(at::equal(logits(*loaded), logits(*model)));
    EXPECT_FALSE(loaded->is_training());
  }
}

TEST_F(LoadModel, DoesNotReadWhatAStrangersCheckpointExtends) {
  const auto model = tiny_model();
  test::put(folder / "model.json", model->config().dump());
  save(folder / "strange", *model, {{"extends", "../model.json"}});
  EXPECT_THAT(refused_model(folder / "strange"), HasSubstr("'name'"));
}

TEST_F(LoadModel, RebuildsAPrunedModel) {
  const auto model = tiny_model();
  model->moe_blocks()[0].layer->keep_experts({1, 3});
  save(folder / "pruned", *model);
  const auto loaded = load_model(folder / "pruned");
  EXPECT_EQ(loaded->moe_blocks()[0].layer->kept(), (std::vector<int64_t>{1, 3}));
  EXPECT_TRUE(at::equal(logits(*loaded), logits(*model)));
}

TEST_F(LoadModel, ConfigAndTensorsHaveToAgreeAboutPruning) {
  const auto full = tiny_model();
  const auto pruned = tiny_model();
  pruned->moe_blocks()[0].layer->keep_experts({1, 3});
  save(folder / "a", *pruned, full->config());
  save(folder / "b", *full, pruned->config());
  for (const char* name : {"a", "b"}) {
    EXPECT_THAT(refused_model(folder / name),
                AllOf(HasSubstr((folder / name / "model.safetensors").string()),
                      HasSubstr("encoder.moe.kept_experts"), HasSubstr("experts.w1 is Float[")))
        << name;
  }
}

TEST_F(LoadModel, PointsIntoTheStoredConfig) {
  const auto model = tiny_model();
  Json config = model->config();
  config["name"] = "vmoee";
  save(folder / "a", *model, config);
  EXPECT_THAT(refused_model(folder / "a"),
              AllOf(HasSubstr("config.json:5:13: "), HasSubstr("did you mean 'vmoe'?")));
  config = model->config();
  config["num_classes"] = 4;
  save(folder / "b", *model, config);
  EXPECT_THAT(refused_model(folder / "b"),
              HasSubstr("2 different (head.bias is Float[3], the model has Float[4]"));
}

TEST_F(LoadModel, RefusesAnAlteredCheckpoint) {
  const auto model = tiny_model();
  save(folder / "a", *model);
  std::string bytes = test::get(folder / "a/model.safetensors");
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 4);
  test::put(folder / "a/model.safetensors", bytes);
  EXPECT_THAT(refused_model(folder / "a"), HasSubstr("altered"));
}

TEST_F(LoadModel, RefusesAConfigThatMeansFarMoreThanTheFileHolds) {
  const auto model = tiny_model();
  Json config = model->config();
  config["encoder"]["mlp_dim"] = 1048576;
  config["hidden_size"] = 96;
  save(folder / "a", *model, config);
  EXPECT_THAT(refused_model(folder / "a"),
              AllOf(HasSubstr("model.safetensors: the tensors do not fit the model"),
                    HasSubstr(".bias is Float[6], the model has Float[96]")));
  config["encoder"]["num_layers"] = 1000000000000000000;
  save(folder / "b", *model, config);
  EXPECT_THAT(refused_model(folder / "b"),
              HasSubstr("'model.encoder.num_layers' must be between 1 and 1024"));
}

TEST_F(LoadModel, NamesATensorThatIsNotFinite) {
  const auto model = tiny_model();
  {
    const torch::NoGradGuard no_grad;
    model->named_parameters()["head.weight"][1][2] = std::numeric_limits<float>::quiet_NaN();
  }
  save(folder / "a", *model);
  EXPECT_THAT(refused_model(folder / "a"),
              HasSubstr("model.safetensors: 'head.weight' holds NaN or infinity"));
}

}  // namespace
}  // namespace moesaic
