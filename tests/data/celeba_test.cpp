// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>

#include "data/data_fixture.h"
#include "data/jpeg_bytes.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::jpeg_bytes;
using test::JpegKind;
using test::usage_of;

/// Faces 1 to 6, of parts 0 0 0 1 2 2.
class CelebA : public ::testing::Test {
 protected:
  CelebA() : data_env_("MOESAIC_DATA", folder_.path().string()) {
    for (int i = 1; i <= 6; ++i) {
      write_file(root() / "img_align_celeba" / ("00000" + std::to_string(i) + ".jpg"),
                 jpeg_bytes(22, 18, JpegKind::noise, {}));
    }
    write_file(root() / "list_attr_celeba.txt",
               std::string("6\nBald Smiling Young \n000001.jpg -1  1 -1\n000002.jpg  1 -1 -1\n"
                           "000003.jpg  1  1  1\n000004.jpg  1  1  1\n000005.jpg  1 -1  1\n"
                           "000006.jpg  1  1  1\n"));
    write_file(root() / "list_eval_partition.txt",
               std::string("000001.jpg 0\n000002.jpg 0\n000003.jpg 0\n000004.jpg 1\n"
                           "000005.jpg 2\n000006.jpg 2\n"));
  }
  test::fs::path root() const { return folder_.path() / "celeba"; }
  void replace(const std::string& name, const std::string& text) {
    write_file(root() / name, text);
  }
  std::string failure() {
    return failure_of([] { open_dataset("celeba", "train"); });
  }

  test::TempDir folder_;
  test::ScopedEnv data_env_;
};

TEST_F(CelebA, BothSpellingsGiveTheSame) {
  EXPECT_THAT(test::labels_of(*open_dataset("celeba", "train")), ElementsAre(1, 0, 1));
  EXPECT_THAT(test::labels_of(*open_dataset("celeba", "validation")), ElementsAre(1));
  EXPECT_THAT(test::labels_of(*open_dataset("celeba", "test")), ElementsAre(0, 1));
  test::fs::remove(root() / "list_attr_celeba.txt");
  test::fs::remove(root() / "list_eval_partition.txt");
  replace("list_attr_celeba.csv",
          "\xEF\xBB\xBF"
          "image_id,Bald,Smiling,Young\r\n000001.jpg,-1,1,-1\r\n000005.jpg,1,-1,1\r\n");
  replace("list_eval_partition.csv",
          "\xEF\xBB\xBF"
          "image_id,partition\n000001.jpg,0\n000005.jpg,2\n");
  EXPECT_THAT(test::labels_of(*open_dataset("celeba", "train")), ElementsAre(1));
  EXPECT_THAT(test::labels_of(*open_dataset("celeba", "test")), ElementsAre(0));
}

TEST_F(CelebA, DamagedListsAreNamedWithTheLine) {
  const std::string list = "list_attr_celeba.txt";
  replace(list, "2\nBald Smiling\n000001.jpg 1 1\n");
  EXPECT_THAT(failure(), AllOf(HasSubstr(list), HasSubstr("1 row, but line 1 says 2")));
  replace(list, "1\nBald Smiling\n000001.jpg 1\n");
  EXPECT_THAT(failure(), HasSubstr(list + ":3: 1 value, expected 2"));
  replace(list, "1\nBald Smiling\n000001.jpg 1 7\n");
  EXPECT_THAT(failure(), HasSubstr(":3: Smiling is 7"));
  replace(list, "1\nBald Smiling\n../../x.jpg 1 1\n");
  EXPECT_THAT(failure(), HasSubstr("'../../x.jpg' is not a file name"));
  replace(list, "1\nBald Smiling\n000009.jpg 1 1\n");
  EXPECT_THAT(failure(), HasSubstr("no partition of '000009.jpg'"));
  replace(list, "1\nBald Smilin\n000001.jpg 1 1\n");
  EXPECT_THAT(usage_of([] { open_dataset("celeba", "train"); }),
              HasSubstr("did you mean 'Smilin'?"));
  replace(list, "");
  EXPECT_THAT(failure(), HasSubstr("no attributes"));
  replace("list_eval_partition.txt", "000001.jpg 3\n");
  EXPECT_THAT(failure(), HasSubstr("the split must be 0, 1 or 2, found 3"));
  test::fs::remove(root() / "list_eval_partition.txt");
  EXPECT_THAT(failure(), HasSubstr("neither list_eval_partition.txt nor"));
}

/// A description "faces" of lists with the attributes Smiling, Glasses, Black and Blond.
class CelebAFaces : public ::testing::Test {
 protected:
  CelebAFaces() : data_env_("MOESAIC_DATA", folder_.path().string()) {
    test::fs::create_directories(root() / "img_align_celeba");
  }
  test::fs::path root() const { return folder_.path() / "shots"; }

  /// Adds `count` faces with these attributes, 1 or -1, to a part.
  void add(int part, const std::string& attributes, int count) {
    for (int i = 0; i < count; ++i) {
      const std::string name = std::to_string(++faces_) + ".jpg";
      attributes_ += name + " " + attributes + "\n";
      parts_ += name + " " + std::to_string(part) + "\n";
    }
  }
  std::shared_ptr<const Dataset> open(const std::string& settings,
                                      const std::string& split = "train") const {
    write_file(root() / "list_attr_celeba.txt", "Smiling Glasses Black Blond\n" + attributes_);
    write_file(root() / "list_eval_partition.txt", parts_);
    const std::string file = (folder_.path() / "faces.json").string();
    write_file(file, R"({"name": "faces", "format": "celeba", "folder": "shots", "mean": [0, 0, 0],
                         "std": [1, 1, 1], )" +
                         settings + "}");
    return open_dataset(file, split);
  }
  std::string misuse(const std::string& settings) const {
    return usage_of([&] { open(settings); });
  }
  std::string failure(const std::string& settings) const {
    return failure_of([&] { open(settings); });
  }

  test::TempDir folder_;
  test::ScopedEnv data_env_;
  std::string attributes_, parts_;
  int faces_ = 0;
};

TEST_F(CelebAFaces, BalancedClassesComeInTurn) {
  const std::string balanced =
      R"("classes": ["no", "yes"], "attribute": "Glasses", "balanced": true)";
  add(0, "1 1 -1 -1", 2);
  EXPECT_THAT(failure(balanced), HasSubstr("its train split has no image of class 'no'"));
  add(0, "1 -1 -1 -1", 5);
  EXPECT_THAT(test::labels_of(*open(balanced)), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(test::labels_of(*open(balanced + R"(, "num_images": {"train": 2})")),
              ElementsAre(0, 1));
  EXPECT_THAT(failure(balanced + R"(, "num_images": {"train": 6})"),
              HasSubstr("images.train is 6, but its smallest group allows 4"));
}

TEST_F(CelebAFaces, CombinationsOfAttributesAreCountedInBinary) {
  add(0, "1 1 -1 -1", 1);
  add(0, "-1 1 -1 -1", 1);
  add(0, "1 -1 -1 -1", 2);
  add(0, "-1 -1 -1 -1", 1);
  const std::string four = R"("classes": ["none", "smiling", "glasses", "both"], "attributes": )";
  EXPECT_THAT(test::labels_of(*open(four + R"(["Glasses", "Smiling"])")),
              ElementsAre(3, 2, 1, 1, 0));
  EXPECT_THAT(test::labels_of(*open(R"("classes": ["no", "yes"], "attributes": ["Glasses"])")),
              ElementsAre(1, 1, 0, 0, 0));
  EXPECT_THAT(misuse(four + R"(["Glasses", "Smilin"])"),
              AllOf(HasSubstr("list_attr_celeba.txt: no attribute 'Smilin'"),
                    HasSubstr("did you mean 'Smiling'?")));
  EXPECT_THAT(misuse(four + R"(["Glasses", "Glasses"])"),
              HasSubstr("the attribute 'Glasses' is named twice"));
  EXPECT_THAT(misuse(R"("classes": ["a", "b"], "attributes": ["Glasses", "Smiling"])"),
              HasSubstr("classes must have 4 names for 2 attributes"));
  EXPECT_THAT(misuse(four + R"(["Glasses"], "attribute": "Smiling")"),
              HasSubstr("attribute and attributes exclude each other"));
  EXPECT_THAT(misuse(R"("classes": ["a", "b"])"), HasSubstr("attribute is missing"));
}

const std::string kSpurious = R"("classes": ["no", "yes"], "attribute": "Smiling",
    "spurious": {"with": "Black", "without": "Blond", "fraction": 0.9})";

class CelebASpurious : public CelebAFaces {
 protected:
  /// In every part 3 neither black nor blond and 2 that are both; else by label and hair.
  void add_all(int part, int no_blond, int no_black, int yes_blond, int yes_black) {
    add(part, "1 -1 -1 -1", 3);
    add(part, "-1 -1 1 1", 2);
    add(part, "-1 -1 -1 1", no_blond);
    add(part, "-1 -1 1 -1", no_black);
    add(part, "1 -1 -1 1", yes_blond);
    add(part, "1 -1 1 -1", yes_black);
  }
  /// Images by 2 * label + group among the first `count`.
  static std::array<int, 4> cells(const Dataset& data, int64_t count) {
    std::array<int, 4> found = {};
    for (int64_t i = 0; i < count; ++i) {
      ++found[static_cast<size_t>(2 * data.label(i) + data.group(i))];
    }
    return found;
  }
};

TEST_F(CelebASpurious, HairGoesAlongWithTheLabelInEveryPrefixOfTheTrainingImages) {
  add_all(0, 30, 9, 4, 40);
  const auto data = open(kSpurious);
  EXPECT_THAT(data->info().groups, ElementsAre("Blond", "Black"));
  // 30 that do not smile and are blond: at k = 33, 30 are blond and 3 are not.
  EXPECT_EQ(data->size(), 2 * 33);
  for (int64_t count = 2; count <= data->size(); count += 2) {
    const std::array<int, 4> found = cells(*data, count);
    EXPECT_EQ(found[0] + found[1], count / 2);
    EXPECT_NEAR(found[1], 0.1 * static_cast<double>(count / 2), 0.5 + 1e-9) << count;
    EXPECT_EQ(found[2], found[1]);
  }
  EXPECT_THAT(cells(*data, 40), ElementsAre(18, 2, 2, 18));
}

TEST_F(CelebASpurious, ImagesAreThoseOfTheListsAndNoneComesTwice) {
  add_all(0, 12, 2, 2, 12);
  const auto data = open(kSpurious);
  for (int i = 1; i <= faces_; ++i) {
    const auto grey = static_cast<uint8_t>(5 * i);
    write_file(root() / "img_align_celeba" / (std::to_string(i) + ".jpg"),
               jpeg_bytes(8, 8, JpegKind::rgb, {grey, grey, grey}));
  }
  std::vector<int> seen;
  for (int64_t i = 0; i < data->size(); ++i) {
    const int number = (test::whole_image(*data, i, 8).pixels[0] + 2) / 5;
    seen.push_back(number);
    // The order of add_all(): 5 that are left out, then the cells.
    const int cell = number <= 17 ? 0 : number <= 19 ? 1 : number <= 21 ? 2 : 3;
    EXPECT_GT(number, 5);
    EXPECT_EQ(cell, 2 * data->label(i) + data->group(i)) << number;
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

TEST_F(CelebASpurious, GroupsAreEquallyFrequentElsewhere) {
  add_all(0, 9, 9, 9, 9);
  add_all(1, 7, 5, 6, 8);
  add_all(2, 4, 5, 6, 8);
  for (const char* split : {"validation", "test"}) {
    const auto data = open(kSpurious, split);
    const int each = std::string(split) == "test" ? 4 : 5;
    EXPECT_EQ(data->size(), 4 * each);
    EXPECT_THAT(cells(*data, data->size()), ElementsAre(each, each, each, each)) << split;
  }
}

TEST_F(CelebASpurious, NumbersMayBeGivenAndArePlannedWith) {
  add_all(0, 30, 9, 4, 40);
  add_all(2, 4, 5, 6, 8);
  const std::string few = kSpurious + R"(, "num_images": {"train": 40, "test": 17})";
  EXPECT_EQ(open(few)->size(), 40);
  EXPECT_THAT(failure_of([&] { open(few, "test"); }),
              HasSubstr("'faces': num_images.test is 17, but its smallest group allows 16"));
  const auto metadata =
      DatasetSource((folder_.path() / "faces.json").string()).open_metadata("train");
  EXPECT_EQ(metadata->size(), 40);
  EXPECT_THAT(metadata->info().groups, ElementsAre("Blond", "Black"));
}

TEST_F(CelebASpurious, SaysWhatIsMissing) {
  add_all(0, 9, 9, 0, 9);
  EXPECT_THAT(failure(kSpurious), HasSubstr("'faces': no image of class 'yes' in its train split "
                                            "has Blond and not Black"));
  EXPECT_THAT(misuse(R"("classes": ["no", "yes"], "attribute": "Smiling",
                        "spurious": {"with": "Black", "without": "Blonde"})"),
              HasSubstr("did you mean 'Blond'?"));
  EXPECT_THAT(misuse(R"("classes": ["a", "b", "c", "d"], "attributes": ["Smiling", "Glasses"],
                        "spurious": {"with": "Black", "without": "Blond"})"),
              HasSubstr("spurious needs one attribute"));
}

}  // namespace
}  // namespace moesaic
