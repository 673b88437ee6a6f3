// SPDX-License-Identifier: Apache-2.0
// CIFAR as a dataset: found, fetched, unpacked, verified.

#include <algorithm>

#include "data/data_fixture.h"
#include "data/tar_bytes.h"
#include "moesaic/base/hash.h"
#include "moesaic/data/source.h"
#include "support/faults.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::said_by;
using test::TarEntry;
using test::usage_of;

const FetchOptions kNoProgress{.show_progress = false};

/// A dataset "mini" in the manner of CIFAR: 2 + 1 images to train, 1 to test.
class MiniCifar : public ::testing::Test {
 protected:
  MiniCifar() : home_("MOESAIC_HOME", root().string()), data_("MOESAIC_DATA", std::nullopt) {
    files_ = {{"one.bin", records({1, 0}, 5)},
              {"two.bin", records({1}, 6)},
              {"test.bin", records({0}, 7)}};
    serve(entries());
  }

  static Bytes records(const Bytes& labels, uint8_t pixel) {
    Bytes bytes;
    for (const uint8_t label : labels) {
      bytes.push_back(label);
      bytes.insert(bytes.end(), 3072, static_cast<uint8_t>(pixel + 10 * label));
    }
    return bytes;
  }
  std::vector<TarEntry> entries() const {
    std::vector<TarEntry> list = {{"mini-bin/"}, {"mini-bin/readme.html", {'x'}}};
    for (const auto& [name, bytes] : files_) list.push_back({"mini-bin/" + name, bytes});
    return list;
  }
  /// Puts an archive on the server and its MD5, or another one, into the description.
  void serve(const std::vector<TarEntry>& list, const std::string& md5 = "") {
    const test::fs::path archive = root() / "server" / "mini.tar.gz";
    write_file(archive, test::gzip_bytes(test::tar_bytes(list)));
    write_file(root() / "datasets" / "mini.json",
               R"({"name": "mini", "description": "d", "format": "cifar", "classes": ["a", "b"],
                   "mean": [0, 0, 0], "std": [1, 1, 1], "files": {
                     "train_1": {"name": "one.bin", "size": 6146},
                     "train_2": {"name": "two.bin", "size": 3073},
                     "test_1": {"name": "test.bin", "size": 3073}},
                   "archive": {"name": "mini.tar.gz", "folder": "mini-bin", "max_size": 20000,
                               "md5": ")" +
                   (md5.empty() ? md5_file_hex(archive) : md5) + R"("}, "urls": ["file://)" +
                   (root() / "server").string() + "\"]}");
  }
  test::fs::path root() const { return folder_.path(); }
  test::fs::path place() const { return root() / "datasets" / "cache" / "mini" / "mini-bin"; }
  void put(const test::fs::path& folder) const {
    for (const auto& [name, bytes] : files_) write_file(folder / name, bytes);
  }
  std::string fetch_error() const {
    return failure_of([] { DatasetSource("mini").fetch(kNoProgress); });
  }

  test::TempDir folder_;
  test::ScopedEnv home_, data_;
  std::map<std::string, Bytes> files_;
};

TEST_F(MiniCifar, IsFetchedUnpackedAndVerified) {
  const FetchResult result = DatasetSource("mini").fetch(kNoProgress);
  EXPECT_EQ(result.folder, place());
  EXPECT_EQ(result.fetched.size(), 3u);
  for (const FileVerification& file : DatasetSource("mini").verify()) {
    EXPECT_TRUE(file.ok());
    EXPECT_EQ(file.unverified, "");
  }
  testing::internal::CaptureStderr();
  const auto train = open_dataset("mini", "train");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(test::labels_of(*train), ElementsAre(1, 0, 1));
  EXPECT_EQ(test::image_of(*train, 2), Bytes(3072, 16));
  EXPECT_THAT(test::labels_of(*open_dataset("mini", "test")), ElementsAre(0));
  EXPECT_TRUE(DatasetSource("mini").fetch(kNoProgress).fetched.empty());
  // Nothing but the files and the list of their hashes stays.
  int names = 0;
  for (const auto& entry : test::fs::recursive_directory_iterator(place().parent_path())) {
    if (entry.is_regular_file() && entry.path().filename() != ".lock") ++names;
  }
  EXPECT_EQ(names, 4);
  Bytes altered = files_["two.bin"];
  altered.back() ^= 1;
  write_file(place() / "two.bin", altered);
  EXPECT_THAT(failure_of([] { open_dataset("mini", "train"); }),
              AllOf(HasSubstr("two.bin"), HasSubstr("SHA-256")));
  EXPECT_EQ(DatasetSource("mini").fetch(kNoProgress).fetched.size(), 3u);
  EXPECT_EQ(test::read_file(place() / "two.bin"), files_["two.bin"]);
}

TEST_F(MiniCifar, WhatItDidNotMakeIsSetAside) {
  put(place());
  write_file(place() / "two.bin", std::string("damaged"));
  write_file(place() / "holiday.jpg", std::string("precious"));
  write_file(place().parent_path() / ".film.part", std::string("precious"));
  EXPECT_THAT(
      said_by([&] { EXPECT_EQ(DatasetSource("mini").fetch(kNoProgress).fetched.size(), 3u); }),
      HasSubstr(place().string() +
                ": the content differs from the description and is kept as mini-bin.old"));
  EXPECT_EQ(test::read_file(place() / "two.bin"), files_["two.bin"]);
  EXPECT_EQ(test::get(place().parent_path() / "mini-bin.old/holiday.jpg"), "precious");
  EXPECT_EQ(test::get(place().parent_path() / ".film.part"), "precious");
}

TEST_F(MiniCifar, AFetchThatMeetsFaultsLosesNothing) {
  NEEDS_FAULTS();
  const test::fs::path cache = place().parent_path().parent_path();
  const auto prepare = [&] {
    test::fs::remove_all(cache);
    write_file(place() / "holiday.jpg", std::string("precious"));
  };
  const auto fetch = [] { DatasetSource("mini").fetch(kNoProgress); };
  const auto check = [&](const test::Outcome&) {
    int kept = 0;
    for (const auto& entry : test::fs::recursive_directory_iterator(cache)) {
      if (entry.path().filename() == "holiday.jpg") kept += test::get(entry.path()) == "precious";
    }
    EXPECT_EQ(kept, 1);
    fetch();
    test::expect_verified("mini");
  };
  for (const char* effect : {"kill", "power"}) {
    EXPECT_GT(test::for_every_call({"change", effect}, cache, prepare, fetch, check), 20);
  }
  for (const char* call : {"open", "read", "write", "fsync", "rename", "other"}) {
    for (const char* effect : {"EIO", "ENOSPC", "short"}) {
      test::for_every_call({call, effect}, cache, prepare, fetch, check);
    }
  }
}

TEST_F(MiniCifar, NoDescriptionLeadsOutOfTheDataFolder) {
  write_file(root() / "datasets/mini-bin/holiday.jpg", std::string("precious"));
  const std::string text = test::get(root() / "datasets/mini.json");
  const auto complaint = [&](const std::string& file, const std::string& from,
                             const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    write_file(root() / "other" / file, changed);
    return usage_of([&] { DatasetSource((root() / "other" / file).string()).fetch(kNoProgress); });
  };
  const std::string name = "\"name\": \"mini\"", folder = "\"folder\": \"mini-bin\"";
  EXPECT_THAT(complaint("...json", name, R"("name": "..")"), HasSubstr("not '..'"));
  EXPECT_THAT(complaint("mini.json", name, name + R"(, "folder": "..")"), HasSubstr("not '..'"));
  for (const char* bad : {"..", "a/b", "/tmp", "", ".x"}) {
    EXPECT_THAT(complaint("mini.json", folder, "\"folder\": \"" + std::string(bad) + "\""),
                HasSubstr("'" + std::string(bad) + "'"));
    EXPECT_THAT(complaint("mini.json", "one.bin", bad), HasSubstr("'" + std::string(bad) + "'"));
    EXPECT_THAT(complaint("mini.json", "mini.tar.gz", bad),
                HasSubstr("'" + std::string(bad) + "'"));
  }
  EXPECT_EQ(test::get(root() / "datasets/mini-bin/holiday.jpg"), "precious");
}

TEST_F(MiniCifar, WithoutTheArchiveTheFilesAndTheirPlaceAreNamed) {
  test::fs::remove_all(root() / "server");
  EXPECT_THAT(fetch_error(), AllOf(HasSubstr("cannot fetch mini.tar.gz"),
                                   HasSubstr("or put these by hand into " + place().string() +
                                             ": test.bin, one.bin, two.bin")));
}

TEST_F(MiniCifar, NothingWrongIsUnpacked) {
  serve(entries(), std::string(32, '0'));
  EXPECT_THAT(fetch_error(), AllOf(HasSubstr("mini.tar.gz"), HasSubstr("MD5 is")));
  std::vector<TarEntry> list = entries();
  list.push_back({"../escaped", {1}});
  serve(list);
  EXPECT_THAT(fetch_error(), HasSubstr("leads out of the folder"));
  list = entries();
  list.pop_back();
  serve(list);
  EXPECT_THAT(fetch_error(), HasSubstr("the archive has no mini-bin/two.bin"));
  list.push_back({"mini-bin/two.bin", Bytes(3000)});
  serve(list);
  EXPECT_THAT(fetch_error(), HasSubstr("3000 bytes unpacked, expected 3073"));
  list = entries();
  list.push_back({"mini-bin/bomb", Bytes(9000)});
  serve(list);
  EXPECT_THAT(fetch_error(), HasSubstr("20000 bytes"));
  EXPECT_FALSE(test::fs::exists(place()));
  EXPECT_FALSE(test::fs::exists(root() / "datasets" / "cache" / "escaped"));
  serve(entries());
  EXPECT_EQ(DatasetSource("mini").fetch(kNoProgress).fetched.size(), 3u);
}

TEST_F(MiniCifar, AUsersOwnBatchesAreUsedAndNotCalledOfficial) {
  put(root() / "datasets" / "cache" / "mini");
  EXPECT_EQ(said_by([&] { EXPECT_EQ(open_dataset("mini", "train")->size(), 3); }),
            "");  // not at every run
  for (const FileVerification& file : DatasetSource("mini").verify()) {
    EXPECT_TRUE(file.ok()) << file.problem;
    EXPECT_THAT(file.unverified, HasSubstr("size and labels are right"));
  }
  files_["two.bin"][0] = 2;
  put(root() / "datasets" / "cache" / "mini");
  const std::vector<FileVerification> files = DatasetSource("mini").verify();
  EXPECT_EQ(std::count_if(files.begin(), files.end(), [](const auto& file) { return file.ok(); }),
            2);
}

TEST_F(MiniCifar, IsFoundInEverySearchFolder) {
  const test::TempDir data;
  const test::ScopedEnv env("MOESAIC_DATA", data.path().string());
  const DatasetSpec spec = load_dataset_spec("mini");
  EXPECT_EQ(spec.fetch_folder(), data.path() / "mini" / "mini-bin");
  for (const test::fs::path& folder :
       {place(), data.path() / "mini-bin", data.path() / "mini", data.path() / "mini/mini-bin"}) {
    put(folder);
    EXPECT_EQ(spec.find_folder(), folder);
  }
}

TEST_F(MiniCifar, WrongLabelsAndSizesAreNamed) {
  files_["two.bin"][0] = 2;
  put(place());
  const auto complaint = [] { return failure_of([] { open_dataset("mini", "train"); }); };
  EXPECT_THAT(complaint(), AllOf(HasSubstr("two.bin"), HasSubstr("label 2 of image 0")));
  files_["two.bin"].pop_back();
  put(place());
  EXPECT_THAT(complaint(), AllOf(HasSubstr("two.bin"), HasSubstr("3072 bytes")));
  write_file(place() / "SHA256SUMS", std::string("nonsense\n"));
  EXPECT_THAT(complaint(), HasSubstr("not a list of SHA-256 sums"));
}

}  // namespace
}  // namespace moesaic
