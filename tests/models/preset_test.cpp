// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/registry.h"

#include <fmt/format.h>

#include <set>

#include "base/support.h"
#include "moesaic/config/document.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

Value named(const std::string& preset) {
  return Document::from_text(R"({"preset": ")" + preset + R"("})", "recipe.json").root();
}

struct Size {
  const char* name;
  double patch, d, m, blocks;
};

/// Parameters of a vision transformer for 1000 classes at 224 pixels, with a layer of its width
/// before the head, and of the two layers of its MLPs.
double dense(const Size& size) {
  const double tokens = (224 / size.patch) * (224 / size.patch) + 1, d = size.d, m = size.m;
  return size.patch * size.patch * 3 * d + d + d + tokens * d +
         size.blocks * (4 * d + 4 * d * d + 4 * d + 2 * d * m + m + d) + 2 * d + d * d + d +
         1000 * d + 1000;
}
double mlp(const Size& size) {
  return 2 * size.d * size.m + size.m + size.d;
}

const std::vector<Size>& sizes() {
  static const std::vector<Size> list = {{"s32", 32, 512, 2048, 8},
                                         {"b32", 32, 768, 3072, 12},
                                         {"b16", 16, 768, 3072, 12},
                                         {"l16", 16, 1024, 4096, 24},
                                         {"h14", 14, 1280, 5120, 32}};
  return list;
}

/// Networks whose experts choose: no class token, no layer before the head, scales of queries' and
/// keys' heads.
struct Choosing {
  Size size;
  double heads, last, experts;

  double parameters() const {
    const double d = size.d;
    return dense(size) - 2 * d - d * d - d + size.blocks * 2 * d / heads +
           last * ((experts - 1) * mlp(size) + experts * d);
  }
};

TEST(Preset, HasTheParametersOfItsSize) {
  std::set<std::string> tried;
  const auto expect = [&](const std::string& name, double wanted) {
    EXPECT_EQ(count_parameters(named(name)), wanted) << name;
    const auto shape = build_meta_model(named(name));
    EXPECT_EQ(static_cast<double>(shape->num_parameters()), wanted) << name;
    EXPECT_EQ(shape->num_members(), name.starts_with("e3/") ? 2 : 1) << name;
    tried.insert(name);
  };
  for (const Size& size : sizes()) {
    const std::string name = size.name, place = size.blocks > 12 ? "-last5" : "-last2";
    const double last = size.blocks > 12 ? 5 : 2, every = size.blocks / 2;
    const auto layer = [&](double experts) {  // over a dense block
      return (experts - 1) * mlp(size) + experts * size.d;
    };
    expect("vmoe/vit-" + name, dense(size));
    expect("vmoe/" + name + place, dense(size) + last * layer(32));
    expect("vmoe/" + name + "-every2", dense(size) + every * layer(32));
    expect("e3/" + name + place, dense(size) + last * layer(32));
    if (name == "b16") expect("vmoe/b16-every2-8experts", dense(size) + every * layer(8));
    if (name != "s32") continue;
    expect("vmoe/s32-last2-8experts", dense(size) + last * layer(8));
    expect("e3/s32-last2-8experts", dense(size) + last * layer(8));
  }
  const Choosing choosing[] = {{{"s16", 16, 384, 1536, 12}, 6, 6, 128},
                               {{"s14", 14, 384, 1536, 12}, 6, 6, 256},
                               {{"b16", 16, 768, 3072, 12}, 12, 6, 128},
                               {{"l16", 16, 1024, 4096, 24}, 16, 12, 128},
                               {{"h14", 14, 1280, 5120, 32}, 16, 16, 256}};
  for (const Choosing& network : choosing) {
    expect(fmt::format("vmoe/{}-last{}-expert-choice", network.size.name, network.last),
           network.parameters());
  }
  constexpr double kPixels = 28 * 28;  // Of a filter, and of an expert's row of the router.
  expect("pmoe/cnn", 40 * kPixels);
  expect("pmoe/cnn-released", 4 * kPixels);
  for (const char* values : {"", "-printed"}) {
    expect(fmt::format("pmoe/separate{}", values), 2 * (20 + 1) * kPixels);
    expect(fmt::format("pmoe/joint{}", values), 8 * (5 + 1) * kPixels);
  }
  const auto conv = [](double in, double out, double side) { return (in * side * side + 1) * out; };
  const auto block = [&](double in, double out) {  // With two normalisations and a shortcut.
    return 2 * in + conv(in, out, 3) + 2 * out + conv(out, out, 3) + conv(in, out, 1);
  };
  const double trunk = conv(3, 16, 3) + block(16, 160) + block(160, 320);
  const double end = 2 * 640;
  expect("pmoe/wrn", trunk + block(320, 640) + end + conv(640, 10, 1));  // 7.44 M
  const auto mixture = [&](double experts, double patch, double kernel) {
    return 2 * 320 + conv(320, 640, 3) +
           experts * (640 * patch * patch + 2 * 640 + conv(640, 640 / experts, kernel));
  };
  expect("pmoe/wrn-pmoe", trunk + mixture(4, 1, 1) + end + conv(640, 10, 1));  // 3.96 M
  expect("pmoe/wrn-pmoe-celeba", trunk + mixture(8, 4, 3) + end + conv(640, 1, 1));
  for (const std::string& name : preset_names()) EXPECT_TRUE(tried.contains(name)) << name;
}

VMoEConfig config_of_preset(const std::string& name) {
  return parse<VMoEConfig>(with_preset(named(name)));
}

TEST(Preset, StartsAndRoutesAsTheReferencesRecipes) {
  for (const std::string name : {"vmoe/b16-every2", "vmoe/s32-last2-8experts", "e3/l16-last5"}) {
    const VMoEConfig config = config_of_preset(name);
    EXPECT_FALSE(config.head_bias_init) << name;
    EXPECT_EQ(config.representation_size, config.hidden_size) << name;
    EXPECT_EQ(config.group_size(), 8 * config.num_tokens() * config.encoder.moe.ensemble_size)
        << name;
    EXPECT_FALSE(config.encoder.moe.split_rngs) << name;
    EXPECT_EQ(config.encoder.moe.router.capacity.factor, 1.05) << name;
  }
}

TEST(Preset, ExpertsThatChooseAreThoseOfTheReference) {
  const VMoEConfig config = config_of_preset("vmoe/s16-last6-expert-choice");
  EXPECT_EQ(config.classifier, "gap");
  EXPECT_TRUE(config.encoder.attention_qk_norm);
  EXPECT_EQ(config.group_size(), 196);
  EXPECT_EQ(config.encoder.moe.layers, (std::vector<int64_t>{6, 7, 8, 9, 10, 11}));
  const auto model = build_meta_model(named("vmoe/s16-last6-expert-choice"));
  // 196 / 128 tokens, rounded to the nearest.
  const auto& rule = model->moe_blocks()[0].layer->options().rule;
  EXPECT_EQ(nn::rows_per_token(rule, 196, 128), 2.0 * 128 / 196);
}

// The paper's Table 2: billions of parameters.
TEST(Preset, HasThePapersSize) {
  EXPECT_NEAR(count_parameters(named("vmoe/h14-every2")) / 1e9, 7.2, 0.1);
  EXPECT_NEAR(count_parameters(named("vmoe/h14-last5")) / 1e9, 2.7, 0.1);
  EXPECT_NEAR(count_parameters(named("vmoe/l16-every2")) / 1e9, 3.4, 0.1);
}

TEST(Preset, ExpertsStandInEveryOtherBlock) {
  const auto layers = [](const std::string& name) {
    return config_of_preset(name).encoder.moe.layers;
  };
  EXPECT_EQ(layers("vmoe/b16-last2"), (std::vector<int64_t>{9, 11}));
  EXPECT_EQ(layers("vmoe/s32-every2"), (std::vector<int64_t>{1, 3, 5, 7}));
  EXPECT_EQ(layers("vmoe/h14-last5"), (std::vector<int64_t>{23, 25, 27, 29, 31}));
  EXPECT_TRUE(layers("vmoe/vit-b16").empty());
}

TEST(Preset, OwnSettingsWin) {
  const Value config = Document::from_text(R"({"preset": "e3/s32-last2", "image_size": 32,
    "num_classes": 10, "encoder": {"num_layers": 2, "mlp_dim": 64, "moe": {"layers": [1],
    "num_experts": 4}}})",
                                           "recipe.json")
                           .root();
  const auto model = build_model(config, 1);
  EXPECT_EQ(model->input_shape(), (std::vector<int64_t>{3, 32, 32}));
  EXPECT_EQ(model->num_members(), 2);
  EXPECT_EQ(model->config()["name"], "e3");
  EXPECT_FALSE(model->config().contains("preset"));
  EXPECT_EQ(model->aux_losses().at("importance"), 0.005);
}

TEST(Preset, NamesTheNearestOfAnUnknownOne) {
  EXPECT_THAT(test::usage_of([] { build_model(named("vmoe/b16-evry2"), 1); }),
              AllOf(HasSubstr("recipe.json:1:12"), HasSubstr("did you mean 'vmoe/b16-every2'")));
  EXPECT_THAT(test::usage_of([] { build_model(named("../../etc/x"), 1); }),
              HasSubstr("unknown preset"));
}

}  // namespace
}  // namespace moesaic
