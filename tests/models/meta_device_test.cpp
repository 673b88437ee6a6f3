// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/meta_device.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <thread>
#include <vector>

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

TEST(MetaDeviceGuard, HasTheShapesOfTheRealNetwork) {
  const auto real = build_model(sized(""), 1), shape = build_meta_model(sized(""));
  const auto shapes = shape->named_parameters();  // Its items die with it.
  ASSERT_EQ(real->named_parameters().size(), shapes.size());
  for (const auto& item : real->named_parameters()) {
    const at::Tensor* found = shapes.find(item.key());
    ASSERT_NE(found, nullptr) << item.key();
    EXPECT_EQ(found->sizes(), item.value().sizes()) << item.key();
    EXPECT_TRUE(found->is_meta()) << item.key();
    EXPECT_TRUE(found->requires_grad()) << item.key();
  }
  EXPECT_EQ(shape->config(), real->config());
  const MetaKernels kernels;
  const at::Tensor images = at::empty({5, 3, 32, 32}, at::device(at::kMeta).dtype(at::kFloat));
  EXPECT_EQ(shape->forward(images).logits.sizes(), at::IntArrayRef({5, 10}));
}

TEST(MetaDeviceGuard, HoldsANetworkThatNoMachineDoes) {
  const auto shape = build_meta_model(
      sized(R"(encoder={"mlp_dim": 1048576, "moe": {"layers": [1], "num_experts": 65536}})"));
  EXPECT_GT(static_cast<double>(shape->num_parameters()), 1e12);
}

TEST(MetaDeviceGuard, EndsWithItsScope) {
  {
    const MetaDeviceGuard on_meta;
    EXPECT_TRUE(at::zeros({2}).is_meta());
  }
  EXPECT_TRUE(at::zeros({2}).is_cpu());
  const at::Tensor source = at::ones({2});
  const MetaDeviceGuard on_meta;
  EXPECT_TRUE(at::zeros_like(source).is_cpu());
  EXPECT_TRUE((source + 1).is_cpu());
}

/// Whether the operator has a kernel of its own for the meta device.
bool has_shape(const char* name) {
  const auto found = c10::Dispatcher::singleton().findSchema({std::string("aten::") + name, ""});
  return found && found->hasKernelForDispatchKey(c10::DispatchKey::Meta);
}

TEST(MetaKernels, AreRegisteredOnlyWhileTheyAreUsed) {
  const auto names = {"_scaled_dot_product_flash_attention_for_cpu", "native_layer_norm",
                      "native_batch_norm", "convolution_overrideable"};
  for (const char* name : names) EXPECT_FALSE(has_shape(name)) << name;
  {
    const MetaKernels kernels;
    { const MetaDeviceGuard on_meta; }
    for (const char* name : names) EXPECT_TRUE(has_shape(name)) << name;
  }
  for (const char* name : names) EXPECT_FALSE(has_shape(name)) << name;
}

TEST(MetaDeviceGuard, WithoutOneItsKeyIsNotOurs) {
  const auto build = [] {
    const c10::impl::IncludeDispatchKeyGuard key(c10::DispatchKey::DeferredInit);
    return at::zeros({2});
  };
  { const MetaDeviceGuard on_meta; }
  EXPECT_THROW(build(), c10::Error);
  const MetaDeviceGuard on_meta;
  EXPECT_TRUE(build().is_meta());
}

TEST(MetaDeviceGuard, ThreadsBuildAtTheSameTime) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([] {
      for (int i = 0; i < 20; ++i) {
        const MetaDeviceGuard on_meta;
        EXPECT_TRUE(at::zeros({2}).is_meta());
      }
      EXPECT_TRUE(at::zeros({2}).is_cpu());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace moesaic
