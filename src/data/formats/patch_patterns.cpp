// SPDX-License-Identifier: Apache-2.0
// Data of the pMoE paper's theory, generated: an endless training split and a test split.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "built_in.h"
#include "checks.h"
#include "moesaic/data/dataset_inputs.h"
#include "moesaic/data/patch_patterns.h"

namespace moesaic {
namespace {

struct PatchPatternSettings {
  std::optional<PatchPatternsConfig> patterns;
};
template <class Fields>
void describe(Fields& f, PatchPatternSettings& c) {
  f("patterns", c.patterns, "what is generated in place of files");
}

ConfigProblem check_patch_patterns(const DatasetSpec& spec) {
  if (!spec.format.as<PatchPatternSettings>().patterns) {
    return {"format patch_patterns needs 'patterns'"};
  }
  if (spec.validation.value_or(0.0) > 0.0) {
    return {"nothing can be held out of endless examples: leave 'validation' out", {"validation"}};
  }
  return first_problem(no_images_problem(spec), unknown_split(spec.images, "images"));
}

/// Makes inputs of one channel whose rows are the patches.
DatasetInputs inputs_of(const PatchPatterns& made) {
  return {
      .values_NCHW = made.x_Nnd.unsqueeze(1), .labels_N = made.label_N, .groups_N = made.place_N};
}

std::shared_ptr<const Dataset> open_patch_patterns(const DatasetSpec& spec, DatasetInfo info,
                                                   const std::filesystem::path&) {
  const PatchPatternsConfig& config = *spec.format.as<PatchPatternSettings>().patterns;
  const std::string split = info.split;
  info.classes = {"with o1", "with o2"};
  for (int64_t j = 1; j <= config.patches; ++j) info.groups.push_back(fmt::format("place {}", j));
  const PatternSets sets = pattern_sets(config);
  Directions directions = {{"deciding", sets.deciding_2d}, {"other", sets.centre_pd}};
  if (split == "test") {
    return make_input_dataset(std::move(info),
                              inputs_of(patch_patterns(config, split, 0, config.test)),
                              std::move(directions));
  }
  return make_stream_dataset(
      std::move(info), config.train,
      [config, split](int64_t first, int64_t count) {
        return inputs_of(patch_patterns(config, split, first, count));
      },
      std::move(directions));
}

}  // namespace

DatasetFormat patch_patterns_format() {
  return {.settings = Choice("patch_patterns", PatchPatternSettings{}),
          .meaning = "generated patches of the pMoE paper's theory, one of which tells the class",
          .images = false,
          .generated = true,
          .check = check_patch_patterns,
          .open = open_patch_patterns};
}

}  // namespace moesaic
