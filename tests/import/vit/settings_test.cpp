// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <torch/torch.h>

#include "import/vit/fixture.h"

namespace moesaic::testing::vit {
namespace {

TEST_F(ImportVit, NetworksThatComputeSomethingElseAreRefused) {
  const auto refuse = [&](const TensorMap& tensors, const std::string& config) {
    return refused(ErrorKind::failure, tensors, {}, config);
  };
  EXPECT_THAT(refuse(timm_tensors(), R"({"model_args": {"pool_include_prefix": true}})"),
              HasSubstr("'pool_include_prefix' of 'model_args' is not supported"));
  EXPECT_THAT(refuse(timm_tensors(), R"({"architecture": "vit_base_patch16_rope_ape_224"})"),
              HasSubstr("'vit_base_patch16_rope_ape_224' has rotary positions or others"));
  EXPECT_THAT(refuse(timm_tensors(), R"({"architecture": "test_vit3"})"),
              HasSubstr("'test_vit3' includes class token and registers in the mean of tokens"));
  EXPECT_THAT(refuse(timm_tensors(), R"({"model_type": "dinov3_vit"})"),
              HasSubstr("model_type 'dinov3_vit' of config.json is none of vit, "));
  TensorMap gated = timm_tensors();
  const at::Tensor& fc2 = gated.at("blocks.0.mlp.fc2.weight");
  add(gated, "blocks.0.mlp.fc1.weight", {2 * fc2.size(1), kWidth});
  EXPECT_THAT(refuse(gated, "{}"), HasSubstr("its MLPs are SwiGLU"));
  TensorMap without = timm_tensors();
  without.erase("pos_embed");
  EXPECT_THAT(refuse(without, R"({"model_type": "vit", "image_size": 8})"),
              HasSubstr("tensor 'pos_embed' is missing"));
  import_vit(options(write("known", timm_tensors(), R"({"architecture": "vit_tiny_patch4_8",
      "model_args": {"pool_include_prefix": false, "norm_layer": null, "drop_rate": 0.1,
                     "img_size": 8}})")));
}

TEST_F(ImportVit, ConfigurationsOfOtherTensorsAreRefused) {
  for (const auto& [config, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"num_hidden_layers": 4})", "num_hidden_layers 4, the tensors have 3 blocks"},
           {R"({"model_args": {"depth": 2}})", "depth 2, the tensors have 3 blocks"},
           {R"({"hidden_size": 16})", "hidden_size 16, the tensors have width 8"},
           {R"({"model_args": {"embed_dim": 4}})", "embed_dim 4, the tensors have width 8"},
           {R"({"patch_size": 8})", "patch_size 8, the tensors have patches of 4 x 4"},
           {R"({"intermediate_size": 9})",
            "intermediate_size 9, the tensors have MLPs of width 12"},
           {R"({"mlp_ratio": 4})", "mlp_ratio 4, the tensors have MLPs of width 12"},
           {R"({"num_classes": 6})", "num_classes 6, the tensors have 5 classes"},
           {R"({"id2label": {"0": "a"}})", "id2label of 1 label, the tensors have 5 classes"},
           {R"({"architecture": "swin_tiny"})", "architecture 'swin_tiny', the tensors have the "},
           {R"({"architecture": "mobilevit_s"})", "architecture 'mobilevit_s', the tensors "},
           {R"({"architectures": ["SwinModel"]})", "architectures 'SwinModel', the tensors "}}) {
    EXPECT_THAT(refused(ErrorKind::failure, timm_tensors(), {}, config),
                HasSubstr("config.json has " + message));
  }
  ImportVitOptions given = options(write("right", timm_tensors(), R"({
      "architecture": "vit_tiny_patch4_8", "num_classes": 6, "num_features": 8, "model_args": {
      "depth": 3, "embed_dim": 8, "patch_size": [4, 4], "mlp_ratio": 1.51, "img_size": 8}})"));
  given.num_classes = 2;  // Another head than that of config.json.
  import_vit(given);
  import_vit(options(write("other", vit_names(timm_tensors()), R"({"model_type": "vit",
      "architectures": ["ViTForImageClassification"], "hidden_size": 8, "num_hidden_layers": 3,
      "intermediate_size": 12, "patch_size": 4, "num_labels": 5})")));
}

TEST_F(ImportVit, TheNormAfterPoolingIsOfTheClassTokenWhereItIsAskedFor) {
  TensorMap tensors = timm_tensors();
  for (const std::string end : {"weight", "bias"}) {
    tensors["fc_norm." + end] = tensors.at("norm." + end);
    tensors.erase("norm." + end);
  }
  const fs::path asked = write("asked", tensors, R"({"model_args": {"fc_norm": true}})");
  EXPECT_EQ(import_vit(options(asked)).model.at("classifier"), "token");
  EXPECT_TRUE(at::equal(logits_of(options(asked).out), logits_of(imported("t", timm_tensors()))));
  const fs::path mean = write("mean", tensors, R"({"architecture": "vit_base_patch16_gap_224",
      "num_heads": 2, "model_args": {"fc_norm": true}})");
  EXPECT_EQ(import_vit(options(mean)).model.at("classifier"), "gap");
}

TEST_F(ImportVit, TheClassTokenHasNoPositionOnlyWhereThatIsKnown) {
  TensorMap tensors = timm_tensors();
  add(tensors, "pos_embed", {1, kPatches, kWidth});
  const std::string found = "the 4 rows of 'pos_embed' have none for the class token";
  for (const char* config : {R"({"architecture": "vit_tiny_patch4_8"})", R"({"model_type": "vit"})",
                             R"({"model_args": {"no_embed_class": false}})"}) {
    EXPECT_THAT(refused(ErrorKind::failure, tensors, {}, config), HasSubstr(found));
  }
  int64_t count = 0;
  const auto notes = [&](const std::string& config) {
    return import_vit(options(write(fmt::format("n{}", count++), tensors, config))).notes;
  };
  EXPECT_THAT(notes(""), Contains(found + ": it gets no position"));
  for (const char* config :
       {R"({"architecture": "deit3_small_patch16_224"})",
        R"({"architecture": "vit_tiny_patch4_8", "model_args": {"no_embed_class": true}})"}) {
    EXPECT_THAT(notes(config), Not(Contains(HasSubstr(found))));
  }
}

}  // namespace
}  // namespace moesaic::testing::vit
