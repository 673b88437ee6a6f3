// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/evaluation_figures.h"

#include <torch/torch.h>

#include "base/support.h"
#include "moesaic/base/file.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kPets = {"cat, tabby", "it's_a dog", "bird"};

ConfusionMatrix pets() {
  ConfusionMatrix confusion;
  confusion.add(torch::tensor({0, 0, 1, 0}, torch::kLong),
                torch::tensor({0, 1, 1, 0}, torch::kLong));
  confusion.add(torch::tensor({1}, torch::kLong), torch::tensor({2}, torch::kLong));
  return confusion;
}

TEST(ConfusionMatrix, HasTheTrueClassesAsRows) {
  EXPECT_EQ(confusion_csv(pets(), kPets),
            "true \\ predicted,\"cat, tabby\",it's_a dog,bird\n"
            "\"cat, tabby\",2,1,0\nit's_a dog,0,1,1\nbird,0,0,0\n");
  EXPECT_EQ(confusion_figure(pets(), kPets, "pets", "figure").data,
            "# column\trow\tvalue\n0\t0\t2\n1\t0\t1\n2\t0\t0\n0\t1\t0\n1\t1\t1\n2\t1\t1\n"
            "0\t2\t0\n1\t2\t0\n2\t2\t0\n");
}

TEST(ConfusionMatrix, IsWrittenByTheEndingOfItsName) {
  const test::TempDir folder;
  const fs::path figure = folder / "it's a figure.png", table = folder / "table.csv";
  for (const fs::path& file : {figure, table}) {
    check_new_confusion(file, "--confusion");
    EXPECT_EQ(test::said_by([&] { write_confusion(pets(), kPets, "pets", file); }), "");
    EXPECT_THAT(test::usage_of([&] { check_new_confusion(file, "--confusion"); }),
                HasSubstr("already exists"));
  }
  EXPECT_THAT(read_text(figure), StartsWith("\x89PNG"));
  EXPECT_EQ(read_text(table), confusion_csv(pets(), kPets));
  EXPECT_TRUE(fs::exists(folder / "it's a figure.gp") && fs::exists(folder / "it's a figure.tsv"));
  EXPECT_THAT(test::usage_of([&] { check_new_confusion(folder / "x.pdf", "--confusion"); }),
              HasSubstr("must end in .png, .svg or .csv"));
}

TEST(ConfusionMatrix, NeedsClassesAndOfAFigureNotTooMany) {
  DatasetInfo data;
  data.name = "numbers";
  EXPECT_THAT(test::usage_of([&] { check_confusion_classes(data, "x.csv"); }),
              HasSubstr("the targets of 'numbers' are real numbers"));
  data.classes.assign(kMaxFigureClasses + 1, "one of many");
  check_confusion_classes(data, "x.csv");
  EXPECT_THAT(test::usage_of([&] { check_confusion_classes(data, "x.png"); }),
              HasSubstr("choose a name ending in .csv"));
}

TEST(ConfusionMatrix, OfManyClassesNamesSome) {
  const test::TempDir folder;
  const std::vector<std::string> many(61, "class");
  EXPECT_EQ(test::said_by([&] { write_confusion(pets(), many, "pets", folder / "many.svg"); }), "");
  EXPECT_THAT(read_text(folder / "many.gp"), HasSubstr("set ytics ('class' 0, 'class' 4, "));
  EXPECT_THAT(read_text(folder / "many.svg"), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace moesaic
