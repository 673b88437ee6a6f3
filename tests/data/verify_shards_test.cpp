// SPDX-License-Identifier: Apache-2.0
// What 'data verify' says of shards that are not what is described.
#include <string>
#include <vector>

#include "data/shard_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::samples;

class VerifyShards : public ::testing::Test {
 protected:
  std::vector<FileVerification> verified() const {
    std::vector<FileVerification> files;
    test::said_by([&] { files = DatasetSource(home_.name()).verify(); });
    return files;
  }
  std::vector<std::string> problems() const {
    std::vector<std::string> found;
    for (const FileVerification& file : verified()) {
      if (!file.ok()) found.push_back(file.problem);
    }
    return found;
  }

  test::ShardHome home_;
};

TEST_F(VerifyShards, NamesEachDamagedOne) {
  home_.write("train-0.tar", samples(0, 4));
  const Bytes second = home_.write("train-1.tar", samples(4, 4));
  home_.describe(R"({"train": [{"name": "train-0.tar", "num_images": 4},
      {"name": "train-1.tar", "num_images": 4, "size": )" +
                 std::to_string(second.size()) + R"(, "sha256": ")" + test::hash_of(second) +
                 "\"}]}");
  EXPECT_THAT(problems(), IsEmpty());
  Bytes other = second;
  other[600] ^= 1;  // Within the first image.
  write_file(home_.path("train-1.tar"), other);
  home_.write("train-0.tar", samples(0, 3));
  EXPECT_THAT(problems(), Contains(HasSubstr("train-1.tar: SHA-256 is")));
  EXPECT_THAT(problems(), Contains(HasSubstr("train-0.tar: 3 images, expected 4")));
}

// So much is lost that the split cannot be opened, which must hide neither shard nor image.
TEST_F(VerifyShards, NamesAllOfManyAndReadsTheOthers) {
  home_.describe(R"({"train": [{"name": "train-{0..3}.tar", "num_images": 4}]})");
  std::vector<test::TarEntry> third = samples(8, 4);
  third[0].content = test::text_bytes("no image");  // In a sound shard.
  home_.write("train-0.tar", samples(0, 2));
  write_file(home_.path("train-1.tar"), std::string("\x1f\x8b compressed"));
  home_.write("train-2.tar", third);
  home_.write("train-3.tar", samples(12, 1));
  const std::vector<std::string> found = problems();
  EXPECT_THAT(found, Contains(HasSubstr("train-0.tar: 2 images, expected 4")));
  EXPECT_THAT(found, Contains(HasSubstr("train-1.tar: ")));
  EXPECT_THAT(found, Contains(HasSubstr("train-3.tar: 1 image, expected 4")));
  EXPECT_THAT(found, Contains(HasSubstr("train-2.tar/1008.jpg")));
  EXPECT_THAT(found, Not(Contains(HasSubstr("train-2.tar: "))));
  std::vector<std::string> names;
  for (const FileVerification& file : verified()) names.push_back(file.name);
  EXPECT_THAT(names, Contains("train: 3 of 4"));
}

}  // namespace
}  // namespace moesaic
