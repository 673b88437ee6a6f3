// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/generated.h"

#include <fmt/format.h>

#include "formats/checks.h"
#include "moesaic/base/process.h"

namespace moesaic {

ConfigProblem check_generated(const DatasetSpec& spec, const char* key, bool given, bool endless) {
  if (!given) return {fmt::format("format {} needs '{}'", spec.format.name(), key)};
  if (endless && spec.validation.value_or(0.0) > 0.0) {
    return {"nothing can be held out of endless examples: leave 'validation' out", {"validation"}};
  }
  return first_problem(no_images_problem(spec), unknown_split(spec.images, "images"));
}

std::shared_ptr<const Dataset> open_generated(DatasetInfo info, GeneratedSplit split) {
  if (split.endless) {
    return make_stream_dataset(std::move(info), split.size, std::move(split.inputs),
                               std::move(split.directions));
  }
  check_memory(sizeof(float) * static_cast<double>(split.numbers) * static_cast<double>(split.size),
               fmt::format("the {} split of {} examples of {} numbers", info.split, split.size,
                           split.numbers),
               fmt::format("dataset '{}'", info.name));
  return make_input_dataset(std::move(info), split.inputs(0, split.size),
                            std::move(split.directions));
}

}  // namespace moesaic
