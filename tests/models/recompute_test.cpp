// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/encoder_block.h"

#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <cmath>

#include "moesaic/nn/init.h"
#include "moesaic/train/objective.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

/// Noise and every kind of dropout.
VMoEConfig random_config() {
  VMoEConfig config = small_vmoe_config();
  config.encoder.dropout_rate = 0.1;
  config.encoder.attention_dropout_rate = 0.2;
  config.encoder.moe.dropout_rate = 0.3;
  config.encoder.moe.router.noise_std = 2.0;
  config.encoder.moe.router.capacity.factor = 0.8;
  return config;
}

VMoEConfig ensemble_config() {
  VMoEConfig config = random_config();
  config.name = kE3;
  config.encoder.moe.ensemble_size = 2;
  config.encoder.moe.router.bfloat16 = true;
  return config;
}

struct Step {
  at::Tensor logits;
  std::vector<at::Tensor> gradients;
};

Step step(VMoE& model, bool recompute, const std::string& frozen = "none") {
  model.set_activation_checkpointing(recompute);
  model.zero_grad();
  for (auto& item : model.named_parameters()) {
    item.value().set_requires_grad(!item.key().starts_with(frozen));
  }
  const ModelOutput out = model.forward(small_images(6), nn::make_generator(5));
  const at::Tensor labels = torch::arange(6).remainder(5).repeat_interleave(model.num_members());
  classification_terms("softmax", {0.0, {{"importance", 0.1}, {"load", 0.2}, {"gshard", 0.3}}}, out,
                       labels)
      .loss.backward();
  Step result{out.logits.detach(), {}};
  for (const at::Tensor& parameter : model.parameters()) {
    result.gradients.push_back(parameter.grad().defined() ? parameter.grad().clone()
                                                          : at::Tensor());
  }
  return result;
}

void expect_same_bits(const Step& a, const Step& b) {
  EXPECT_TRUE(torch::equal(a.logits, b.logits));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    ASSERT_EQ(a.gradients[i].defined(), b.gradients[i].defined()) << i;
    if (!a.gradients[i].defined()) continue;
    EXPECT_TRUE(torch::equal(a.gradients[i], b.gradients[i])) << i;
  }
}

TEST(Recompute, GivesTheSameBits) {
  for (const VMoEConfig& config : {random_config(), ensemble_config()}) {
    const auto model = small_vmoe(config);
    expect_same_bits(step(*model, true), step(*model, false));
  }
}

TEST(Recompute, LeavesFrozenParametersAlone) {
  const auto model = small_vmoe(random_config());
  expect_same_bits(step(*model, true, "blocks.1"), step(*model, false, "blocks.1"));
  expect_same_bits(step(*model, true, "embedding"), step(*model, false, "embedding"));
}

class WithAutocast {
 public:
  WithAutocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~WithAutocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
};

TEST(Recompute, GivesTheSameBitsUnderAutocast) {
  VMoEConfig config = random_config();
  config.encoder.moe.layers = {};
  const auto model = small_vmoe(config);
  const auto cast = [&](bool recompute) {
    const WithAutocast autocast;
    return step(*model, recompute);
  };
  const Step plain = cast(false);
  expect_same_bits(cast(true), plain);
  EXPECT_FALSE(torch::equal(plain.logits, step(*model, false).logits));
}

/// Sums what the CPU's allocator gives out and takes back.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    bytes_ += size;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t bytes() const { return bytes_; }

 private:
  std::atomic<int64_t> bytes_ = 0;
};

/// Bytes that live on after a forward pass until its backward.
int64_t kept_bytes(VMoE& model, bool recompute) {
  model.set_activation_checkpointing(recompute);
  const at::Tensor images = small_images(6);
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  const at::Tensor loss = model.forward(images, nn::make_generator(5)).logits.sum();
  return live->bytes();
}

TEST(Recompute, LeavesAutocastAsItWasWhereABlockThrows) {
  const auto model = small_vmoe(random_config());
  model->moe_blocks()[0].layer->router->weight.detach().fill_(std::nan(""));
  model->set_activation_checkpointing(true);
  ASSERT_TRUE(at::autocast::is_autocast_cache_enabled());
  EXPECT_THROW(model->forward(small_images(6), nn::make_generator(5)), DivergedError);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(Recompute, KeepsLess) {
  const auto model = small_vmoe(random_config());
  const int64_t kept = kept_bytes(*model, true);
  EXPECT_GT(kept, 4 * 6 * 17 * 12 * 4);  // four blocks' inputs
  EXPECT_LT(kept, kept_bytes(*model, false) / 4);
}

TEST(Recompute, IsTheForwardPassWhereNoGradientIsWanted) {
  const auto model = small_vmoe();
  const at::Tensor plain = run(*model, small_images(3)).logits;
  model->set_activation_checkpointing(true);
  EXPECT_TRUE(torch::equal(run(*model, small_images(3)).logits, plain));
}

}  // namespace
}  // namespace moesaic
