// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/archive.h"

#include "data/tar_bytes.h"
#include "formats/bytes.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::tar_bytes;
using test::TarEntry;

class Archive : public ::testing::Test {
 protected:
  Archive() { test::fs::create_directories(target_); }

  /// Returns the paths of the files, sorted.
  std::vector<std::string> unpack(const Bytes& bytes, const UnpackLimits& limits = {}) {
    test::write_file(archive_, bytes);
    unpack_archive(archive_, target_, limits);
    std::vector<std::string> files;
    for (const auto& entry : test::fs::recursive_directory_iterator(target_)) {
      if (entry.is_regular_file())
        files.push_back(entry.path().lexically_relative(target_).string());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  std::string refusal(const std::vector<TarEntry>& entries, const UnpackLimits& limits = {}) {
    std::string message = test::failure_of([&] { unpack(tar_bytes(entries), limits); });
    EXPECT_THAT(message, HasSubstr(archive_.string()));
    // Nothing may ever lie beside the folder.
    EXPECT_THAT(folder_.names(), ElementsAre("archive.tar", "outside", "target"));
    EXPECT_EQ(test::read_file(folder_.path() / "outside"), Bytes{'o'});
    test::fs::remove_all(target_);
    test::fs::create_directories(target_);
    return message;
  }

  void SetUp() override { test::write_file(folder_.path() / "outside", Bytes{'o'}); }

  test::TempDir folder_;
  test::fs::path target_ = folder_.path() / "target", archive_ = folder_.path() / "archive.tar";
};

TEST_F(Archive, GivesFilesAndFolders) {
  const Bytes bytes =
      tar_bytes({{"data/"}, {"data/a.bin", {1, 2, 3}}, {"./b", {}}, {"c/d/e", {9}}});
  EXPECT_THAT(unpack(bytes), ElementsAre("b", "c/d/e", "data/a.bin"));
  EXPECT_EQ(test::read_file(target_ / "data" / "a.bin"), (Bytes{1, 2, 3}));
  EXPECT_EQ(test::read_file(target_ / "b"), Bytes{});
  test::fs::remove_all(target_);
  test::fs::create_directories(target_);
  EXPECT_EQ(unpack(test::gzip_bytes(bytes)).size(), 3u);
}

TEST_F(Archive, NothingLeadsOutOfTheFolder) {
  EXPECT_THAT(refusal({{"../outside", {1}}}), HasSubstr("'../outside' leads out of the folder"));
  EXPECT_THAT(refusal({{"a/../../outside", {1}}}), HasSubstr("leads out"));
  EXPECT_THAT(refusal({{(folder_.path() / "outside").string().substr(0, 90), {1}}}),
              HasSubstr("absolute path"));
  EXPECT_THAT(refusal({{"link", {}, '2', "../outside"}}), HasSubstr("'link' is a link"));
  EXPECT_THAT(refusal({{"link", {}, '1', "../outside"}}), HasSubstr("is a link"));
  EXPECT_THAT(refusal({{"pipe", {}, '6'}}), HasSubstr("neither a file nor a folder"));
  EXPECT_THAT(refusal({{"device", {}, '3'}}), HasSubstr("neither a file nor a folder"));
}

TEST_F(Archive, ALinkThatIsThereIsNotWrittenThrough) {
  test::fs::create_symlink(folder_.path() / "outside", target_ / "a");
  test::write_file(archive_, tar_bytes({{"a", {1}}}));
  EXPECT_THAT(test::failure_of([&] { unpack_archive(archive_, target_); }),
              HasSubstr((target_ / "a").string()));
  EXPECT_EQ(test::read_file(folder_.path() / "outside"), Bytes{'o'});
}

TEST_F(Archive, ANameComesOnce) {
  test::write_file(archive_, tar_bytes({{"a", {1}}, {"a", {2}}}));
  EXPECT_THAT(test::failure_of([&] { unpack_archive(archive_, target_); }),
              HasSubstr((target_ / "a").string()));
  EXPECT_EQ(test::read_file(target_ / "a"), Bytes{1});
}

TEST_F(Archive, LimitsHold) {
  EXPECT_THAT(refusal({{"a", Bytes(600)}, {"b", Bytes(600)}}, {.max_bytes = 1000}),
              HasSubstr("more than 1000 bytes"));
  EXPECT_THAT(refusal({{"a", {}}, {"b", {}}, {"c", {}}}, {.max_entries = 2}),
              HasSubstr("more than 2 entries"));
}

TEST_F(Archive, DamageIsFound) {
  Bytes bytes = tar_bytes({{"a", Bytes(5000, 7)}});
  Bytes cut(bytes.begin(), bytes.begin() + 2000);
  EXPECT_THAT(test::failure_of([&] { unpack(cut); }),
              AllOf(HasSubstr(archive_.string()), HasSubstr("'a'")));
  test::fs::remove_all(target_);
  test::fs::create_directories(target_);
  bytes[0] ^= 1;  // the header's checksum no longer fits
  EXPECT_THAT(test::failure_of([&] { unpack(bytes); }), HasSubstr(archive_.string()));
  EXPECT_THAT(test::failure_of([&] { unpack(Bytes(3000, 'x')); }), HasSubstr(archive_.string()));
  Bytes packed = test::gzip_bytes(tar_bytes({{"a", Bytes(5000, 7)}}));
  packed.resize(packed.size() / 2);
  EXPECT_THAT(test::failure_of([&] { unpack(packed); }), HasSubstr(archive_.string()));
}

TEST_F(Archive, NamesAreSaidOnOneLine) {
  const std::string message = refusal({{"a\nb\x1b[2J", {1}}});
  EXPECT_THAT(message, AllOf(HasSubstr("entry 'a\\nb\\x1b[2J'"), HasSubstr("control characters")));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_THAT(refusal({{"../" + std::string(130, 'x'), {1}}}), HasSubstr("...' leads out"));
}

}  // namespace
}  // namespace moesaic
