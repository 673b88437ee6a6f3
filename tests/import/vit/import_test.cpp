// SPDX-License-Identifier: Apache-2.0
#include "moesaic/import/vit/import.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <functional>
#include <limits>

#include "base/support.h"
#include "import/vit/fixture.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/import/vmoe/import.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "support/matchers.h"
#include "support/tensors.h"

namespace moesaic::testing::vit {
namespace {

TEST_F(ImportVit, NamesOfTimmAndHuggingFaceGiveTheSameNetwork) {
  const fs::path timm = imported("timm", timm_tensors());
  const fs::path other = write("other", vit_names(timm_tensors()), R"({
      "model_type": "vit", "num_attention_heads": 2, "layer_norm_eps": 1e-6, "hidden_act": "gelu",
      "image_size": 8})");
  ImportVitOptions given = options(other);
  given.num_heads.reset();
  const ImportVitResult result = import_vit(given);
  EXPECT_TRUE(at::equal(logits_of(timm), logits_of(given.out)));
  EXPECT_EQ(result.model.at("encoder").at("activation"), "gelu");
  EXPECT_EQ(result.model.at("classifier"), "token");
  EXPECT_EQ(result.num_tensors, std::ssize(vit_names(timm_tensors())));
  EXPECT_THAT(result.notes, ::testing::SizeIs(1));  // No mean and std.
}

TEST_F(ImportVit, EpsilonAndActivationAreTheFiles) {
  const fs::path timm = imported("timm", timm_tensors());
  const fs::path other = write("other", vit_names(timm_tensors()));
  import_vit(options(other));
  const fs::path out = options(other).out;
  EXPECT_EQ(load_model(out)->constants().at("layer_norm_eps"), 1e-12);
  EXPECT_EQ(load_model(out)->constants().at("gelu"), "erf");
  EXPECT_FALSE(at::equal(logits_of(timm), logits_of(out)));
  expect_close(logits_of(timm), logits_of(out), 1e-3);
}

TEST_F(ImportVit, RegistersFollowTheClassToken) {
  TensorMap hugging = timm_tensors();
  add(hugging, "register_tokens", {1, 3, kWidth});
  for (int64_t block = 0; block < kBlocks; ++block) {
    for (const int part : {1, 2})
      add(hugging, fmt::format("blocks.{}.ls{}.gamma", block, part), {kWidth});
  }
  hugging.erase("head.weight");
  hugging.erase("head.bias");
  TensorMap timm = hugging;  // The class token has its position in it.
  timm["reg_token"] = hugging.at("register_tokens");
  timm.erase("register_tokens");
  const at::Tensor positions = hugging.at("pos_embed");
  timm["cls_token"] = hugging.at("cls_token") + positions.narrow(1, 0, 1);
  timm["pos_embed"] = positions.narrow(1, 1, kPatches).clone();
  const TensorMap dinov2 =
      renamed_by(hugging,
                 {{"cls_token", "embeddings.cls_token"},
                  {"register_tokens", "embeddings.register_tokens"},
                  {"pos_embed", "embeddings.position_embeddings"},
                  {"patch_embed.proj", "embeddings.patch_embeddings.projection"},
                  {"blocks.", "encoder.layer."},
                  {"attn.qkv", "attention.attention.QKV"},
                  {"attn.proj", "attention.output.dense"},
                  {"ls1.gamma", "layer_scale1.lambda1"},
                  {"ls2.gamma", "layer_scale2.lambda1"}},
                 {"query", "key", "value"});
  const fs::path first = imported("first", timm), second = imported("second", dinov2);
  EXPECT_TRUE(at::equal(logits_of(first), logits_of(second)));
  EXPECT_EQ(logits_of(first).sizes(), (std::vector<int64_t>{3, kWidth}));
  const auto model = std::dynamic_pointer_cast<VMoE>(load_model(first));
  EXPECT_EQ(model->settings().num_registers, 3);
  EXPECT_TRUE(at::equal(model->registers.detach(), timm.at("reg_token")));
  timm["blocks.1.ls2.gamma"] = timm["blocks.1.ls2.gamma"] + 1.0;
  EXPECT_FALSE(at::equal(logits_of(imported("third", timm)), logits_of(first)));
}

TEST_F(ImportVit, AttentionPoolingHasBothNames) {
  TensorMap timm = timm_tensors();
  for (const char* name : {"cls_token", "head.weight", "head.bias"}) timm.erase(name);
  add(timm, "pos_embed", {1, kPatches, kWidth});
  add(timm, "attn_pool.latent", {1, 1, kWidth});
  add_linear(timm, "attn_pool.q", kWidth, kWidth);
  add_linear(timm, "attn_pool.kv", kWidth, 2 * kWidth);
  add_linear(timm, "attn_pool.proj", kWidth, kWidth);
  add_norm(timm, "attn_pool.norm");
  add_linear(timm, "attn_pool.mlp.fc1", kWidth, kHidden);
  add_linear(timm, "attn_pool.mlp.fc2", kHidden, kWidth);
  TensorMap siglip = renamed_by(timm,
                                {{"pos_embed", "vision_model.embeddings.position_embedding.weight"},
                                 {"patch_embed.proj", "vision_model.embeddings.patch_embedding"},
                                 {"blocks.", "vision_model.encoder.layers."},
                                 {".norm1", ".layer_norm1"},
                                 {".norm2", ".layer_norm2"},
                                 {"attn.qkv", "self_attn.QKV"},
                                 {"attn.proj", "self_attn.out_proj"},
                                 {"attn_pool.latent", "vision_model.head.probe"},
                                 {"attn_pool.proj", "vision_model.head.attention.out_proj"},
                                 {"attn_pool.norm", "vision_model.head.layernorm"},
                                 {"attn_pool.mlp", "vision_model.head.mlp"}},
                                {"q_proj", "k_proj", "v_proj"});
  for (const char* end : {"weight", "bias"}) {
    const std::string q = fmt::format("attn_pool.q.{}", end),
                      kv = fmt::format("attn_pool.kv.{}", end), norm = fmt::format("norm.{}", end);
    siglip[fmt::format("vision_model.head.attention.in_proj_{}", end)] =
        at::cat({siglip.at(q), siglip.at(kv)});
    siglip["vision_model.post_layernorm." + std::string(end)] = siglip.at(norm);
    for (const std::string& name : {q, kv, norm}) siglip.erase(name);
  }
  const std::string positions = "vision_model.embeddings.position_embedding.weight";
  siglip[positions] = siglip.at(positions)[0].clone();
  add(siglip, "text_model.embeddings.token_embedding.weight", {7, kWidth});
  siglip["logit_scale"] = torch::ones({1});
  const fs::path first = imported("first", timm);
  const fs::path second = write(
      "second", siglip, R"({"vision_config": {"hidden_act": "gelu"}, "model_type": "siglip"})");
  const ImportVitResult result = import_vit(options(second));
  EXPECT_EQ(result.dropped, (std::vector<std::string>{
                                "logit_scale", "text_model.embeddings.token_embedding.weight"}));
  EXPECT_TRUE(at::equal(logits_of(first), logits_of(options(second).out)));
}

TEST_F(ImportVit, ADistilledNetworkAveragesItsHeads) {
  TensorMap tensors = timm_tensors();
  add(tensors, "dist_token", {1, 1, kWidth});
  add(tensors, "pos_embed", {1, 2 + kPatches, kWidth});
  add_linear(tensors, "head_dist", kWidth, kClasses);
  const auto model = load_model(imported("deit", tensors));
  const torch::NoGradGuard no_grad;
  const ModelOutput out = model->forward(randn({3, 3, 8, 8}, 77, at::kFloat));
  const auto tokens = out.pre_logits.chunk(2, 1);
  const at::Tensor own = at::linear(tokens[0], tensors.at("head.weight"), tensors.at("head.bias"));
  const at::Tensor other =
      at::linear(tokens[1], tensors.at("head_dist.weight"), tensors.at("head_dist.bias"));
  expect_close(out.logits, (own + other) / 2, 1e-6);
  const TensorMap state = state_of(*model);
  EXPECT_TRUE(at::equal(state.at("registers"),
                        tensors.at("dist_token") + tensors.at("pos_embed").narrow(1, 1, 1)));
}

TEST_F(ImportVit, AMixtureBeginsAsTheDenseNetwork) {
  const at::Tensor dense = logits_of(imported("dense", timm_tensors()));
  const auto upcycle = [](double noise, uint64_t seed, int64_t k = 2) {
    return [=](ImportVitOptions& options) {
      options.upcycling = {4, {0, 2}, k, noise};
      options.seed = seed;
    };
  };
  for (const int64_t k : {1, 2, 4}) {
    const fs::path mixture = imported(fmt::format("k{}", k), timm_tensors(), upcycle(0.0, 3, k));
    expect_close(logits_of(mixture), dense, 1e-6);
    EXPECT_EQ(load_model(mixture)->moe_blocks().size(), 2u);
  }
  const TensorMap first = load_checkpoint(imported("a", timm_tensors(), upcycle(0.1, 3))).model,
                  again = load_checkpoint(imported("b", timm_tensors(), upcycle(0.1, 3))).model,
                  other = load_checkpoint(imported("c", timm_tensors(), upcycle(0.1, 4))).model;
  const std::string w1 = "blocks.2.moe.experts.w1", router = "blocks.2.moe.router.weight";
  EXPECT_TRUE(at::equal(first.at(w1), again.at(w1)));
  EXPECT_TRUE(at::equal(first.at(router), again.at(router)));
  EXPECT_FALSE(at::equal(first.at(w1), other.at(w1)));
  EXPECT_FALSE(at::equal(first.at(router), other.at(router)));
  EXPECT_FALSE(at::equal(first.at(w1)[0], first.at(w1)[1]));
  const at::Tensor weight = timm_tensors().at("blocks.2.mlp.fc1.weight");
  const double noise = (first.at(w1) - weight.t()).std().item<double>();
  EXPECT_NEAR(noise, 0.1 * weight.std().item<double>(), 0.02 * weight.std().item<double>());
  EXPECT_TRUE(at::equal(first.at("blocks.2.moe.experts.b2")[3],
                        timm_tensors().at("blocks.2.mlp.fc2.bias")));
}

TEST_F(ImportVit, PositionsAreResizedButTheClassTokens) {
  TensorMap tensors = timm_tensors();
  at::Tensor& positions = tensors["pos_embed"];
  positions.narrow(1, 1, kPatches).copy_(values_of("constant", {kWidth}));
  const fs::path large = imported("large", tensors, [](auto& options) { options.image_size = 16; });
  const TensorMap state = load_checkpoint(large).model;
  const at::Tensor& resized = state.at("position_embedding");
  ASSERT_EQ(resized.sizes(), (std::vector<int64_t>{1, 1 + 16, kWidth}));
  EXPECT_TRUE(at::equal(resized[0][0], positions[0][0]));
  expect_close(resized[0].narrow(0, 1, 16), positions[0][1].expand({16, kWidth}), 1e-6);
  EXPECT_EQ(logits_of(large, 16).size(1), kClasses);
  ImportVitOptions wide = options(write("wide", tensors));
  wide.image_size = Size2d(4, 16);  // As many patches as are stored.
  EXPECT_THAT(import_vit(wide).notes,
              Contains("position embedding resized from 2 x 2 to 1 x 4 patches (bicubic)"));
}

TEST_F(ImportVit, ANewHeadIsZero) {
  const fs::path out =
      imported("new", timm_tensors(), [](auto& options) { options.num_classes = 7; });
  EXPECT_TRUE(at::equal(logits_of(out), torch::zeros({3, 7})));
}

TEST_F(ImportVit, ImagesArePreparedAsTheFilesSay) {
  std::vector<std::string> notes;
  const auto spec = [&](const std::string& name, const std::string& config,
                        const std::string& preprocessor) {
    const fs::path from = write(name, timm_tensors(), config);
    if (!preprocessor.empty()) test::put(from / "preprocessor_config.json", preprocessor);
    notes = import_vit(options(from)).notes;
    const Checkpoint checkpoint = load_checkpoint(options(from).out);
    return input_spec_of(checkpoint, *meta_model_of(checkpoint));
  };
  const InputSpec timm = spec("timm", R"({"architecture": "vit", "pretrained_cfg": {
      "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3], "crop_pct": 0.875,
      "interpolation": "bicubic", "label_names": ["a", "b", "c", "d", "e"]}})",
                              "");
  EXPECT_EQ(timm.mean, (std::vector<double>{0.5, 0.4, 0.3}));
  EXPECT_EQ(timm.std, (std::vector<double>{0.2, 0.25, 0.3}));
  EXPECT_EQ(timm.preprocess.central_crop, 8.0 / 9.0) << "timm resizes to whole pixels";
  EXPECT_EQ(timm.preprocess.interpolation, "bicubic");
  EXPECT_THAT(timm.classes, ElementsAre("a", "b", "c", "d", "e"));
  const InputSpec other =
      spec("hf", R"({"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2",
      "3": "LABEL_3", "4": "LABEL_4"}})",
           R"({
      "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.5], "do_center_crop": true,
      "size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}, "resample": 2})");
  EXPECT_EQ(other.mean, (std::vector<double>{0.1, 0.2, 0.3}));
  EXPECT_EQ(other.preprocess.central_crop, 0.875);
  EXPECT_THAT(notes, ::testing::Contains(HasSubstr("takes 8; --image-size 224")));
  EXPECT_EQ(other.preprocess.interpolation, "bilinear");
  EXPECT_THAT(other.classes, IsEmpty());
  EXPECT_THAT(notes,
              ::testing::IsSupersetOf({"pooling 'token' assumed: no file tells it",
                                       "2 x 2 patches assumed: a square, from the 5 positions"}));
  spec("large", R"({"architecture": "vit", "label_names": ["a", "b"], "mean": [0, 0, 0],
      "std": [1, 1, 1], "crop_pct": 1.5})",
       "");
  EXPECT_THAT(notes, ::testing::IsSupersetOf(
                         {"crop_pct: the crop is larger than the image; all of it is used, without "
                          "padding",
                          "2 names of classes left out: the network has 5 outputs"}));
  EXPECT_THAT(spec("none", "", "").mean, IsEmpty());
  for (const auto& [setting, message] :
       {std::pair(R"({"do_rescale": false})", "'do_rescale' is false"),
        {R"({"do_resize": false})", "'do_resize' is false"},
        {R"({"rescale_factor": 0.5})", "rescale_factor must be 1/255, found 0.5"}}) {
    const auto wrong = [&] { spec("wrong", "", setting); };
    EXPECT_THAT(test::failure_of(wrong), HasSubstr(message));
  }
  for (const auto& [config, message] :
       {std::pair(R"({"mean": [1, 2], "std": [1, 1, 1]})", "'mean' has 2 values, images have 3 "),
        {R"({"mean": [0, 0, 0], "crop_pct": 0})", "'crop_pct' must be above 0, found 0"}}) {
    const auto wrong = [&] { spec("bad", config, ""); };
    EXPECT_THAT(test::failure_of(wrong), HasSubstr(message));
  }
  spec("right", "", R"({"do_resize": true, "rescale_factor": 0.00392156862745098})");
}

TEST_F(ImportVit, MissingTensorsHaveTheFilesNames) {
  const auto without = [&](const std::string& end, TensorMap tensors) {
    std::erase_if(tensors, [&](const auto& item) { return item.first.ends_with(end); });
    return refused(ErrorKind::failure, tensors);
  };
  EXPECT_THAT(without("head.weight", timm_tensors()), HasSubstr("'head.weight' is missing"));
  EXPECT_THAT(without("classifier.weight", vit_names(timm_tensors())),
              HasSubstr("'classifier.weight' is missing"));
  EXPECT_THAT(without("attn.proj.bias", timm_tensors()), HasSubstr("'blocks.0.attn.proj.bias'"));
  EXPECT_THAT(without("cls_token", timm_tensors()),
              HasSubstr("5 rows of 'pos_embed' are 2 x 2 patches + 1, but 'cls_token' is missing"));
  TensorMap prefixed;
  for (const auto& [name, values] : timm_tensors()) prefixed["module." + name] = values;
  EXPECT_THAT(refused(ErrorKind::failure, prefixed),
              HasSubstr("all names begin with 'module.'; remove the prefix"));
  EXPECT_THAT(refused(ErrorKind::usage, timm_tensors(),
                      [](auto& options) { options.from = released_checkpoints().at(0).name; }),
              HasSubstr("for the released checkpoint choose import vmoe "));
}

TEST_F(ImportVit, MissingAndForeignTensorsAreNamed) {
  TensorMap less = timm_tensors();
  less.erase("blocks.1.attn.proj.bias");
  EXPECT_THAT(refused(ErrorKind::failure, less),
              HasSubstr("1 tensor missing: 'blocks.1.attn.proj.bias'"));
  TensorMap keyless = vit_names(timm_tensors());
  keyless.erase("vit.encoder.layer.2.attention.attention.key.bias");
  EXPECT_THAT(refused(ErrorKind::failure, keyless),
              HasSubstr("missing: 'vit.encoder.layer.2.attention.attention.key.bias'"));
  TensorMap more = timm_tensors();
  add(more, "blocks.0.attn.q_norm.weight", {4});
  add(more, "norm_pre.weight", {kWidth});
  EXPECT_THAT(
      refused(ErrorKind::failure, more),
      AllOf(HasSubstr("2 tensors of another kind of network: 'blocks.0.attn.q_norm.weight'"),
            HasSubstr("import vit takes ViT")));
  TensorMap scaled = timm_tensors();
  add(scaled, "blocks.2.ls1.gamma", {kWidth});
  EXPECT_THAT(refused(ErrorKind::failure, scaled),
              HasSubstr("1 tensor without a place in the network: 'blocks.2.ls1.gamma'"));
  TensorMap wide = timm_tensors();
  add(wide, "blocks.1.mlp.fc1.weight", {kHidden + 1, kWidth});
  EXPECT_THAT(
      refused(ErrorKind::failure, wide),
      HasSubstr("'blocks.1.mlp.fc1.weight' is [13, 8], a network of its other tensors' sizes "
                "has [12, 8]"));
  EXPECT_THAT(refused(ErrorKind::failure, {{"layers.0.x", torch::ones({2})}}),
              HasSubstr("1 tensor of another kind of network: 'layers.0.x'"));
  TensorMap gap = timm_tensors();
  for (const auto& [name, unused] : timm_tensors()) {
    if (name.starts_with("blocks.1.")) gap.erase(name);
  }
  EXPECT_THAT(refused(ErrorKind::failure, gap), HasSubstr("no tensors of block 1"));
  TensorMap infinite = timm_tensors();
  infinite["norm.bias"][0] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(refused(ErrorKind::failure, infinite),
              HasSubstr("'norm.bias' holds NaN or infinity"));
}

TEST_F(ImportVit, OptionsThatDoNotFitAreRefused) {
  const auto refuse = [&](const std::function<void(ImportVitOptions&)>& change) {
    return refused(ErrorKind::usage, timm_tensors(), change);
  };
  const auto experts = [](const Upcycling& upcycling) {
    return [upcycling](auto& options) { options.upcycling = upcycling; };
  };
  EXPECT_THAT(refuse([](auto& options) { options.num_heads = 3; }),
              HasSubstr("3 heads do not divide the width 8; choose --num-heads 2"));
  EXPECT_THAT(refuse([](auto& options) { options.num_heads.reset(); }),
              HasSubstr("8 is no multiple of 64; give --num-heads N"));
  EXPECT_THAT(refused(ErrorKind::usage, timm_tensors(), {}, R"({"num_attention_heads": 4})"),
              HasSubstr("--num-heads is 2, the network's own number is 4"));
  EXPECT_THAT(refuse(experts({4, {1, 3}})), HasSubstr("--layers names block 3"));
  EXPECT_THAT(refuse(experts({4, {2, 0, 0}})),
              HasSubstr("--layers names a block twice; choose --layers 0,2"));
  test::put(folder_ / "pickled.bin", "");
  EXPECT_THAT(refuse([&](auto& options) { options.from = folder_ / "pickled.bin"; }),
              HasSubstr("pickled.bin: a pickle is not read; save it as model.safetensors"));
  EXPECT_THAT(refuse(experts({4, {}})),
              HasSubstr("--experts needs --layers, the blocks that get them, from 0 to 2"));
  EXPECT_THAT(refuse(experts({4, {1}, 5})),
              HasSubstr("--k 5 is more than the 4 experts; choose at most 4"));
  EXPECT_THAT(refuse([](auto& options) { options.image_size = 13; }),
              HasSubstr("--image-size 13 x 13 cannot be cut into patches of 4 x 4; choose 12x12"));
  EXPECT_THAT(refuse([&](auto& options) { options.from = folder_ / "refuse"; }),
              HasSubstr("refused'?"));
  TensorMap odd = timm_tensors();
  add(odd, "pos_embed", {1, 1 + 6, kWidth});
  EXPECT_THAT(refused(ErrorKind::usage, odd),
              HasSubstr("the 7 rows of 'pos_embed' are no square grid of patches beside 1 token"));
  const fs::path wide =
      imported("wide", odd, [](auto& options) { options.image_size = Size2d(8, 12); });
  EXPECT_EQ(load_model(wide)->input_shape(), (std::vector<int64_t>{3, 8, 12}));
}

}  // namespace
}  // namespace moesaic::testing::vit
