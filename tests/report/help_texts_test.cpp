// SPDX-License-Identifier: Apache-2.0
// Every text of help is read without its neighbours, so it is a noun phrase that stands alone.
#include <regex>
#include <string>

#include "moesaic/config/schema.h"
#include "moesaic/data/format.h"
#include "moesaic/data/source.h"
#include "moesaic/models/family.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/prune/plan.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/probe.h"
#include "moesaic/report/runs.h"
#include "moesaic/train/objective.h"
#include "moesaic/train/phase.h"
#include "moesaic/train/run_config.h"
#include "support/help_texts.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using testing::bare_symbol_in;
using testing::fault_of;

void expect_sound(const HelpRows& rows, const std::string& owner) {
  EXPECT_FALSE(rows.empty()) << owner;
  for (const config_detail::HelpRow& row : rows) {
    const std::string fault = fault_of(row.description, row.default_value);
    EXPECT_TRUE(fault.empty()) << owner << " " << row.key << " " << fault << ": "
                               << row.description;
  }
}

TEST(HelpTexts, OfEverySettingStandAlone) {
  for (const auto& [name, family] : families().entries()) expect_sound(family.help(), name);
  // Their choices are those of the registries of phase kinds, objectives and dataset formats.
  expect_sound(help_rows<RunConfig>(), "run");
  expect_sound(help_rows<DatasetSpec>(), "dataset");
  expect_sound(help_rows<RunsConfig>(), "experiment of runs");
  expect_sound(help_rows<ImageGridConfig>(), "experiment of an image grid");
  expect_sound(help_rows<PrunePlan>(), "pruning plan");
}

template <class Entry>
void expect_sound(const Registry<Entry>& registry) {
  for (const auto& [name, entry] : registry.entries()) {
    EXPECT_EQ(fault_of(entry.description), "") << name << ": " << entry.description;
  }
}

TEST(HelpTexts, OfEveryListedNameStandAlone) {
  expect_sound(families());
  expect_sound(phase_kinds());
  expect_sound(objectives());
  expect_sound(dataset_formats());
  expect_sound(probes());
  for (const Criterion& criterion : criteria()) {
    EXPECT_EQ(fault_of(criterion.description), "") << criterion.name;
  }
  const std::regex sentence("(?!(Of|What|Which|Whether|How) )[A-Z](\\S* ){2,}.*\\.");
  for (const std::string& name : experiment_names()) {
    const std::string text = load_experiment(name, Scale::paper).description;
    EXPECT_TRUE(std::regex_match(text, sentence)) << name << ": " << text;
  }
}

template <class Entry>
void expect_choices_in(const HelpRows& rows, const std::string& key,
                       const Registry<Entry>& registry) {
  for (const config_detail::HelpRow& row : rows) {
    if (row.key != key || row.allowed.empty()) continue;
    for (const std::string& name : registry.names()) {
      EXPECT_THAT((" " + row.allowed + " "), HasSubstr(" " + name + " ")) << name;
    }
    return;
  }
  FAIL() << "no setting " << key;
}

TEST(HelpTexts, CoverTheChoicesOfEveryRegistry) {
  expect_choices_in(help_rows<RunConfig>(), "phases.N.kind", phase_kinds());
  expect_choices_in(help_rows<RunConfig>(), "phases.N.loss", objectives());
  expect_choices_in(help_rows<DatasetSpec>(), "format", dataset_formats());
}

TEST(HelpTexts, FaultsAreFound) {
  for (const char* text :
       {"k", "d", "<o1, o2>", "seed", "of everything random", "what is done", "or their number",
        "whether it is drawn", "how often it is done", "in place of end: the rate", "K, a number",
        "patch_sgd: eta, of all that moves", "Number of all experts", "number of all experts.",
        "number of experts. It is even", "number of experts. converged_<metric> is its time"}) {
    EXPECT_NE(fault_of(text), "") << text;
  }
  for (const char* text :
       {"seed of all random number generators", "number of experts (k)",
        "patch_sgd: learning rate (eta) of all neurons", "name of an attribute, e.g. Smiling",
        "name (e.g. a word) of a setting", "number of images vs. number of experts",
        "files train_1, ... as listed", "number of neurons (eq. ten), at least 2"}) {
    EXPECT_EQ(fault_of(text), "") << text;
  }
}

TEST(HelpTexts, OfASettingThatMayBeEmptySayWhatEmptyMeans) {
  for (const char* value : {R"("")", "[]", "{}"}) {
    EXPECT_NE(fault_of("names of the shown rows", value), "") << value;
    EXPECT_EQ(fault_of("names of the shown rows; empty: all", value), "") << value;
  }
  for (const char* value : {"", "required", "null", "0", R"("cosine")", "[1]", R"({"a":1})"}) {
    EXPECT_EQ(fault_of("names of the shown rows", value), "") << value;
  }
}

TEST(HelpTexts, BareSymbolsAreFound) {
  for (const char* text : {"width of k", "number of eta and gates", "lr times eta k l",
                           "number of w_i", "number N / K", "size of the images, N or H",
                           "scale of all filters / sqrt(d)", "half width (of U)"}) {
    EXPECT_NE(bare_symbol_in(text), "") << text;
    EXPECT_NE(fault_of(text), "") << text;
  }
  for (const char* text :
       {"number of experts (k)", "number of experts, M", "dimension d of a patch, d at least 2",
        "number of 4 x 4 patches", "fraction of num_images in phase III",
        "gates w_1 to w_k of experts", "patch_sgd: learning rate (eta) of all neurons"}) {
    EXPECT_EQ(bare_symbol_in(text), "") << text;
  }
}

}  // namespace
}  // namespace moesaic
