// SPDX-License-Identifier: Apache-2.0
// Table 10's experiment on synthetic data: random numbers that are no language.
#include "base/support.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/runs.h"
#include "support/synthetic_embeddings.h"

namespace moesaic {
namespace {

TEST(LanguageExperiment, TheMixtureFindsTheSyntheticLanguagesAndIsBetterThanASingleNetwork) {
  const test::TempDir folder;
  const auto data = testing::write_synthetic_dataset(folder.path(), {.count = 4000});
  const Experiment experiment =
      load_experiment("clusters/table10", Scale::paper,
                      {"train.phases.0.data=" + data.string(), "train.phases.0.epochs=40"});
  const auto config = parse<RunsConfig>(experiment.config);
  std::vector<MeasuredRow> rows;
  ASSERT_TRUE(measure_rows(config, {.out = folder / "out", .show_progress = false}, rows));
  ASSERT_EQ(rows.size(), 2U);
  const auto& single = rows[0].runs.at(0).final.numbers;
  const auto& mixture = rows[1].runs.at(0).final.numbers;
  // No linear rule is right for all three; one of each is.
  EXPECT_GT(mixture.at("test_accuracy"), single.at("test_accuracy") + 5.0);
  // The entropy of the language given the expert is at most ln 3 = 1.10.
  EXPECT_LT(mixture.at("entropy"), 0.3);
  EXPECT_FALSE(single.contains("entropy"));
}

}  // namespace
}  // namespace moesaic
