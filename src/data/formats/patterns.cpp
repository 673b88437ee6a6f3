// SPDX-License-Identifier: Apache-2.0
// Data of the pruning paper's theory, generated: an endless training split and a test split.
#include <ATen/ATen.h>

#include <optional>
#include <utility>

#include "built_in.h"
#include "checks.h"
#include "moesaic/data/dataset_inputs.h"
#include "moesaic/data/pattern_tokens.h"

namespace moesaic {
namespace {

struct PatternSettings {
  std::optional<PatternTokensConfig> tokens;
};
template <class Fields>
void describe(Fields& f, PatternSettings& c) {
  f("tokens", c.tokens, "what is generated in place of files");
}

ConfigProblem check_patterns(const DatasetSpec& spec) {
  if (!spec.format.as<PatternSettings>().tokens) return {"format patterns needs 'tokens'"};
  if (spec.validation.value_or(0.0) > 0.0) {
    return {"nothing can be held out of endless examples: leave 'validation' out", {"validation"}};
  }
  return first_problem(no_images_problem(spec), unknown_split(spec.images, "images"));
}

DatasetInputs pattern_inputs(const PatternTokens& examples) {
  return {.values_NCHW = examples.tokens_Nn.unsqueeze(1).unsqueeze(1),
          .labels_N = examples.label_N};
}

std::shared_ptr<const Dataset> open_patterns(const DatasetSpec& spec, DatasetInfo info,
                                             const std::filesystem::path&) {
  const PatternTokensConfig& config = *spec.format.as<PatternSettings>().tokens;
  const std::string split = info.split;
  info.classes = {"with o1", "with o2"};
  Directions directions = {{"pattern", at::eye(config.patterns)}};
  if (split == "test") {
    return make_input_dataset(std::move(info),
                              pattern_inputs(pattern_tokens(config, split, 0, config.test)),
                              std::move(directions));
  }
  return make_stream_dataset(
      std::move(info), config.train,
      [config, split](int64_t first, int64_t count) {
        return pattern_inputs(pattern_tokens(config, split, first, count));
      },
      std::move(directions));
}

}  // namespace

DatasetFormat patterns_format() {
  return {.settings = Choice("patterns", PatternSettings{}),
          .meaning = "generated tokens of the pruning paper's theory, one of which tells the class",
          .images = false,
          .generated = true,
          .check = check_patterns,
          .open = open_patterns};
}

}  // namespace moesaic
