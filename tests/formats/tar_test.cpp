// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/archive.h"

#include "base/support.h"
#include "data/tar_bytes.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::tar_bytes;
using test::TarEntry;
using ::testing::SizeIs;

using TarBytes = std::vector<uint8_t>;

class Tar : public ::testing::Test {
 protected:
  void write(const TarBytes& bytes) const {
    test::put(path_, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  TarIndex index(const std::vector<TarEntry>& entries) const {
    write(tar_bytes(entries));
    return index_tar(path_);
  }
  /// The bytes that an index says a member has.
  std::string content(const TarMember& member) const {
    return test::get(path_).substr(static_cast<size_t>(member.offset),
                                   static_cast<size_t>(member.size));
  }
  static std::vector<std::string> names(const TarIndex& index) {
    std::vector<std::string> all;
    for (const TarMember& member : index.members) all.push_back(member.name);
    return all;
  }
  static std::vector<std::string> texts(const TarIndex& index) {
    std::vector<std::string> all;
    for (const TarProblem& problem : index.problems) all.push_back(problem.text);
    return all;
  }

  test::TempDir folder_;
  std::filesystem::path path_ = folder_ / "a.tar";
};

TarBytes tar_content(const std::string& text) {
  return {text.begin(), text.end()};
}

TEST_F(Tar, MembersLieWhereTheIndexSays) {
  const TarIndex found = index({{"a/", {}},
                                {"a/1.jpg", tar_content("one")},
                                {"./a/1.cls", tar_content("7")},
                                {"empty", {}},
                                {"a/2.jpg", TarBytes(70000, 'x')},
                                {"end", tar_content("last")}});
  EXPECT_THAT(found.problems, IsEmpty());
  EXPECT_THAT(names(found), ElementsAre("a/1.jpg", "a/1.cls", "empty", "a/2.jpg", "end"));
  EXPECT_EQ(content(found.members[0]), "one");
  EXPECT_EQ(content(found.members[1]), "7");
  EXPECT_EQ(content(found.members[2]), "");
  EXPECT_EQ(content(found.members[3]), std::string(70000, 'x'));
  EXPECT_EQ(content(found.members[4]), "last");
}

TEST_F(Tar, WhatIsWrittenIsFoundWithLongNamesToo) {
  const std::string longest = std::string(90, 'd') + "/" + std::string(200, 'n') + ".jpg";
  const auto write_one = [&] {
    TarWriter tar(path_);
    for (const std::string& name : {std::string("1.jpg"), longest, std::string("grün.cls")}) {
      tar.add(name, std::as_bytes(std::span(name)));
    }
    tar.close();
  };
  write_one();
  const TarIndex found = index_tar(path_);
  EXPECT_THAT(found.problems, IsEmpty());
  ASSERT_THAT(names(found), ElementsAre("1.jpg", longest, "grün.cls"));
  for (const TarMember& member : found.members) EXPECT_EQ(content(member), member.name);
  EXPECT_THAT(test::failure_of(write_one), HasSubstr("a.tar"));  // It is there already.
  const std::string first = test::get(path_);
  std::filesystem::remove(path_);
  write_one();
  EXPECT_EQ(test::get(path_), first) << "no times in it";
}

TEST_F(Tar, AFullDiskIsSaid) {
  const test::FileSizeLimit limit(100'000);
  TarWriter tar(path_);
  const std::string big(200'000, 'x');
  EXPECT_THAT(test::failure_of([&] {
                tar.add("1.jpg", std::as_bytes(std::span(big)));
                tar.close();
              }),
              HasSubstr("a.tar: cannot be written: "));
}

TEST_F(Tar, WhatIsNoSafeFileIsLeftOut) {
  const TarIndex found = index({{"1.jpg", tar_content("one")},
                                {"link.jpg", {}, '2', "1.jpg"},
                                {"hard.jpg", {}, '1', "1.jpg"},
                                {"device", {}, '3'},
                                {"/abs.jpg", tar_content("x")},
                                {"../up.jpg", tar_content("x")},
                                {"a\nb.jpg", tar_content("x")},
                                {"./1.jpg", tar_content("again")},
                                {"2.jpg", tar_content("two")}});
  EXPECT_THAT(names(found), ElementsAre("1.jpg", "2.jpg"));
  EXPECT_EQ(content(found.members[0]), "one");
  EXPECT_EQ(content(found.members[1]), "two");
  EXPECT_THAT(texts(found), ElementsAre("entry 'link.jpg' is a link", "entry 'hard.jpg' is a link",
                                        "entry 'device' is neither a file nor a folder",
                                        "entry '/abs.jpg' has an absolute path",
                                        "entry '../up.jpg' leads out of the folder",
                                        "entry 'a\\nb.jpg' has control characters in its name",
                                        "entry './1.jpg' is there twice"));
}

TEST_F(Tar, DamageEndsTheList) {
  const TarBytes whole =
      tar_bytes({{"1.jpg", TarBytes(1000, '1')}, {"2.jpg", TarBytes(1000, '2')}});
  TarBytes cut = whole;
  cut.resize(512 + 1024 + 512 + 300);  // Within the second file.
  write(cut);
  TarIndex found = index_tar(path_);
  EXPECT_THAT(names(found), ElementsAre("1.jpg"));
  EXPECT_THAT(texts(found), ElementsAre("ends within entry '2.jpg', of 1000 bytes"));
  EXPECT_EQ(found.problems[0].member, "2.jpg");

  cut.resize(512 + 1024 + 100);  // Within its header.
  write(cut);
  found = index_tar(path_);
  EXPECT_THAT(names(found), ElementsAre("1.jpg"));
  EXPECT_THAT(found.problems, SizeIs(1));

  cut = whole;
  cut[512 + 1024 + 10] ^= 0x55;  // The second header's sum is wrong.
  write(cut);
  found = index_tar(path_);
  EXPECT_THAT(names(found), ElementsAre("1.jpg"));
  EXPECT_THAT(texts(found), ElementsAre(HasSubstr("corrupt after 1 file: ")));
}

/// Writes the sum that a header's other bytes give.
void set_sum(TarBytes& bytes) {
  std::fill_n(bytes.begin() + 148, 8, static_cast<uint8_t>(' '));
  unsigned sum = 0;
  for (size_t i = 0; i < 512; ++i) sum += bytes[i];
  std::snprintf(reinterpret_cast<char*>(bytes.data()) + 148, 8, "%06o", sum);
}

TEST_F(Tar, SizesAreNotTrusted) {
  for (const int high : {0x80, 0x80 + 0x7f, 0xff}) {  // In base 256: huge, huger, negative.
    TarBytes bytes = tar_bytes({{"1.jpg", tar_content("one")}});
    bytes[124] = static_cast<uint8_t>(high);
    std::fill_n(bytes.begin() + 125, 11, uint8_t{0xfe});
    set_sum(bytes);
    write(bytes);
    const TarIndex found = index_tar(path_);
    EXPECT_THAT(found.members, IsEmpty());
    EXPECT_THAT(found.problems, SizeIs(1)) << high;
  }
  TarBytes octal = tar_bytes({{"1.jpg", tar_content("one")}});
  std::snprintf(reinterpret_cast<char*>(octal.data()) + 124, 12, "%011o", 070000000);
  set_sum(octal);
  write(octal);
  EXPECT_THAT(texts(index_tar(path_)), ElementsAre(HasSubstr("ends within entry '1.jpg'")));
}

TEST_F(Tar, OtherFilesAreNamed) {
  write({});
  EXPECT_THAT(index_tar(path_).members, IsEmpty());
  write(TarBytes(5000, 'x'));
  EXPECT_THAT(texts(index_tar(path_)), SizeIs(1));
  for (const std::string head : {"\x1f\x8b\x08", "BZh91AY&SY", "\xfd\x37zXZ", "\x28\xb5\x2f\xfd"}) {
    write(tar_content(head + std::string(600, '\0')));
    EXPECT_THAT(test::failure_of([&] { index_tar(path_); }), HasSubstr("a.tar: compressed by "));
  }
  write(tar_bytes({{"BZh9.jpg", tar_content("one")}}));
  EXPECT_THAT(index_tar(path_).members, SizeIs(1));
  EXPECT_THAT(test::failure_of([&] { index_tar(folder_ / "none.tar"); }), HasSubstr("none.tar"));
}

}  // namespace
}  // namespace moesaic
