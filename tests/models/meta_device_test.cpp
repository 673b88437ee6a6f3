// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/meta_device.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/config/document.h"
#include "moesaic/models/registry.h"

namespace moesaic {
namespace {

Value sized(const std::string& change) {
  Document document = Document::from_text(
      R"({"name": "vmoe", "image_size": 32, "patch_size": 8, "channels": 3, "hidden_size": 16,
          "encoder": {"num_layers": 2, "num_heads": 2, "mlp_dim": 32, "moe": {"layers": [1]}}})",
      "model");
  if (!change.empty()) document.set(change);
  return document.root();
}

TEST(OnMetaDevice, HasTheShapesOfTheRealNetwork) {
  const auto real = build_model(sized(""), 1), shape = build_model_shape(sized(""));
  ASSERT_EQ(real->named_parameters().size(), shape->named_parameters().size());
  for (const auto& item : real->named_parameters()) {
    const at::Tensor* found = shape->named_parameters().find(item.key());
    ASSERT_NE(found, nullptr) << item.key();
    EXPECT_EQ(found->sizes(), item.value().sizes()) << item.key();
    EXPECT_TRUE(found->is_meta()) << item.key();
    EXPECT_TRUE(found->requires_grad()) << item.key();
  }
  EXPECT_EQ(shape->config(), real->config());
  const at::Tensor images = at::empty({5, 3, 32, 32}, at::device(at::kMeta).dtype(at::kFloat));
  EXPECT_EQ(shape->forward(images).logits.sizes(), at::IntArrayRef({5, 10}));
}

TEST(OnMetaDevice, HoldsANetworkThatNoMachineDoes) {
  const auto shape = build_model_shape(
      sized(R"(encoder={"mlp_dim": 1048576, "moe": {"layers": [1], "num_experts": 65536}})"));
  EXPECT_GT(static_cast<double>(shape->parameter_count()), 1e12);
}

TEST(OnMetaDevice, EndsWithItsScope) {
  {
    const OnMetaDevice on_meta;
    EXPECT_TRUE(at::zeros({2}).is_meta());
  }
  EXPECT_TRUE(at::zeros({2}).is_cpu());
  const at::Tensor source = at::ones({2});
  const OnMetaDevice on_meta;
  EXPECT_TRUE(at::zeros_like(source).is_cpu());
  EXPECT_TRUE((source + 1).is_cpu());
}

}  // namespace
}  // namespace moesaic
