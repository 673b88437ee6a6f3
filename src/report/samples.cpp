// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/samples.h"

#include <fmt/format.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/train/datasets.h"
#include "pixels.h"
#include "plots/panels.h"
#include "report_text.h"

namespace moesaic {
namespace {

/// Returns the pixels of image `index` as lines "x y red green blue".
std::string sample_pixels(const Dataset& data, const ImageTransform& transform, int64_t index,
                          CounterRng rng) {
  const DatasetInfo& info = data.info();
  std::vector<uint8_t> bytes(static_cast<size_t>(data.image_size()));
  std::vector<float> values(bytes.size());
  data.image(index, bytes.data());
  transform(bytes.data(), rng, values.data());
  std::string lines = "# x\ty\tred\tgreen\tblue\n";
  const int64_t size = info.height * info.width;
  for (int64_t pixel = 0; pixel < size; ++pixel) {
    lines += fmt::format("{}\t{}", pixel % info.width, pixel / info.width);
    for (int64_t colour = 0; colour < 3; ++colour) {
      const auto c = static_cast<size_t>(std::min(colour, info.channels - 1));
      const float value = values[c * static_cast<size_t>(size) + static_cast<size_t>(pixel)];
      lines += fmt::format("\t{}", pixel_byte(value, info.mean[c], info.std[c]));
    }
    lines += "\n";
  }
  return lines;
}

std::string sample_title(const Dataset& data, int64_t index) {
  const DatasetInfo& info = data.info();
  const std::string group =
      info.groups.empty() ? "" : info.groups.at(static_cast<size_t>(data.group(index))) + ", ";
  return group + (info.classes.empty() ? fmt::format("{}", index)
                                       : info.classes.at(static_cast<size_t>(data.label(index))));
}

}  // namespace

ConfigProblem config_problem(const SamplesConfig& config) {
  if (config.augment.mixup == 0.0) return {};
  return {"mixup mixes the images of a batch, of which these are none; leave it out",
          {"augment.mixup", "augment"}};
}

Figure samples_figure(const SamplesConfig& config, const ReproduceOptions& options) {
  Datasets datasets(options.open);
  const auto data = datasets.get(config.data, config.split, config.preprocess);
  if (!data->has_images()) fail_usage("dataset '{}' has inputs that are no images", config.data);
  const ImageTransform transform(data->info(), config.augment);
  std::vector<Panel> panels;
  for (const int64_t index : config.images) {
    if (index >= data->size()) {
      fail_usage("the split '{}' of '{}' has {} images, there is no image {}", config.split,
                 config.data, data->size(), index);
    }
    CounterRng rng = augment_rng(static_cast<uint64_t>(config.seed), 0, index);
    panels.push_back({fmt::format("  set title {} offset 0, -0.8 textcolor rgb ink\n  plot data "
                                  "index first using 1:2:3:4:5 with rgbimage notitle\n",
                                  plot_name(sample_title(*data, index))),
                      {sample_pixels(*data, transform, index, rng)}});
  }
  panels.front().commands.insert(
      0, fmt::format("  unset tics\n  unset border\n  unset grid\n  set size ratio -1\n"
                     "  set xrange [-0.5:{}.5]\n  set yrange [{}.5:-0.5]\n",
                     data->info().width - 1, data->info().height - 1));
  return panel_figure("figure", panels,
                      {.columns = static_cast<int>(config.columns),
                       .width = 128,
                       .height = 128,
                       .left = 20,
                       .right = 20,
                       .top = 30,
                       .bottom = 15,
                       .gap_x = 30,
                       .gap_y = 35});
}

}  // namespace moesaic
