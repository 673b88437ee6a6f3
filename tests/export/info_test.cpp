// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/info.h"

#include <gtest/gtest.h>

#include "base/support.h"
#include "moesaic/base/file.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/data/catalog.h"
#include "prune/small_vmoe.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

ExportInfo info_of(const Json& data, const Json& classes) {
  const test::TempDir folder;
  const auto model = testing::small_vmoe();
  Checkpoint checkpoint;
  checkpoint.config = {{"model", model->config()}, {"data", data}, {"classes", classes}};
  checkpoint.state = Json::object();
  checkpoint.model = state_of(*model);
  save_checkpoint(folder / "checkpoint", checkpoint);
  return export_info(folder / "checkpoint");
}

TEST(ExportInfo, ComesFromTheCheckpointAndItsDataSet) {
  const ExportInfo info = info_of("fashion-mnist-footwear", {"Sandal", "Sneaker", "Ankle boot"});
  EXPECT_EQ(info.dataset, "fashion-mnist-footwear");
  EXPECT_EQ(info.classes, (std::vector<std::string>{"Sandal", "Sneaker", "Ankle boot"}));
  const DatasetSpec base = load_dataset_spec("fashion-mnist");
  EXPECT_EQ(info.mean, base.mean);
  EXPECT_EQ(info.std, base.std);
  EXPECT_EQ(info.mean.size(), 1U);
}

TEST(ExportInfo, LeavesOutWhatIsNotKnown) {
  const ExportInfo other = info_of("a-set-of-my-own", {"x"});
  EXPECT_EQ(other.dataset, "a-set-of-my-own");
  EXPECT_TRUE(other.mean.empty());
  const ExportInfo nothing = info_of(nullptr, nullptr);
  EXPECT_TRUE(nothing.dataset.empty());
  EXPECT_TRUE(nothing.classes.empty());
}

TEST(ExportInfo, TellsInputsThatAreNoImagesAndReadsDescriptionsOfOnesOwn) {
  const auto rescale = [](const ExportInfo& info) {
    const auto files = side_files(*testing::small_vmoe(), info);
    return Json::parse(files.at("preprocess.json")).at("rescale_factor");
  };
  EXPECT_TRUE(rescale(info_of("clusters-setting1", nullptr)).is_null());
  EXPECT_FALSE(rescale(info_of("fashion-mnist-footwear", nullptr)).is_null());
  const test::TempDir folder;
  write_atomic(folder / "mine.json",
               R"({"name": "mine", "base": "fashion-mnist", "first": {"train": 10}})");
  const ExportInfo mine = info_of((folder / "mine.json").string(), nullptr);
  EXPECT_EQ(mine.mean, load_dataset_spec("fashion-mnist").mean);
  EXPECT_TRUE(info_of((folder / "gone.json").string(), nullptr).mean.empty());
  EXPECT_TRUE(info_of(".", nullptr).mean.empty());  // a name, though there is such a path
}

}  // namespace
}  // namespace moesaic
