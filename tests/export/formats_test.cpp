// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/formats.h"

#include "base/support.h"
#include "export/toy_info.h"
#include "support/matchers.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

TEST(ExportFormats, AreFoundByName) {
  EXPECT_THAT(export_formats().names(),
              ElementsAre("onnx", "pt2", "pytorch", "safetensors", "torchscript", "vmoe"));
  for (const auto& [name, format] : export_formats().entries()) {
    EXPECT_FALSE(format.description.empty() || format.out_help.empty()) << name;
    EXPECT_EQ(format.max_shards > 0, name == "vmoe");
    EXPECT_EQ(format.has_preprocessing, name == "onnx" || name.starts_with("p")) << name;
  }
  EXPECT_THAT(test::usage_of([] { export_formats().at("torchscrpt", "export"); }),
              AllOf(HasSubstr("export: unknown format 'torchscrpt'"), HasSubstr("torchscript")));
}

TEST(ExportFormats, RefuseAPlaceThatIsTaken) {
  const test::TempDir folder;
  test::put(folder / "there", "x");
  test::put(folder / "there.safetensors", "x");
  test::put(folder / "prefix.index", "x");
  for (const auto& [format, out] : {std::pair{"torchscript", "there"},
                                    {"safetensors", "there.safetensors"},
                                    {"safetensors", "there"},
                                    {"vmoe", "prefix"},
                                    {"pytorch", "there"},
                                    {"pt2", "there"}}) {
    const auto check = [&, format = format, out = out] {
      export_formats().at(format).check_out(folder / out);
    };
    EXPECT_THAT(test::usage_of(check), HasSubstr("--out")) << format << " " << out;
  }
  const test::ScopedEnv python("MOESAIC_PYTHON", "/bin/sh");
  for (const auto& [name, format] : export_formats().entries()) {
    EXPECT_NO_THROW(format.check_out(folder / "new")) << name;
  }
}

TEST(ExportFormats, RefuseAFolderWhoseNameIsNearlyThatOfAFile) {
  const test::TempDir folder;
  const auto check = [&](const char* out) {
    export_formats().at("safetensors").check_out(folder / out);
  };
  for (const char* out : {"x.saftensors", "x.safetensor", "x.SafeTensors", "x.safe"}) {
    EXPECT_THAT(test::usage_of([&] { check(out); }),
                AllOf(HasSubstr(std::string(out) + "' would be a folder"),
                      HasSubstr("did you mean '" + (folder / "x.safetensors").string() + "'?")));
  }
  for (const char* out : {"x", "x.v2", "v1.0", "x.safetensors"}) EXPECT_NO_THROW(check(out)) << out;
}

TEST(WithPreprocessing, NeedsImagesOfAKnownMeanAndStd) {
  EXPECT_TRUE(with_preprocessing(testing::toy_info()).input.takes_bytes);
  ExportInfo unknown = testing::toy_info(), numbers = testing::toy_info();
  unknown.input.mean = unknown.input.std = {};
  numbers.input.has_images = false;
  for (const ExportInfo& info : {unknown, numbers}) {
    EXPECT_THAT(test::usage_of([&] { with_preprocessing(info); }),
                HasSubstr("no images with a known mean and std"));
  }
}

TEST(ExportFormats, SayThatTheNormalisationIsLost) {
  const test::TempDir folder;
  const auto model = small_vmoe();
  ExportInfo info = testing::toy_info();
  const auto said = [&](const char* name) {
    return test::said_by(
        [&] { export_formats().at("vmoe").write(*model, info, {.out = folder / name}); });
  };
  const auto channels = static_cast<size_t>(model->input_shape().front());
  info.input.mean = std::vector<double>(channels, 0.25);
  info.input.std = std::vector<double>(channels, 0.5);
  EXPECT_THAT(said("own"), AllOf(HasSubstr("stores no normalisation"), HasSubstr("mean [0.25"),
                                 HasSubstr("std [0.5")));
  info.input.mean = info.input.std;
  EXPECT_EQ(said("symmetric"), "");
}

TEST(ExportFormats, VMoERefusesRoutersThatTheReferenceLacks) {
  const test::TempDir folder;
  VMoEConfig config = small_vmoe_config();
  const auto refusal = [&] {
    const auto model = small_vmoe(config);
    return test::usage_of([&] {
      export_formats().at("vmoe").write(*model, testing::toy_info(), {.out = folder / "out"});
    });
  };
  config.encoder.moe.router.gate = Gate::softmax_selected;
  EXPECT_THAT(refusal(), HasSubstr("block 1 has gates 'softmax_selected', which a V-MoE checkpoint "
                                   "cannot express; choose safetensors"));
  config.encoder.moe.router.kind = RoutingKind::threshold;
  config.encoder.moe.router.gate = Gate::one;
  EXPECT_THAT(refusal(), HasSubstr("block 1 selects experts by a threshold"));
}

/// Returns what exporting to both formats for everyone says.
std::string said_of(const VMoEConfig& config) {
  const test::TempDir folder;
  const auto model = small_vmoe(config);
  return test::said_by([&] {
    for (const char* name : {"safetensors", "torchscript"}) {
      export_formats().at(name).write(*model, testing::toy_info(), {.out = folder / name});
    }
  });
}

TEST(ExportFormats, SayThatImagesOfABatchDependOnEachOther) {
  VMoEConfig config = small_vmoe_config();
  EXPECT_EQ(said_of(config), "");
  CapacityRule& dispatcher = config.encoder.moe.router.capacity;
  dispatcher.factor = 0.6;
  EXPECT_THAT(said_of(config),
              AllOf(HasSubstr("depends on the others of its batch"),
                    HasSubstr("share the capacity of experts"), HasSubstr("--without-capacity")));
  config.encoder.moe.num_group_images = 1;
  EXPECT_EQ(said_of(config), "");
  config.encoder.moe.num_group_images = 0;
  dispatcher.evaluation_factor = 0.0;
  EXPECT_EQ(said_of(config), "");
}

TEST(ExportFormats, SayHowToLiftACapacityOnlyWhereTokensChoose) {
  VMoEConfig config = small_vmoe_config();
  EXPECT_TRUE(can_lift_capacity(*small_vmoe(config)));
  config.encoder.moe.router.kind = RoutingKind::expert_choice;
  config.encoder.moe.router.capacity.factor = 0.6;
  EXPECT_FALSE(can_lift_capacity(*small_vmoe(config)));
  EXPECT_THAT(said_of(config), AllOf(HasSubstr("share the capacity of experts"),
                                     Not(HasSubstr("--without-capacity"))));
  config.encoder.moe = {};
  EXPECT_FALSE(can_lift_capacity(*small_vmoe(config))) << "dense";
}

}  // namespace
}  // namespace moesaic
