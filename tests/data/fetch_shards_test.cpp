// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "data/http_server.h"
#include "data/shard_fixture.h"
#include "moesaic/base/posix.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
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
    const std::string error = failure_of(
        [&] { said_by([&] { DatasetSource(home.name()).fetch({.show_progress = false}); }); });
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
    const FetchResult result = DatasetSource(home.name()).fetch({.show_progress = false});
    EXPECT_THAT(result.fetched, ElementsAre("train-0.tar"));
    EXPECT_THAT(result.unhashed, ElementsAre("train-0.tar"));
    const std::vector<FileVerification> files = DatasetSource(home.name()).verify();
    ASSERT_EQ(files.size(), 2U);
    EXPECT_THAT(files[0].problem, HasSubstr("4 images, expected 3"));
    EXPECT_THAT(files[1].unverified, HasSubstr("differ from their description"));
    described(4);
    EXPECT_THAT(DatasetSource(home.name()).verify()[0].unverified,
                HasSubstr("no SHA-256 is described; its number of images is right"));
    EXPECT_EQ(DatasetSource(home.name()).verify()[1].unverified, "");
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
  said_by([&] { DatasetSource(home.name()).fetch({.show_progress = false}); });
  EXPECT_THAT(locked, ElementsAre(true, true));
  EXPECT_TRUE(test::fs::exists(home.data() / "pets/train-0.tar"));
}

class ListedShards : public ::testing::Test {
 protected:
  ListedShards()
      : server_({{"datasets/me/pets/resolve/v1/a-0.tar", test::tar_bytes(samples(0, 4))},
                 {"datasets/me/pets/resolve/v1/a-1.tar", test::tar_bytes(samples(4, 4))},
                 {"datasets/me/pets/resolve/v1/a-2.tar", test::tar_bytes(samples(8, 4))},
                 {"datasets/me/pets/resolve/v1/_info.json", test::text_bytes(R"({"name": "pets",
                   "splits": {"train": {"name": "train", "filenames": ["a-0.tar", "a-1.tar"],
                                        "shard_lengths": [4, 4], "num_samples": 8},
                              "val": {"filenames": ["a-2.tar"], "shard_lengths": [4]}}})")}}),
        endpoint_("HF_ENDPOINT", server_.url()) {}

  void describe(const std::string& rest = "") {
    write_file(home_.path("pets.json"),
               R"({"name": "pets", "format": "shards", "num_classes": 2,
                   "urls": ["hf://me/pets@v1"], "shards_file": "_info.json",
                   "splits": {"test": "val"})" +
                   rest + "}");
  }
  test::fs::path place(const std::string& name) const { return home_.data() / "pets" / name; }
  bool is_here(int shard) const {
    return test::fs::exists(place("a-" + std::to_string(shard) + ".tar"));
  }
  void read(int64_t number) const {
    const auto data = home_.open(number < 8 ? "train" : "test");
    EXPECT_EQ(test::ShardHome::number_at(*data, number % 8), number);
  }

  ShardHome home_;
  test::HttpServer server_;
  test::ScopedEnv endpoint_;
};

TEST_F(ListedShards, AreThoseOfAFileInTheRepository) {
  describe();
  const DatasetSource source(home_.name());
  EXPECT_THAT(source.splits(), ElementsAre("train", "test"));
  EXPECT_EQ(source.num_classes(), 2);
  EXPECT_EQ(source.open_metadata("train")->size(), 8);
  read(6);
  EXPECT_THAT(server_.requests(), ElementsAre("datasets/me/pets/resolve/v1/_info.json 0",
                                              "datasets/me/pets/resolve/v1/a-1.tar 0"));
  write_file(place("_info.json"), std::string(R"({"splits": {"train": {"filenames": ["a-0.tar"],
                                                  "shard_lengths": [4, 4]}}})"));
  EXPECT_THAT(failure_of([&] { DatasetSource{home_.name()}; }),
              AllOf(HasSubstr("_info.json:1:"), HasSubstr("1 filenames, but 2 shard_lengths")));
  write_file(place("_info.json"), std::string(R"({"splits": {"train": {
      "filenames": ["../a.tar"], "shard_lengths": [4]}}})"));
  EXPECT_THAT(failure_of([&] { DatasetSource{home_.name()}; }), HasSubstr("../a.tar"));
}

TEST_F(ListedShards, AreFetchedWithTheTokenOfTheirDescription) {
  server_.answer_by([](const std::string& asked) -> std::string {
    if (asked.find("Authorization: Bearer abc123\r\n") != std::string::npos) return "";
    return "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
  });
  const test::ScopedEnv hub("HF_TOKEN", "another"), token("MY_TOKEN", "abc123");
  describe();
  EXPECT_THAT(failure_of([&] { DatasetSource{home_.name()}; }),
              AllOf(HasSubstr("401"), HasSubstr("the token in HF_TOKEN is refused")));
  describe(R"(, "token_env": "MY_TOKEN")");
  read(6);
  EXPECT_THAT(server_.requests(), ElementsAre("datasets/me/pets/resolve/v1/_info.json 0",
                                              "datasets/me/pets/resolve/v1/_info.json 0",
                                              "datasets/me/pets/resolve/v1/a-1.tar 0"));
}

/// Sets when a file was last used.
void use_at(const test::fs::path& path, time_t seconds) {
  const timespec times[] = {{0, UTIME_OMIT}, {seconds, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST_F(ListedShards, TheLeastRecentlyUsedMakesRoom) {
  const size_t size = test::tar_bytes(samples(0, 4)).size();
  describe(", \"max_cache_bytes\": " + std::to_string(2 * size + size / 2));
  read(0);
  read(4);
  use_at(place("a-0.tar"), 1000);
  use_at(place("a-1.tar"), 2000);
  read(0);  // Which is a use of it.
  read(8);
  EXPECT_TRUE(is_here(0) && !is_here(1) && is_here(2));
  read(4);
  EXPECT_TRUE(is_here(1));
  EXPECT_NE(is_here(0), is_here(2));
}

TEST_F(ListedShards, OneInUseStays) {
  describe(", \"max_cache_bytes\": 1");
  const auto data = home_.open();
  EXPECT_EQ(test::ShardHome::number_at(*data, 0), 0);
  read(8);
  EXPECT_TRUE(is_here(0) && is_here(2));
  EXPECT_EQ(test::ShardHome::number_at(*data, 4), 4);
  EXPECT_TRUE(is_here(0) && is_here(1) && !is_here(2));
  test::fs::remove(place("a-1.tar"));  // As another machine might.
  EXPECT_EQ(test::ShardHome::number_at(*data, 5), 5);
}

TEST(FetchShards, AnAddressHoldsNoSecretAndATokenIsNamedAsOne) {
  const ShardHome home;
  const auto refusal = [&](const std::string& rest) {
    home.describe(R"({"train": [{"name": "a.tar"}]})", rest);
    return test::usage_of([&] { DatasetSource{home.name()}; });
  };
  EXPECT_THAT(refusal(R"("urls": ["https://me:pass1word@a.b/"])"),
              AllOf(HasSubstr("'token_env'"), Not(HasSubstr("pass1word"))));
  EXPECT_THAT(refusal(R"("token_env": "HOME")"), HasSubstr("ends in TOKEN"));
}

}  // namespace
}  // namespace moesaic
