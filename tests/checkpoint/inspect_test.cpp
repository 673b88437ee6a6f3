// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/inspect.h"

#include "base/support.h"
#include "checkpoint/shards.h"
#include "export/toy_info.h"
#include "moesaic/export/formats.h"
#include "support/matchers.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using testing::kWeightsIndex;

/// One network as one process saves it, in one/, and as four do, in four/.
class InspectParts : public ::testing::Test {
 protected:
  InspectParts() {
    const Checkpoint checkpoint{.config = {{"model", model_->config()}, {"data", "toys"}},
                                .state = {{"step", 3}},
                                .model = state_of(*model_)};
    save_checkpoint(folder_ / "one", checkpoint);
    testing::save_in_parts(folder_ / "four", checkpoint, 4);
  }

  const test::TempDir folder_;
  const std::shared_ptr<VMoE> model_ = testing::small_vmoe();
};

TEST_F(InspectParts, ShowsTheNetworkAndTheNumberOfItsFiles) {
  auto one = inspect(folder_ / "one"), four = inspect(folder_ / "four");
  EXPECT_EQ(four["files"], 4);
  EXPECT_GT(four["file_bytes"], one["file_bytes"]);
  EXPECT_EQ(four["file_bytes"], weights_bytes(folder_ / "four"));
  EXPECT_EQ(one["file_bytes"], fs::file_size(folder_ / "one/model.safetensors"));
  EXPECT_FALSE(one.contains("files"));
  std::map<std::string, nlohmann::json> wanted, found;
  for (const auto& tensor : one["tensors"]) wanted[tensor["name"]] = tensor;
  for (const auto& tensor : four["tensors"]) found[tensor["name"]] = tensor;
  EXPECT_EQ(found, wanted);
  for (auto* described : {&one, &four}) {
    for (const char* key : {"path", "files", "file_bytes", "tensors"}) described->erase(key);
  }
  EXPECT_EQ(four, one);
}

TEST_F(InspectParts, AnIndexAloneIsDescribedAsAFileIs) {
  const auto found = inspect(folder_ / "four" / kWeightsIndex);
  EXPECT_EQ(found["kind"], "safetensors");
  EXPECT_EQ(found["tensors"].size(), state_of(*model_).size());
  EXPECT_THAT(test::usage_of([&] { load_newest_checkpoint(folder_ / "four" / kWeightsIndex); }),
              HasSubstr("a file of weights without a model configuration; give its folder"));
}

TEST_F(InspectParts, NothingDiffersFromOneFile) {
  for (const char* other : {"four", "four/model.safetensors.index.json"}) {
    const auto difference = inspect_difference(folder_ / "one", folder_ / other);
    EXPECT_EQ(difference["equal"], state_of(*model_).size()) << other;
    for (const char* key : {"only_in_first", "only_in_second", "different_shape", "changed"}) {
      EXPECT_TRUE(difference[key].empty()) << other << " " << key;
    }
  }
}

TEST_F(InspectParts, AnExportIsTheSameToTheByte) {
  for (const char* name : {"one", "four"}) {
    export_safetensors(*load_model(folder_ / name), folder_ / (std::string(name) + ".safetensors"),
                       testing::toy_info());
  }
  EXPECT_EQ(test::get(folder_ / "one.safetensors"), test::get(folder_ / "four.safetensors"));
}

TEST_F(InspectParts, AnExportInPartsIsTakenWhereACheckpointIs) {
  export_safetensors(*model_, folder_ / "export", testing::toy_info());
  fs::remove(folder_ / "export/model.safetensors");
  for (const auto& entry : fs::directory_iterator(folder_ / "four")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model")) fs::copy(entry.path(), folder_ / "export" / name);
  }
  EXPECT_EQ(inspect(folder_ / "export")["kind"], "export");
  expect_equal_tensors(load_newest_checkpoint(folder_ / "export").model, state_of(*model_));
}

}  // namespace
}  // namespace moesaic
