// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/format.h"

#include <algorithm>

#include "formats/built_in.h"

namespace moesaic {

Registry<DatasetFormat>& dataset_formats() {
  static Registry<DatasetFormat> registry("dataset format",
                                          {{"idx", idx_format()},
                                           {"cifar", cifar_format()},
                                           {"image_folder", image_folder_format()},
                                           {"celeba", celeba_format()},
                                           {"embeddings", embeddings_format()},
                                           {"shards", shards_format()}});
  return registry;
}

std::vector<Choice> dataset_format_choices() {
  return choices_of(dataset_formats(), "idx");
}

const DatasetFormat& format_of(const DatasetSpec& spec) {
  return dataset_formats().at(spec.format.name(), spec.name);
}

DatasetInfo described_info(const DatasetSpec& spec, const std::string& split) {
  DatasetInfo info;
  info.name = spec.name;
  info.split = split;
  info.description = spec.description;
  info.classes = spec.classes;
  info.mean = spec.mean;
  info.std = spec.std;
  info.upright = spec.exif_orientation;
  return info;
}

}  // namespace moesaic
