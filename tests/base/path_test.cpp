// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/path.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/support.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

TEST(PathExists, TellsMissingFromUnknown) {
  const test::TempDir folder;
  test::put(folder / "file", "");
  EXPECT_TRUE(path_exists(folder / "file"));
  EXPECT_FALSE(path_exists(folder / "other"));
  EXPECT_FALSE(path_exists(folder / "file" / "below"));
  EXPECT_THAT(test::failure_of([&] { path_exists(folder / std::string(300, 'x')); }),
              HasSubstr("File name too long"));
  fs::create_symlink("loop", folder / "loop");
  EXPECT_THAT(test::failure_of([&] { path_exists(folder / "loop"); }), HasSubstr("symbolic links"));
}

std::string input_refusal(const fs::path& path) {
  return test::usage_of([&] { check_input_file(path); });
}

std::string file_refusal(const fs::path& path, const char* option = "--out") {
  return test::usage_of([&] { check_new_file(path, option); });
}

std::string folder_refusal(const fs::path& path) {
  return test::usage_of([&] { check_new_folder(path, "--out"); });
}

TEST(CheckInputFile, SuggestsWhatIsThere) {
  const test::TempDir folder;
  test::put(folder / "smoke.json", "{}");
  check_input_file(folder / "smoke.json");
  EXPECT_THAT(input_refusal(folder / "smok.json"),
              HasSubstr("no such file; did you mean '" + (folder / "smoke.json").string() + "'?"));
  EXPECT_THAT(input_refusal(folder.path()),
              HasSubstr("a folder, not a file; choose one of smoke.json"));
  input_refusal("");
  EXPECT_EQ(input_refusal("/dev/null"), "/dev/null: not a regular file");
  fs::create_symlink("nowhere", folder / "link");
  EXPECT_THAT(input_refusal(folder / "link"), HasSubstr("no such file; it is a broken link"));
}

TEST(NearestSibling, IsOneThatTheCallerTakes) {
  const test::TempDir folder;
  test::put(folder / "smoke", "");
  test::put(folder / "smooke.json", "{}");
  const auto near = [&](bool (*takes)(const fs::path&)) {
    return nearest_sibling(folder / "smke", PathForm::name, takes);
  };
  EXPECT_EQ(near(nullptr), "; did you mean 'smoke'?");
  EXPECT_EQ(near([](const fs::path& path) { return path.extension() == ".json"; }), "");
  EXPECT_EQ(nearest_sibling(folder / "smke.json", PathForm::name,
                            [](const fs::path& path) { return path.extension() == ".json"; }),
            "; did you mean 'smooke.json'?");
}

TEST(NearestSibling, NamesTheFirstPartThatIsMissing) {
  const test::TempDir folder;
  test::put(folder / "smoke", "");
  const std::string at = folder.path().string();
  const auto found = [&](const std::string& path) { return nearest_sibling(at + path); };
  EXPECT_EQ(found("/other/x/y"), "; nothing is at '" + at + "/other'");
  EXPECT_EQ(found("/smoek/x"),
            "; nothing is at '" + at + "/smoek'; did you mean '" + at + "/smoke'?");
  EXPECT_EQ(found("/smoek/"), "; did you mean '" + at + "/smoke'?");
  EXPECT_EQ(found("/smoke/x/y"), "; '" + at + "/smoke' is not a folder");
  fs::create_symlink("nowhere", folder / "link");
  EXPECT_EQ(found("/link/x/y"), "; it is a broken link");

  // Files of strangers name such paths; looking at each of the outer folders would take gigabytes.
  std::string deep = "/other";
  for (int i = 0; i < 100'000; ++i) deep += "/x";
  EXPECT_EQ(found(deep), "; nothing is at '" + at + "/other'");
  std::string same = "/.";
  for (int i = 0; i < 100'000; ++i) same += "/.";
  EXPECT_THAT(found(same), StartsWith("; nothing is at '" + at + "/./."));
}

TEST(CheckNewFile, RefusesWhatIsThereOfWhateverKind) {
  const test::TempDir folder;
  check_new_file(folder / "new", "--out");
  test::put(folder / "file", "mine");
  fs::create_directory(folder / "folder");
  fs::create_symlink("nowhere", folder / "link");
  fs::create_symlink("file", folder / "alias");
  for (const char* name : {"file", "folder", "alias"}) {
    EXPECT_THAT(file_refusal(folder / name), HasSubstr("already exists")) << name;
  }
  EXPECT_THAT(file_refusal(folder / "link"),
              HasSubstr("is a broken link to 'nowhere'; name a new file"));
  EXPECT_THAT(file_refusal(""), HasSubstr("--out: must not"));
  EXPECT_THAT(file_refusal(folder / "foldre/x"),
              HasSubstr("no such folder; did you mean '" + (folder / "folder").string() + "'?"));
}

TEST(CheckNewFile, AndFolderNeedAFolderThatCanBeWritten) {
  const test::TempDir folder;
  fs::create_directory(folder / "kept");
  fs::permissions(folder / "kept", static_cast<fs::perms>(0555));
  fs::permissions(folder.path(), static_cast<fs::perms>(0755));
  constexpr uid_t kNobody = 65534;
  const uid_t user = ::geteuid();
  if (user == 0) ASSERT_EQ(::seteuid(kNobody), 0);
  const auto of_file = test::failure_of([&] { check_new_file(folder / "kept/new", "--out"); });
  const auto of_folder = test::failure_of([&] { check_new_folder(folder / "kept/a/b", "--out"); });
  ASSERT_EQ(::seteuid(user), 0);
  for (const std::string& error : {of_file, of_folder}) {
    EXPECT_EQ(error,
              fmt::format("--out: nothing can be written in the folder '{}': Permission denied",
                          (folder / "kept").string()));
  }
}

TEST(CheckNewFolder, TakesANewOrAnEmptyOne) {
  const test::TempDir folder;
  fs::create_directories(folder / "empty");
  fs::create_directories(folder / "full/inside");
  fs::create_symlink("empty", folder / "link");
  test::put(folder / "file", "mine");
  for (const char* name : {"new", "new/below", "empty", "empty/"}) {
    check_new_folder(folder / name, "--out");
  }
  for (const char* name : {"full", "file", "link", "empty/."}) {
    EXPECT_THAT(folder_refusal(folder / name), HasSubstr("already exists")) << name;
  }
  fs::create_symlink("nowhere", folder / "dangling");
  EXPECT_THAT(folder_refusal(folder / "dangling"),
              HasSubstr("is a broken link to 'nowhere'; name a new or an empty folder"));
  folder_refusal("");
}

TEST(Paths, ALinkToNothingIsNamed) {
  const test::TempDir folder;
  fs::create_directory_symlink("gone/runs", folder / "runs");
  const std::string told = "--out: '" + (folder / "runs").string() +
                           "' is a broken link to 'gone/runs'; make that folder or remove the link";
  for (const char* name : {"runs", "runs/", "runs/a/b"}) {
    EXPECT_EQ(test::usage_of([&] { check_folder_path(folder / name, "--out"); }), told) << name;
  }
  EXPECT_EQ(folder_refusal(folder / "runs/a"), told);
  fs::create_directories(folder / "gone/runs");
  EXPECT_NO_THROW(check_folder_path(folder / "runs/a/b", "--out"));
}

TEST(Paths, APartThatIsNoFolderIsNamed) {
  const test::TempDir folder;
  test::put(folder / "file", "x");
  const std::string file = (folder / "file").string();
  EXPECT_EQ(file_refusal(file + "/a.png", "--tsne"), "--tsne: '" + file + "' is not a folder");
  EXPECT_EQ(folder_refusal(file + "/a/b"), "--out: '" + file + "' is not a folder");
  EXPECT_EQ(input_refusal(file + "/a"), file + "/a: no such file; '" + file + "' is not a folder");
  const std::string none = (folder / "fil").string();
  EXPECT_EQ(input_refusal(none + "/a"),
            none + "/a: no such file; nothing is at '" + none + "'; did you mean '" + file + "'?");
  EXPECT_EQ(file_refusal(none + "/a/b.png", "--tsne"),
            "--tsne: '" + none + "/a': no such folder; nothing is at '" + none +
                "'; did you mean '" + file + "'?");
}

TEST(Paths, WhatOnlyAShellOrABrowserFollowsIsRefused) {
  for (const auto& check : {check_new_file, check_new_folder, check_folder_path}) {
    EXPECT_EQ(test::usage_of([&] { check("~/runs/a", "--out"); }),
              "--out: '~/runs/a': '~' is not read as the home folder; write the whole path");
  }
  EXPECT_EQ(input_refusal("~/a.png"),
            "~/a.png: no such file; '~' is not read as the home folder; write the whole path");
  for (const std::string address : {"file:///tmp/a", "https://a.b/c"}) {
    EXPECT_EQ(input_refusal(address), address + ": no such file; a path is needed, not an address");
    EXPECT_EQ(folder_refusal(address),
              "--out: '" + address + "': a path is needed, not an address");
  }
  const test::TempDir folder;
  EXPECT_NO_THROW(check_new_folder(folder / "~", "--out"));
  EXPECT_NO_THROW(check_new_folder("~", "--out"));  // This is a name like another.
}

TEST(FileNames, HaveNoFoldersNoCommandsAndAnEnd) {
  for (const std::string& good :
       {std::string("a"), std::string("train images (1).tar.gz"),
        std::string("train images-{0..9}.tar"), std::string("a{0..9}.tar"), std::string("größe"),
        std::string("\xC3\xA4.bin"), std::string(255, 'x')}) {
    EXPECT_TRUE(is_file_name(good)) << good;
  }
  for (const std::string& bad :
       {std::string(), std::string("a/b"), std::string("."), std::string(".."), std::string(".a"),
        std::string(256, 'x'), std::string("a\x1b[2J"), std::string("a\0b", 3),
        std::string("a\n")}) {
    EXPECT_FALSE(is_file_name(bad)) << bad;
    EXPECT_FALSE(is_portable_name(bad)) << bad;
  }
  EXPECT_TRUE(is_portable_name("step_1-a.b"));
  EXPECT_FALSE(is_portable_name("a b"));
  for (const std::string& odd :
       {std::string(), std::string("a b\x1b"), std::string(".x"), std::string(300, '/')}) {
    EXPECT_TRUE(is_portable_name(portable_name(odd))) << odd;
  }
  EXPECT_EQ(portable_name("step_1-a.b"), "step_1-a.b");
  EXPECT_EQ(portable_name("my photos-shards"), "my-photos-shards");
  EXPECT_EQ(file_name_problem("name", std::string(300'000, 'x')),
            "name must be a file name without folders, of at most 255 bytes, not '" +
                std::string(80, 'x') + "...'");
}

}  // namespace
}  // namespace moesaic
