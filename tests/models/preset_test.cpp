// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/preset.h"

#include <gmock/gmock.h>

#include <set>

#include "base/support.h"
#include "moesaic/config/document.h"
#include "moesaic/models/registry.h"
#include "moesaic/models/vmoe/vmoe.h"

namespace moesaic {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Value named(const std::string& preset) {
  return Document::from_text(R"({"preset": ")" + preset + R"("})", "recipe.json").root();
}

struct Size {
  const char* name;
  double patch, d, m, blocks;
};

/// Parameters of a vision transformer for 1000 classes at 224 pixels, and of the two layers of its
/// MLPs.
double dense(const Size& size) {
  const double tokens = (224 / size.patch) * (224 / size.patch) + 1, d = size.d, m = size.m;
  return size.patch * size.patch * 3 * d + d + d + tokens * d +
         size.blocks * (4 * d + 4 * d * d + 4 * d + 2 * d * m + m + d) + 2 * d + 1000 * d + 1000;
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

TEST(Preset, HasTheParametersOfItsSize) {
  std::set<std::string> tried;
  const auto expect = [&](const std::string& name, double wanted) {
    EXPECT_EQ(count_parameters(named(name)), wanted) << name;
    const auto shape = build_model_shape(named(name));
    EXPECT_EQ(static_cast<double>(shape->parameter_count()), wanted) << name;
    EXPECT_EQ(shape->members(), name.starts_with("e3/") ? 2 : 1) << name;
    tried.insert(name);
  };
  for (const Size& size : sizes()) {
    const std::string name = size.name, place = size.blocks > 12 ? "-last5" : "-last2";
    const double last = size.blocks > 12 ? 5 : 2, every = size.blocks / 2;
    const double layer = 31 * mlp(size) + 32 * size.d;  // over a dense block
    expect("vmoe/vit-" + name, dense(size));
    expect("vmoe/" + name + place, dense(size) + last * layer);
    expect("vmoe/" + name + "-every2", dense(size) + every * layer);
    expect("vmoe/" + name + "-every2-expert-choice", dense(size) + every * layer);
    expect("e3/" + name + place, dense(size) + last * layer + size.d * size.d + size.d);
  }
  for (const std::string& name : preset_names()) EXPECT_TRUE(tried.contains(name)) << name;
}

// The paper's Table 2: billions of parameters.
TEST(Preset, HasThePapersSize) {
  EXPECT_NEAR(count_parameters(named("vmoe/h14-every2")) / 1e9, 7.2, 0.1);
  EXPECT_NEAR(count_parameters(named("vmoe/h14-last5")) / 1e9, 2.7, 0.1);
  EXPECT_NEAR(count_parameters(named("vmoe/l16-every2")) / 1e9, 3.4, 0.1);
}

TEST(Preset, ExpertsStandInEveryOtherBlock) {
  const auto layers = [](const std::string& name) {
    return parse<VMoEConfig>(with_preset(named(name))).encoder.moe.layers;
  };
  EXPECT_EQ(layers("vmoe/b16-last2"), (std::vector<int64_t>{9, 11}));
  EXPECT_EQ(layers("vmoe/s32-every2"), (std::vector<int64_t>{1, 3, 5, 7}));
  EXPECT_EQ(layers("vmoe/h14-last5"), (std::vector<int64_t>{23, 25, 27, 29, 31}));
  EXPECT_TRUE(layers("vmoe/vit-b16").empty());
}

TEST(Preset, OwnSettingsWin) {
  const Value config = Document::from_text(R"({"preset": "e3/s32-last2", "image_size": 32,
    "classes": 10, "encoder": {"num_layers": 2, "mlp_dim": 64, "moe": {"layers": [1],
    "num_experts": 4}}})",
                                           "recipe.json")
                           .root();
  const auto model = build_model(config, 1);
  EXPECT_EQ(model->input_shape(), (std::vector<int64_t>{3, 32, 32}));
  EXPECT_EQ(model->members(), 2);
  EXPECT_EQ(model->config()["name"], "e3");
  EXPECT_FALSE(model->config().contains("preset"));
  EXPECT_EQ(model->aux_losses().at("importance"), 0.005);
}

TEST(Preset, NamesTheNearestOfAnUnknownOne) {
  EXPECT_THAT(test::usage_of([] { build_model(named("vmoe/b16-evry2"), 1); }),
              AllOf(HasSubstr("recipe.json:1:12"), HasSubstr("did you mean 'vmoe/b16-every2'")));
  EXPECT_THAT(test::usage_of([] { build_model(named("../../etc/x"), 1); }),
              HasSubstr("no preset is called"));
}

}  // namespace
}  // namespace moesaic
