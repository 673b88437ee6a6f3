// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/file.h>

#include "data/http_server.h"
#include "data/shard_fixture.h"
#include "moesaic/base/posix.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::error_of;
using test::said_by;
using test::samples;
using test::ShardHome;

TEST(FetchShards, WithoutAHashACutOneIsNotTakenAndNoneIsCalledVerified) {
  const ShardHome home;
  const test::TempDir mirror;
  const Bytes shard = test::tar_bytes(samples(0, 4));
  const auto described = [&](int64_t images) {
    home.describe(
        fmt::format(R"({{"train": [{{"name": "train-0.tar", "num_images": {}}}]}})", images),
        R"("urls": ["file://)" + mirror.path().string() + "\"]");
  };
  const auto refused = [&] {
    const std::string error = error_of(ErrorKind::failure, [&] {
      said_by([&] { DatasetSource(home.name()).fetch({.progress = false}); });
    });
    EXPECT_FALSE(test::fs::exists(home.data() / "pets/train-0.tar"));
    return error;
  };
  described(0);
  write_file(mirror / "train-0.tar", Bytes(shard.begin(), shard.begin() + 2000));
  EXPECT_THAT(refused(), HasSubstr("cannot fetch train-0.tar"));
  write_file(mirror / "train-0.tar", shard);
  described(5);
  EXPECT_THAT(refused(), HasSubstr("4 images, expected 5"));
  described(3);
  said_by([&] {
    const FetchResult result = DatasetSource(home.name()).fetch({.progress = false});
    EXPECT_THAT(result.fetched, ElementsAre("train-0.tar"));
    EXPECT_THAT(result.unhashed, ElementsAre("train-0.tar"));
    const std::vector<FileVerification> files = DatasetSource(home.name()).verify();
    ASSERT_EQ(files.size(), 2U);
    EXPECT_THAT(files[0].problem, HasSubstr("4 images, expected 3"));
    EXPECT_THAT(files[1].doubt, HasSubstr("differ from their description"));
    described(4);
    EXPECT_THAT(DatasetSource(home.name()).verify()[0].doubt,
                HasSubstr("no SHA-256 is described; its number of images is right"));
    EXPECT_EQ(DatasetSource(home.name()).verify()[1].doubt, "");
  });
}

/// Processes that want the same shard wait for one of them by a lock on what it fills.
TEST(FetchShards, ThePartThatIsFilledIsTheOneThatIsLocked) {
  const ShardHome home;
  test::HttpServer server({{"train-0.tar", test::tar_bytes(samples(0, 4))}});
  std::vector<bool> locked;
  server.before_answers([&] {
    const UniqueFd part = open_file(home.data() / "pets/.train-0.tar.moesaic.part", O_WRONLY);
    locked.push_back(::flock(part.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK);
  });
  home.describe(R"({"train": [{"name": "train-0.tar", "num_images": 4}]})",
                "\"urls\": [\"" + server.url() + "missing/\", \"" + server.url() + "\"]");
  said_by([&] { DatasetSource(home.name()).fetch({.progress = false}); });
  EXPECT_THAT(locked, ElementsAre(true, true));
  EXPECT_TRUE(test::fs::exists(home.data() / "pets/train-0.tar"));
}

}  // namespace
}  // namespace moesaic
