// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/throughput.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

/// Notes who is called with what.
class Probe : public Model {
 public:
  Probe(std::string name, std::vector<std::string>& calls)
      : name_(std::move(name)), calls_(calls) {}

  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator&) override {
    EXPECT_FALSE(is_training());
    EXPECT_TRUE(c10::InferenceMode::is_enabled());
    batch_sizes.push_back(images_BCHW.size(0));
    first_pixels.push_back(images_BCHW[0][0][0][0].item<float>());
    calls_.push_back(name_);
    return {};
  }
  nlohmann::ordered_json config() const override { return {}; }
  void reset_head(int64_t) override {}
  std::vector<MoEBlock> moe_blocks() const override { return {}; }
  std::vector<int64_t> input_shape() const override { return {1, 1, 1}; }
  int64_t tokens_per_image() const override { return 1; }
  int64_t num_classes() const override { return 1; }
  double flops_per_image(const RowsPerToken&) const override { return 0.0; }

  std::vector<int64_t> batch_sizes;
  std::vector<float> first_pixels;

 private:
  std::string name_;
  std::vector<std::string>& calls_;
};

std::shared_ptr<const Dataset> counting(int64_t images) {
  std::vector<uint8_t> pixels, labels(static_cast<size_t>(images), 0);
  for (int64_t i = 0; i < images; ++i) pixels.push_back(static_cast<uint8_t>(i));
  return make_memory_dataset({"counting", "test", "", {"only"}, 1, 1, 1, {0.0}, {1.0 / 255.0}},
                             pixels, labels);
}

class MeasureThroughput : public ::testing::Test {
 protected:
  std::vector<std::string> calls;
  std::shared_ptr<Probe> a = std::make_shared<Probe>("a", calls);
  std::shared_ptr<Probe> b = std::make_shared<Probe>("b", calls);
};

TEST_F(MeasureThroughput, NetworksTakeTurnsAndEachBeginsARound) {
  const auto rates = measure_throughput({forward_pass(a), forward_pass(b)}, counting(6),
                                        {.batch_size = 3, .num_rounds = 2});
  ASSERT_EQ(rates.size(), 2u);
  EXPECT_GT(rates[0], 0.0);
  EXPECT_GT(rates[1], 0.0);
  // Two rounds to warm up, two that count.
  EXPECT_EQ(calls, (std::vector<std::string>{"a", "b", "b", "a", "a", "b", "b", "a"}));
}

TEST_F(MeasureThroughput, AllNetworksSeeTheSameWholeBatchesOfRealImages) {
  measure_throughput({forward_pass(a), forward_pass(b)}, counting(8),
                     {.batch_size = 3, .num_rounds = 2});
  EXPECT_EQ(a->batch_sizes, (std::vector<int64_t>{3, 3, 3, 3}));
  ASSERT_EQ(a->first_pixels.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(a->first_pixels[i], i % 2 == 0 ? 0.0 : 3.0, 1e-4);
  EXPECT_EQ(a->first_pixels, b->first_pixels);
}

TEST_F(MeasureThroughput, FewerImagesThanABatchAreOneBatch) {
  measure_throughput({forward_pass(a)}, counting(2), {.batch_size = 128, .num_rounds = 1});
  EXPECT_EQ(a->batch_sizes, (std::vector<int64_t>{2, 2, 2}));
}

TEST_F(MeasureThroughput, StopsWhenAskedTo) {
  int64_t rounds = 0;
  const auto rates =
      measure_throughput({forward_pass(a), forward_pass(b)}, counting(2),
                         {.batch_size = 1, .num_rounds = 50}, [&] { return ++rounds <= 3; });
  EXPECT_TRUE(rates.empty());
  EXPECT_EQ(calls.size(), 6u);
}

TEST(Median, IsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(median({3.0}), 3.0);
  EXPECT_EQ(median({9.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({4.0, 100.0, 1.0, 2.0}), 3.0);
  EXPECT_THROW(median({}), Error);
}

}  // namespace
}  // namespace moesaic
