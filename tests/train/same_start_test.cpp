// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/distributed_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moesaic/models/registry.h"
#include "support/processes.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

std::shared_ptr<const Dataset> four_images(std::vector<uint8_t> labels, uint8_t last_pixel = 0) {
  DatasetInfo info{"four", "train", "", {"a", "b"}, 1, 2, 2, {0.5}, {0.5}};
  std::vector<uint8_t> pixels(16, 7);
  pixels.back() = last_pixel;
  return make_memory_dataset(info, pixels, std::move(labels));
}

TEST(DataMark, DiffersWithNumberLabelsAndPixels) {
  const std::string fingerprint = data_fingerprint(*four_images({0, 1, 0, 1}));
  EXPECT_EQ(fingerprint, data_fingerprint(*four_images({0, 1, 0, 1})));
  EXPECT_EQ(fingerprint.find("4 images "), 0U) << fingerprint;
  EXPECT_NE(fingerprint, data_fingerprint(*four_images({0, 1, 1, 1})));
  EXPECT_NE(fingerprint, data_fingerprint(*four_images({0, 1, 0, 1}, 1)));
}

/// Images in two shards that are elsewhere.
class FarShards : public Dataset {
 public:
  explicit FarShards(std::vector<int64_t> blocks)
      : Dataset(four_images({0, 1, 0, 1})->info()), blocks_(std::move(blocks)) {}
  int64_t size() const override { return 4; }
  int64_t label(int64_t) const override { fail("a label was fetched"); }
  void oriented_image(int64_t, std::optional<bool>, uint8_t*) const override {
    fail("an image was fetched");
  }
  std::vector<int64_t> blocks() const override { return blocks_; }

 private:
  std::vector<int64_t> blocks_;
};

TEST(DataMark, FetchesNoShards) {
  EXPECT_EQ(data_fingerprint(FarShards({2, 2})), data_fingerprint(FarShards({2, 2})));
  EXPECT_NE(data_fingerprint(FarShards({2, 2})), data_fingerprint(FarShards({1, 3})));
}

/// Makes a network of each of two processes, another one in each, and lets them agree on it.
std::vector<std::string> hashes_after_agreement(const fs::path& checkpoint) {
  std::vector<std::string> hashes(2);
  test::run_processes(2, {}, [&](const auto& processes) {
    const Value config = Value::from_json(nlohmann::ordered_json::parse(kModel), "model");
    const auto model = build_model(config, static_cast<uint64_t>(processes->rank()));
    sync_network(*processes, checkpoint, *model);
    hashes[static_cast<size_t>(processes->rank())] = hash_of(state_of(*model));
  });
  return hashes;
}

TEST(SyncNetwork, WithoutACheckpointAllTakeThatOfProcess0) {
  const Value config = Value::from_json(nlohmann::ordered_json::parse(kModel), "model");
  const std::string of_0 = hash_of(state_of(*build_model(config, 0)));
  EXPECT_NE(of_0, hash_of(state_of(*build_model(config, 1))));
  EXPECT_THAT(hashes_after_agreement(""), ::testing::Each(of_0));
}

TEST(SyncNetwork, OfACheckpointThatIsAnotherOneIsRefused) {
  EXPECT_THAT(error_of([] { hashes_after_agreement("run/checkpoints/step_3"); }),
              ::testing::StartsWith("usage: process 1 has another network than process 0"));
}

}  // namespace
}  // namespace moesaic
