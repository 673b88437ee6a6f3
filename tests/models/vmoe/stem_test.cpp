// SPDX-License-Identifier: Apache-2.0
// Convolutions before the patch embedding.
#include <fmt/format.h>

#include "base/support.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/train/run_plan.h"
#include "support/matchers.h"
#include "support/models.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

VMoEConfig with_stem(std::vector<nn::StemLayer> stem) {
  VMoEConfig config = small_vmoe_config();
  config.stem = std::move(stem);
  return config;
}

TEST(VMoEStem, AddsItsTensorsAndNoOthers) {
  const TensorMap plain = state_of(VMoE(small_vmoe_config(), 1)),
                  convolved = state_of(VMoE(with_stem({{6, 1}, {9, 2}}), 1));
  for (const auto& [name, tensor] : plain) {
    EXPECT_FALSE(name.starts_with("stem")) << name;
    ASSERT_TRUE(convolved.contains(name)) << name;
    const bool same = tensor.sizes() == convolved.at(name).sizes();
    EXPECT_EQ(same, name != "embedding.weight") << name;
  }
  EXPECT_EQ(convolved.size(), plain.size() + 2 * 3);
  EXPECT_EQ(state_of(VMoE(with_stem({{6, 1, "batch_norm"}, {9, 2}}), 1)).size(),
            convolved.size() + 3);
  EXPECT_EQ(convolved.at("stem.convs.1.weight").sizes(), (std::vector<int64_t>{9, 6, 3, 3}));
  EXPECT_EQ(convolved.at("stem.norms.1.bias").sizes(), (std::vector<int64_t>{9}));
  EXPECT_EQ(plain.at("embedding.weight").sizes(), (std::vector<int64_t>{12, 1, 2, 2}));
  EXPECT_EQ(convolved.at("embedding.weight").sizes(), (std::vector<int64_t>{12, 9, 1, 1}));
}

TEST(VMoEStem, EveryParameterOfItGetsAGradient) {
  const auto model = small_vmoe(with_stem({{6, 2}}));
  const ModelOutput out = model->forward(small_images(3));
  EXPECT_EQ(out.routings[0].routing.num_tokens(), 3 * 17);
  out.logits.square().sum().backward();
  for (const auto& item : model->stem->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().sum().item<double>(), 0.0) << item.key();
  }
}

TEST(VMoEStem, ItsConfigurationRebuildsIt) {
  testing::rebuilt(VMoE(with_stem({{6, 1}, {9, 2}}), 1));
}

TEST(VMoEStem, RunsOnTheMetaDevice) {
  const VMoE model(with_stem({{6, 1}, {9, 2}}), 1);
  const auto meta = meta_copy(model);
  const MetaKernels kernels;
  const at::Tensor logits = meta->forward(meta_inputs(*meta, 4)).logits;
  EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{4, 5}));
  EXPECT_TRUE(logits.is_meta());
  logits.sum().backward();
}

TEST(VMoEStem, CountsItsProducts) {
  const double d = 12;
  // Of 8 x 8 pixels, with a stride of 2 of 4 x 4; patches of 2 x 2 pixels are points of that map.
  const double stem = 64 * 9 * 1 * 6 + 16 * 9 * 6 * 9, embedding = 16 * 9 * d,
               without = 16 * (2 * 2) * d;
  EXPECT_DOUBLE_EQ(VMoE(with_stem({{6, 1}, {9, 2}}), 1).flops_per_image() -
                       VMoE(small_vmoe_config(), 1).flops_per_image(),
                   2 * (stem + embedding - without));
}

TEST(VMoEStem, ErrorsNameTheNearestValidChoice) {
  const auto refusal = [](const std::string& stem, int64_t patch_size = 14) {
    const std::string config = fmt::format(R"({{"name": "vmoe", "patch_size": {}, "stem": {},
        "encoder": {{"moe": {{"layers": [1]}}}}}})",
                                           patch_size, stem);
    return test::usage_of([&] { testing::model_from(config); });
  };
  EXPECT_THAT(refusal(R"([{"channels": 8, "stride": 2}, {"channels": 8, "stride": 2}])"),
              HasSubstr("stem.1.stride 2 does not divide the 7 that earlier strides leave of "
                        "patch_size 14; choose 1"));
  EXPECT_THAT(refusal(R"([{"channels": 8, "stride": 3}])"), HasSubstr("between 1 and 2"));
  EXPECT_THAT(refusal(R"([{"channels": 8, "stride": 2}])", 7),
              HasSubstr("stem.0.stride 2 does not divide patch_size 7; choose 1"));
  EXPECT_THAT(refusal(R"([{"stride": 2}])"), HasSubstr("channels"));
  EXPECT_THAT(refusal(R"([{"channels": 8, "norm": "batchnorm"}])"), HasSubstr("batch_norm"));
}

}  // namespace
}  // namespace moesaic
