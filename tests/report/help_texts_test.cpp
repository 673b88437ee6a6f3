// SPDX-License-Identifier: Apache-2.0
// Every help text of a setting is read without its neighbours, so it is a noun phrase that stands
// alone.
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "moesaic/config/schema.h"
#include "moesaic/data/format.h"
#include "moesaic/data/source.h"
#include "moesaic/models/family.h"
#include "moesaic/prune/plan.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/runs.h"
#include "moesaic/train/objective.h"
#include "moesaic/train/phase.h"
#include "moesaic/train/run_config.h"

namespace moesaic {
namespace {

/// Returns why a text does not stand alone, or "". The names of choices that help puts before the
/// meaning of their settings ("patch_sgd: ") do not count.
std::string fault_of(const std::string& description) {
  static const std::regex choices("^([a-z0-9_-]+: )+");
  static const std::regex word(R"([a-z][\w'./-]+:?( .*)?)"), words(R"((\S+ ){2,}\S+)");
  static const std::regex fragment(
      "(of|or|and|but|so|by|for|to|in place of|instead of|what|which|who|whose|whether|how|it|they|"
      "those|these|a|an|the) .*");
  const std::string text = std::regex_replace(description, choices, "");
  if (!std::regex_match(text, words)) return "has less than three words";
  if (!std::regex_match(text, word)) return "does not begin with a lower-case word";
  if (std::regex_match(text, fragment)) return "is a fragment";
  return text.ends_with('.') && !text.ends_with("...") ? "ends with a period" : "";
}

void expect_sound(const HelpRows& rows, const std::string& owner) {
  EXPECT_FALSE(rows.empty()) << owner;
  for (const config_detail::HelpRow& row : rows) {
    const std::string fault = fault_of(row.description);
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
  expect_sound(help_rows<SamplesConfig>(), "experiment of an image grid");
  expect_sound(help_rows<PrunePlan>(), "pruning plan");
}

template <class Entry>
void expect_choices_in(const HelpRows& rows, const std::string& key,
                       const Registry<Entry>& registry) {
  for (const config_detail::HelpRow& row : rows) {
    if (row.key != key || row.allowed.empty()) continue;
    for (const std::string& name : registry.names()) {
      EXPECT_NE((" " + row.allowed + " ").find(" " + name + " "), std::string::npos) << name;
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
        "patch_sgd: eta, of all that moves", "Number of all experts", "number of all experts."}) {
    EXPECT_NE(fault_of(text), "") << text;
  }
  for (const char* text : {"seed of all random number generators", "number of experts (k)",
                           "patch_sgd: learning rate (eta) of all neurons"}) {
    EXPECT_EQ(fault_of(text), "") << text;
  }
}

}  // namespace
}  // namespace moesaic
