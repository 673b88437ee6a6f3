// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/format.h"

#include "formats/checks.h"
#include "moesaic/base/process.h"

namespace moesaic {

Registry<DatasetFormat>& dataset_formats() {
  static Registry<DatasetFormat> registry("dataset format",
                                          {{"idx", idx_format()},
                                           {"cifar", cifar_format()},
                                           {"image_folder", image_folder_format()},
                                           {"celeba", celeba_format()},
                                           {"embeddings", embeddings_format()},
                                           {"shards", shards_format()},
                                           {"table", table_format()}});
  return registry;
}

std::vector<NamedSettings> dataset_format_choices() {
  return choices_of(dataset_formats(), "idx");
}

const DatasetFormat& format_of(const DatasetSpec& spec) {
  return dataset_formats().at(spec.format.name(), spec.name);
}

DatasetInfo info_from_spec(const DatasetSpec& spec, const std::string& split) {
  return {.name = spec.name,
          .split = split,
          .description = spec.description,
          .classes = spec.classes,
          .mean = spec.mean,
          .std = spec.std,
          .applies_exif = spec.exif_orientation};
}

ConfigProblem check_generated(const DatasetSpec& spec, const char* key, bool is_given,
                              bool is_endless) {
  if (!is_given) return {fmt::format("format {} needs '{}'", spec.format.name(), key)};
  if (is_endless && spec.validation.value_or(0.0) > 0.0) {
    return {"endless examples have no validation split; leave 'validation' out", {"validation"}};
  }
  return first_problem({no_images_problem(spec), unknown_split(spec.num_images, "num_images")});
}

std::shared_ptr<const Dataset> open_generated(DatasetInfo info, const MakeInputs& make,
                                              int64_t size, bool is_endless) {
  if (is_endless) return make_stream_dataset(std::move(info), size, make);
  const int64_t num_values = make(0, 1).values_NCHW.numel();
  check_memory(
      sizeof(float) * static_cast<double>(num_values) * static_cast<double>(size),
      fmt::format("the {} split of {} examples of {} numbers", info.split, size, num_values),
      fmt::format("dataset '{}'", info.name));
  return make_input_dataset(std::move(info), make(0, size));
}

}  // namespace moesaic
