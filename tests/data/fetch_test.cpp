// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/source.h"

#include "data/data_fixture.h"
#include "data/files.h"
#include "data/http_server.h"
#include "moesaic/base/file.h"
#include "moesaic/data/dataset.h"
#include "support/faults.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::gzip_bytes;
using test::HttpServer;
using test::read_file;
using test::said_by;
using test::usage_of;
using ::testing::SizeIs;

const FetchOptions kQuiet{.show_progress = false, .pause = {}};

class Fetch : public ::testing::Test {
 protected:
  Fetch() : proxy_("no_proxy", "127.0.0.1") {
    home_.write_files(mirror_.path(), true);
    use({mirror_url()});
  }

  std::string mirror_url() const { return "file://" + mirror_.path().string() + "/"; }
  void use(std::vector<std::string> urls) {
    home_.urls = std::move(urls);
    home_.describe();
  }
  Bytes packed(const std::string& name) const { return gzip_bytes(home_.files.at(name)); }
  std::map<std::string, Bytes> served() const {
    std::map<std::string, Bytes> files;
    for (const auto& [name, bytes] : home_.files) files[name + ".gz"] = gzip_bytes(bytes);
    return files;
  }
  test::fs::path place(const std::string& name) const { return home_.cache() / (name + ".gz"); }
  test::fs::path part(const std::string& name) const {
    return home_.cache() / ("." + name + ".gz.moesaic.part");
  }

  std::string fetch_error() {
    return failure_of([] { DatasetSource("tiny").fetch(kQuiet); });
  }
  void expect_all_in_place() {
    for (const FileVerification& file : DatasetSource("tiny").verify()) {
      EXPECT_TRUE(file.ok()) << file.problem;
      EXPECT_EQ(file.path, place(file.name));
      EXPECT_FALSE(test::fs::exists(part(file.name)));
    }
  }

  test::ScopedEnv proxy_;
  test::TinyHome home_;
  test::TempDir mirror_;
};

TEST_F(Fetch, PutsVerifiedFilesInPlace) {
  FetchResult result;
  said_by([&] { result = DatasetSource("tiny").fetch(); });
  EXPECT_EQ(result.folder, home_.cache());
  EXPECT_THAT(result.fetched,
              ElementsAre("test-images", "test-labels", "train-images", "train-labels"));
  expect_all_in_place();
  EXPECT_EQ(open_dataset("tiny", "train")->size(), 12);
}

TEST_F(Fetch, DoesNothingWhereAVerifiedCopyIs) {
  const test::fs::path elsewhere = test::fs::path(home_.root()) / "elsewhere";
  home_.write_files(elsewhere);
  const FetchResult result = DatasetSource("tiny").fetch(kQuiet);
  EXPECT_EQ(result.folder, elsewhere);
  EXPECT_THAT(result.fetched, IsEmpty());
  EXPECT_FALSE(test::fs::exists(home_.cache()));
}

TEST_F(Fetch, ADamagedCopyIsReplacedFileByFile) {
  home_.write_files(home_.cache());
  write_file(home_.cache() / "test-labels", std::string("damaged"));
  EXPECT_THAT(DatasetSource("tiny").fetch(kQuiet).fetched, ElementsAre("test-labels"));
  EXPECT_EQ(read_file(place("test-labels")), packed("test-labels"));
  EXPECT_EQ(open_dataset("tiny", "test")->label(0), 3);
  EXPECT_THAT(DatasetSource("tiny").fetch(kQuiet).fetched, IsEmpty());
}

TEST_F(Fetch, AFileThatIsNotTheDescribedOneIsSetAside) {
  write_file(place("test-labels"), std::string("precious"));
  EXPECT_THAT(
      said_by([&] { EXPECT_THAT(DatasetSource("tiny").fetch(kQuiet).fetched, SizeIs(4)); }),
      HasSubstr(place("test-labels").string() +
                ": the content differs from the description and is kept as test-labels.gz.old"));
  EXPECT_EQ(test::get(home_.cache() / "test-labels.gz.old"), "precious");
  expect_all_in_place();
}

TEST_F(Fetch, GoesToTheFolderOfTheUser) {
  const test::TempDir data;
  const test::ScopedEnv env("MOESAIC_DATA", data.path().string());
  EXPECT_EQ(DatasetSource("tiny").fetch(kQuiet).folder, data.path() / "tiny");
  EXPECT_EQ(open_dataset("tiny", "test")->size(), 5);
  EXPECT_FALSE(test::fs::exists(home_.cache()));
}

TEST_F(Fetch, ASubsetFetchesItsBase) {
  home_.write_description("few", R"({"name": "few", "base": "tiny", "keep_classes": ["hen"]})");
  EXPECT_THAT(DatasetSource("few").fetch(kQuiet).fetched, SizeIs(4));
  EXPECT_EQ(open_dataset("few", "test")->size(), 1);
}

TEST_F(Fetch, NothingWrongIsLeftInPlace) {
  const Bytes right = packed("train-images");
  Bytes truncated = right, altered = right, other = gzip_bytes(home_.files["test-images"]);
  truncated.resize(right.size() - 9);
  altered[right.size() / 2] ^= 1;
  Bytes repacked = home_.files["train-images"];
  repacked.back() ^= 1;
  for (const Bytes& wrong : {truncated, altered, other, gzip_bytes(repacked), Bytes{}}) {
    write_file(mirror_.path() / "train-images.gz", wrong);
    EXPECT_THAT(fetch_error(), AllOf(HasSubstr("'tiny'"), HasSubstr("cannot fetch train-images"),
                                     HasSubstr(mirror_url() + "train-images.gz: ")));
    EXPECT_FALSE(test::fs::exists(place("train-images")));
    EXPECT_FALSE(test::fs::exists(part("train-images")));
    EXPECT_TRUE(test::fs::exists(place("test-images"))) << "what was right stays";
  }
  write_file(mirror_.path() / "train-images.gz", right);
  EXPECT_THAT(DatasetSource("tiny").fetch(kQuiet).fetched,
              ElementsAre("train-images", "train-labels"));
  expect_all_in_place();
}

TEST_F(Fetch, AMuchLongerFileIsNotTakenIn) {
  write_file(mirror_.path() / "test-images.gz", Bytes(1 << 20));
  EXPECT_THAT(fetch_error(), HasSubstr("longer than"));
}

TEST_F(Fetch, UrlsAreTriedInOrder) {
  const test::TempDir first;
  home_.write_files(first.path(), true);
  write_file(first.path() / "test-labels.gz", std::string("damaged"));
  test::fs::remove(mirror_.path() / "test-images.gz");  // so the first one must serve it
  use({"file://" + first.path().string(), mirror_url()});
  EXPECT_THAT(DatasetSource("tiny").fetch(kQuiet).fetched, SizeIs(4));
  expect_all_in_place();
}

TEST_F(Fetch, EveryFailedUrlIsNamedWithItsReason) {
  HttpServer server({});
  use({server.url(), "file:///nowhere/at/all/", "ftp://127.0.0.1/x"});
  EXPECT_THAT(fetch_error(),
              AllOf(HasSubstr(server.url() + "test-images.gz: "), HasSubstr("404"),
                    HasSubstr("; file:///nowhere/at/all/test-images.gz: "),
                    HasSubstr("; ftp://127.0.0.1/x/test-images.gz: "), HasSubstr("ftp"),
                    HasSubstr("; or put these by hand into " + home_.cache().string() +
                              ": test-images, test-labels, train-images, train-labels")));
  EXPECT_FALSE(test::fs::exists(place("test-images")));
  EXPECT_FALSE(test::fs::exists(part("test-images")));
  use({});
  EXPECT_THAT(fetch_error(), AllOf(HasSubstr("no URL"), HasSubstr("place or link the files at " +
                                                                  home_.cache().string())));
}

TEST_F(Fetch, ResumesWhatAnEarlierTryLeft) {
  const Bytes right = packed("train-images");
  const size_t half = right.size() / 2;
  write_file(part("train-images"), std::span(right).first(half));
  Bytes only_rest(right);
  std::fill_n(only_rest.begin(), half, uint8_t{0});  // of use only to someone who has the beginning
  write_file(mirror_.path() / "train-images.gz", only_rest);
  DatasetSource("tiny").fetch(kQuiet);
  expect_all_in_place();
}

TEST_F(Fetch, AWrongBeginningIsThrownAway) {
  write_file(part("train-images"), Bytes(100, 7));
  write_file(part("train-labels"), Bytes(100000, 7));
  DatasetSource("tiny").fetch(kQuiet);
  expect_all_in_place();
}

TEST_F(Fetch, ADiskErrorThrowsNothingAway) {
  NEEDS_FAULTS();
  const auto bytes_here = [&] {
    std::map<std::string, uintmax_t> bytes;
    for (const auto& [name, file] : home_.files) {
      for (const test::fs::path& path : {place(name), part(name)}) {
        if (test::fs::exists(path)) bytes[name] = test::fs::file_size(path);
      }
    }
    return bytes;
  };
  const auto whole = [&](const std::string& name) { return packed(name).size(); };
  const auto prepare = [&] { test::fs::remove_all(home_.cache()); };
  const auto fetch = [] { DatasetSource("tiny").fetch(kQuiet); };
  const auto check = [&](const test::Outcome& outcome) {
    if (outcome.exit_code != 0) {
      EXPECT_THAT(outcome.error, HasSubstr("Input/output error"));
      for (const auto& [name, bytes] : bytes_here()) EXPECT_EQ(bytes, whole(name)) << name;
    }
    fetch();
    expect_all_in_place();
    for (const auto& entry : test::fs::directory_iterator(home_.cache())) {
      EXPECT_NE(entry.path().extension(), ".old") << entry.path();
    }
  };
  EXPECT_GT(test::for_every_call({"read", "EIO"}, home_.cache(), prepare, fetch, check), 3);
}

TEST_F(Fetch, EveryNameThatAFileMayHaveArrivesUnderAnother) {
  const std::string most(254, 'a');
  for (const size_t length : {size_t{1}, size_t{240}, size_t{241}, size_t{254}}) {
    const std::string name = partial_path("folder/" + most.substr(0, length) + "b").filename();
    EXPECT_LE(name.size(), 255U);
    EXPECT_NE(name, partial_path("folder/" + most.substr(0, length) + "c").filename());
  }
}

TEST_F(Fetch, FollowsNoLinkWhereAFileArrives) {
  const test::fs::path mine = home_.cache() / "mine";
  write_file(mine, Bytes(10, 7));
  for (const bool symbolic : {true, false}) {
    test::fs::remove(part("test-images"));
    symbolic ? test::fs::create_symlink(mine, part("test-images"))
             : test::fs::create_hard_link(mine, part("test-images"));
    EXPECT_THAT(fetch_error(), HasSubstr(symbolic ? "a link, which is not followed; remove it"
                                                  : "has 2 names (hard links)"));
    EXPECT_THAT(read_file(mine), SizeIs(10));
  }
}

TEST_F(Fetch, ResumesOverHttpAfterACut) {
  HttpServer server(served());
  use({server.url()});
  server.cut_after(50);
  EXPECT_THAT(fetch_error(), HasSubstr(server.url() + "test-images.gz: "));
  EXPECT_FALSE(test::fs::exists(place("test-images")));
  EXPECT_THAT(read_file(part("test-images")), SizeIs(50));
  server.cut_after(SIZE_MAX);
  DatasetSource("tiny").fetch(kQuiet);
  expect_all_in_place();
  EXPECT_THAT(server.requests(),
              ElementsAre("test-images.gz 0", "test-images.gz 50", "test-labels.gz 0",
                          "train-images.gz 0", "train-labels.gz 0"));
}

TEST_F(Fetch, StartsOverWhereTheServerKnowsNoRanges) {
  HttpServer server(served(), HttpServer::Ranges::ignored);
  use({server.url()});
  const Bytes right = packed("test-images");
  write_file(part("test-images"), std::span(right).first(30));
  DatasetSource("tiny").fetch(kQuiet);
  expect_all_in_place();
}

TEST_F(Fetch, ACompletePartIsTakenOver) {
  HttpServer server(served());
  use({server.url()});
  write_file(part("test-images"), packed("test-images"));
  DatasetSource("tiny").fetch(kQuiet);
  expect_all_in_place();
  EXPECT_THAT(server.requests(), Not(::testing::Contains("test-images.gz 0")));
}

TEST_F(Fetch, OneAtATime) {
  test::fs::create_directories(home_.cache());
  const LockFile lock(home_.cache());
  EXPECT_THAT(fetch_error(), HasSubstr(std::to_string(getpid())));
}

TEST_F(Fetch, AFolderThatIsALinkToNothingIsNamed) {
  const test::TempDir data;
  test::fs::create_directory_symlink("gone", data / "tiny");
  const test::ScopedEnv env("MOESAIC_DATA", data.path().string());
  EXPECT_THAT(usage_of([] { DatasetSource("tiny").fetch(kQuiet); }),
              HasSubstr((data / "tiny").string() + "' is a broken link to 'gone'"));
}

TEST_F(Fetch, AFolderThatCannotBeMadeIsNamed) {
  const test::TempDir data;
  write_file(data.path() / "tiny", std::string("in the way"));
  const test::ScopedEnv env("MOESAIC_DATA", data.path().string());
  EXPECT_THAT(usage_of([] { DatasetSource("tiny").fetch(kQuiet); }),
              AllOf(HasSubstr((data.path() / "tiny").string()), HasSubstr("MOESAIC_DATA")));
}

TEST_F(Fetch, ADerivedDatasetFetchesItsBaseAndSaysSo) {
  home_.write_description("few", R"({"name": "few", "base": "tiny", "keep_classes": ["hen"]})");
  EXPECT_EQ(DatasetSource("few").spec_to_fetch().name, "tiny");
  EXPECT_THAT(said_by([&] { EXPECT_THAT(DatasetSource("few").fetch(kQuiet).fetched, SizeIs(4)); }),
              HasSubstr("dataset 'few' is made from the files of 'tiny'"));
}

TEST_F(Fetch, NothingIsFetchedForWhatIsGenerated) {
  home_.write_description("drawn", R"({"name": "drawn", "format": "clusters", "clusters":
      {"alpha": [0.5, 2], "beta": [1, 2], "gamma": [0.5, 3], "noise": 1}})");
  EXPECT_TRUE(DatasetSource("drawn").fetch(kQuiet).folder.empty());
}

TEST_F(Fetch, UnknownNamesAreWrongUse) {
  EXPECT_THAT(usage_of([] { DatasetSource("tinyy").fetch(kQuiet); }),
              HasSubstr("did you mean 'tiny'?"));
}

}  // namespace
}  // namespace moesaic
