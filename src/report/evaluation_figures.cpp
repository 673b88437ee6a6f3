// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/evaluation_figures.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/data/source.h"
#include "moesaic/formats/image.h"
#include "moesaic/report/experiment.h"
#include "panels.h"

namespace moesaic {
namespace {

bool is_csv(const fs::path& file) {
  return file.extension() == ".csv";
}

MeasuredTable confusion_table(const ConfusionMatrix& confusion,
                              const std::vector<std::string>& classes) {
  MeasuredTable table{classes, classes, {}};
  const int64_t count = std::ssize(classes);
  for (int64_t label = 0; label < count; ++label) {
    table.values.emplace_back();
    for (int64_t predicted = 0; predicted < count; ++predicted) {
      table.values.back().push_back(static_cast<double>(confusion.count(label, predicted)));
    }
  }
  return table;
}

/// Returns sizes in which the names of the classes fit.
PanelGrid grid_of(const std::vector<std::string>& classes, int cell) {
  size_t longest = 0;
  for (const std::string& name : classes) longest = std::max(longest, count_characters(name));
  const int room = 8 * static_cast<int>(std::min<size_t>(longest, 40));
  const int side = std::max(400, cell * static_cast<int>(classes.size()));
  return {.width = side,
          .height = side,
          .left = 60 + room,
          .right = std::max(scale_room(side), 30 + 3 * room / 4),
          .bottom = 60 + 3 * room / 4};
}

constexpr int64_t kMaxPanels = 64;

/// Returns the bytes of images [..., C, H, W] that were normalised by (byte / 255 - mean) / std.
at::Tensor bytes_of(const at::Tensor& images, const DatasetInfo& info) {
  const at::Tensor mean = at::tensor(info.mean, at::kDouble).view({-1, 1, 1});
  const at::Tensor std = at::tensor(info.std, at::kDouble).view({-1, 1, 1});
  const at::Tensor bytes = 255.0 * (images.to(at::kCPU, at::kDouble) * std + mean);
  return (bytes.clamp(0.0, 255.0) + 0.5).floor().to(at::kByte);
}

/// Returns the pixels of an image [C, H, W] of bytes as a block, row by row, since gnuplot draws
/// points in this order only.
std::string pixel_block(const at::Tensor& bytes_CHW) {
  std::string lines = "# x\ty\tred\tgreen\tblue\n";
  const at::Tensor bytes = bytes_CHW.contiguous();
  const auto* const from = bytes.const_data_ptr<uint8_t>();
  const int64_t channels = bytes.size(0), width = bytes.size(2), plane = bytes.size(1) * width;
  for (int64_t pixel = 0; pixel < plane; ++pixel) {
    lines += fmt::format("{}\t{}", pixel % width, pixel / width);
    for (int64_t colour = 0; colour < 3; ++colour) {
      lines += fmt::format("\t{}", from[std::min(colour, channels - 1) * plane + pixel]);
    }
    lines += "\n";
  }
  return lines;
}

/// Returns the commands before panels that show pixels from `first` to these.
std::string image_commands(double first, int64_t right, int64_t bottom) {
  return fmt::format(
      "  unset tics\n  unset border\n  unset grid\n  set size ratio -1\n"
      "  set xrange [{}:{}.5]\n  set yrange [{}.5:{}]\n",
      first, right, bottom, first);
}

std::string image_title(const std::string& title) {
  return fmt::format("  set title {} offset 0, -0.8 textcolor rgb ink\n", plot_name(title));
}

constexpr const char* kPixels = "using 1:2:3:4:5 with rgbimage notitle";

/// Returns the weight of each patch for each kept expert, [images, P, K]; an ensemble's patch has
/// the largest of its members.
at::Tensor patch_weights(const RoutingRecord& record, const PatchTokens& patches, int64_t images) {
  const at::Tensor weight_TK = combine_weights(record.routing).to(at::kCPU, at::kFloat).abs();
  const at::Tensor weight =
      weight_TK.view({images, -1, record.num_members, weight_TK.size(1)}).amax(2);
  return weight.narrow(1, patches.num_prefix_tokens, patches.grid.height * patches.grid.width);
}

/// Where each image stands on a panel.
struct Sheet {
  at::Tensor pixels_NCHW;
  int64_t count = pixels_NCHW.size(0), height = pixels_NCHW.size(2), width = pixels_NCHW.size(3);
  int64_t columns = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(count))));

  int64_t gap() const { return std::max<int64_t>(2, width / 16); }
  int64_t rows() const { return (count + columns - 1) / columns; }
  int64_t left(int64_t image) const { return image % columns * (width + gap()); }
  int64_t top(int64_t image) const { return image / columns * (height + gap()); }
  int64_t whole_width() const { return columns * (width + gap()) - gap(); }
  int64_t whole_height() const { return rows() * (height + gap()) - gap(); }
};

/// Returns the pixels of the whole sheet; what is between images is white.
at::Tensor sheet_pixels(const Sheet& sheet) {
  at::Tensor whole = at::full(
      {sheet.pixels_NCHW.size(1), sheet.whole_height(), sheet.whole_width()}, 255, at::kByte);
  for (int64_t i = 0; i < sheet.count; ++i) {
    whole.narrow(1, sheet.top(i), sheet.height)
        .narrow(2, sheet.left(i), sheet.width)
        .copy_(sheet.pixels_NCHW[i]);
  }
  return whole;
}

/// Returns the corners of the patches that an expert got, or of the others.
std::string patch_lines(const RoutedImages& images, const Sheet& sheet, int64_t slot, bool routed) {
  std::string lines = "# x\ty\tleft\tright\ttop\tbottom\n";
  const double height = static_cast<double>(sheet.height) / static_cast<double>(images.grid.height);
  const double width = static_cast<double>(sheet.width) / static_cast<double>(images.grid.width);
  const at::Tensor weight_NP = images.weight_NPK.select(2, slot).contiguous();
  const auto* const weight = weight_NP.const_data_ptr<float>();
  for (int64_t i = 0; i < weight_NP.numel(); ++i) {
    if ((weight[i] != 0.0F) != routed) continue;
    const int64_t image = i / weight_NP.size(1), patch = i % weight_NP.size(1);
    const double left = static_cast<double>(sheet.left(image)) - 0.5 +
                        width * static_cast<double>(patch % images.grid.width);
    const double top = static_cast<double>(sheet.top(image)) - 0.5 +
                       height * static_cast<double>(patch / images.grid.width);
    lines += fmt::format("{:.3f}\t{:.3f}\t{:.3f}\t{:.3f}\t{:.3f}\t{:.3f}\n", left, top, left,
                         left + width, top, top + height);
  }
  // gnuplot knows no block without a line.
  if (lines.ends_with("bottom\n")) lines += "NaN\tNaN\tNaN\tNaN\tNaN\tNaN\n";
  return lines;
}

/// Returns the bytes of image `index` as a network sees it, [C, H, W].
at::Tensor sample_pixels(const Dataset& data, const ImageTransform& transform, int64_t index,
                         CounterRng rng) {
  const DatasetInfo& info = data.info();
  std::vector<uint8_t> bytes(static_cast<size_t>(data.image_size()));
  at::Tensor values = at::empty({info.channels, info.height, info.width}, at::kFloat);
  data.image(index, bytes.data());
  transform(bytes.data(), rng, values.mutable_data_ptr<float>());
  return bytes_of(values, info);
}

std::string sample_title(const Dataset& data, int64_t index) {
  const DatasetInfo& info = data.info();
  const std::string group =
      info.groups.empty() ? "" : info.groups.at(static_cast<size_t>(data.group(index))) + ", ";
  return group + (info.classes.empty() ? fmt::format("{}", index)
                                       : info.classes.at(static_cast<size_t>(data.label(index))));
}

}  // namespace

void check_new_confusion(const fs::path& file, const std::string& what) {
  const std::string extension = file.extension().string();
  if (extension == ".csv") {
    check_new_file(file, what);
    return check_can_write(file.parent_path());
  }
  if (extension != ".png" && extension != ".svg") {
    fail_usage("{}: the file's name must end in .png, .svg or .csv, found '{}'", what,
               file.string());
  }
  check_new_figure(file, what);
}

void check_confusion_classes(const DatasetInfo& data, const fs::path& file) {
  if (data.classes.empty()) {
    fail_usage("{}: a confusion matrix needs classes, but the targets of '{}' are real numbers",
               file.string(), data.name);
  }
  if (!is_csv(file) && data.classes.size() > kMaxFigureClasses) {
    fail_usage("{}: a figure shows at most {} classes, '{}' has {}; choose a name ending in .csv",
               file.string(), kMaxFigureClasses, data.name, data.classes.size());
  }
}

std::string confusion_csv(const ConfusionMatrix& confusion,
                          const std::vector<std::string>& classes) {
  std::vector<std::string> heading = {"true \\ predicted"};
  heading.insert(heading.end(), classes.begin(), classes.end());
  std::string text = csv_line(heading);
  const int64_t count = std::ssize(classes);
  for (int64_t label = 0; label < count; ++label) {
    std::vector<std::string> line = {classes[static_cast<size_t>(label)]};
    for (int64_t i = 0; i < count; ++i) line.push_back(fmt::to_string(confusion.count(label, i)));
    text += csv_line(line);
  }
  return text;
}

Figure confusion_figure(const ConfusionMatrix& confusion, const std::vector<std::string>& classes,
                        const std::string& title, const std::string& stem) {
  constexpr size_t kMaxNumbers = 25, kMaxLines = 60;
  const bool numbers = classes.size() <= kMaxNumbers, lines = classes.size() <= kMaxLines;
  const Panel panel = heatmap_panel({.title = title,
                                     .x_label = "predicted class",
                                     .y_label = "true class",
                                     .table = confusion_table(confusion, classes),
                                     .shows_numbers = numbers,
                                     .names_every_row = lines,
                                     .uses_sqrt_colors = true});
  return panel_figure(stem, {panel}, grid_of(classes, numbers ? 48 : lines ? 18 : 8));
}

void write_confusion(const ConfusionMatrix& confusion, const std::vector<std::string>& classes,
                     const std::string& title, const fs::path& file) {
  if (is_csv(file)) return write_atomic(file, confusion_csv(confusion, classes));
  draw_figure_file(file, confusion_figure(confusion, classes, title, file.stem().string()));
}

void RoutedImageCollector::begin(const EvaluatedBatch& batch) {
  const DatasetInfo& info = batch.dataset.info();
  if (!batch.dataset.has_images()) {
    fail_usage("--routing-images: the inputs of '{}' are not images; leave it out", info.name);
  }
  const std::optional<PatchTokens> patches = batch.model.patch_tokens();
  if (batch.output.routings.empty() || !patches) {
    fail_usage(
        "--routing-images: the network has no layer that routes patches of an image; leave it out");
  }
  const RoutingRecord& record = batch.output.routings.back();
  routed_images_.grid = patches->grid;
  routed_images_.experts = record.kept;
  routed_images_.title =
      fmt::format("{}, layer {}", one_line(name_without_folders(info.name), 30), record.block);
  if (std::ssize(routed_images_.experts) > kMaxPanels) {
    fail_usage(
        "--routing-images: a figure shows at most {} experts, but the last layer has {}; leave it "
        "out",
        kMaxPanels, routed_images_.experts.size());
  }
}

void RoutedImageCollector::add(const EvaluatedBatch& batch) {
  if (routed_images_.experts.empty()) begin(batch);
  const int64_t images = batch.images_BCHW.size(0);
  const int64_t count = std::min(images, wanted_ - batch.first);
  if (count <= 0) return;
  pixels_.push_back(bytes_of(batch.images_BCHW.narrow(0, 0, count), batch.dataset.info()));
  weights_.push_back(
      patch_weights(batch.output.routings.back(), *batch.model.patch_tokens(), images)
          .narrow(0, 0, count)
          .clone());
}

RoutedImages RoutedImageCollector::images() const {
  RoutedImages images = routed_images_;
  images.pixels_NCHW = at::cat(pixels_);
  images.weight_NPK = at::cat(weights_);
  return images;
}

void check_new_mistakes(const fs::path& file) {
  if (file.extension() != ".png") {
    fail_usage("--mistakes: the file's name must end in .png, found '{}'", file.string());
  }
  check_new_file(file, "--mistakes");
  check_new_confusion(fs::path(file).replace_extension(".csv"), "--mistakes");
}

void check_can_show_mistakes(const DatasetInfo& data) {
  if (data.has_images && !data.classes.empty() && (data.channels == 1 || data.channels == 3))
    return;
  fail_usage(
      "--mistakes: the inputs of '{}' are not images of classes, in grey or RGB; leave it out",
      data.name);
}

int64_t write_mistakes(const CheckpointEvaluation& result, int64_t count, const fs::path& file) {
  const auto& [label_N, predicted_N, confidence_N] = result.evaluation.predictions;
  const Dataset& data = *result.dataset;
  const at::Tensor rank_N = confidence_N.masked_fill(predicted_N.eq(label_N), -1.0);
  const at::Tensor order_N = rank_N.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  std::string table = csv_line({"file", "index", "label", "prediction", "confidence"});
  std::vector<at::Tensor> pixels;
  for (int64_t i = 0; i < order_N.size(0) && std::ssize(pixels) < count; ++i) {
    const auto index = order_N[i].item<int64_t>();
    const auto label = label_N[index].item<int64_t>();
    const auto predicted = predicted_N[index].item<int64_t>();
    if (label == predicted) break;
    const DatasetInfo& info = data.info();
    at::Tensor image = at::empty({info.channels, info.height, info.width}, at::kByte);
    try {
      data.image(index, image.mutable_data_ptr<uint8_t>());
    } catch (const ImageError&) {
      continue;  // Another image stood in for it.
    }
    pixels.push_back(image);
    const std::optional<ImageFile> stored = data.file(index);
    table += csv_line({stored ? escaped(stored->name) : "", fmt::to_string(index),
                       escaped(result.classes.at(static_cast<size_t>(label))),
                       escaped(result.classes.at(static_cast<size_t>(predicted))),
                       fmt::format("{:.4f}", confidence_N[index].item<float>())});
  }
  if (pixels.empty()) return 0;
  const at::Tensor sheet_HWC =
      sheet_pixels(Sheet{at::stack(pixels)}).permute({1, 2, 0}).contiguous();
  write_atomic(file, encode_png({{sheet_HWC.const_data_ptr<uint8_t>(), sheet_HWC.nbytes()},
                                 sheet_HWC.size(0),
                                 sheet_HWC.size(1),
                                 sheet_HWC.size(2)}));
  write_atomic(fs::path(file).replace_extension(".csv"), table);
  return std::ssize(pixels);
}

Figure routing_images_figure(const RoutedImages& images, const std::string& stem) {
  const Sheet sheet{images.pixels_NCHW};
  std::vector<Panel> panels;
  for (size_t slot = 0; slot < images.experts.size(); ++slot) {
    const auto number = static_cast<int64_t>(slot);
    Panel panel{image_title(fmt::format("expert {}", images.experts[slot]))};
    // All panels show the pixels of the first block.
    if (slot == 0) panel.blocks.push_back(pixel_block(sheet_pixels(sheet)));
    panel.plots.push_back(fmt::format("data index 0 {}", kPixels));
    panel.plot(patch_lines(images, sheet, number, false),
               "using 1:2:3:4:5:6 with boxxyerror fc rgb 'white' fs transparent solid 0.72 "
               "noborder notitle");
    panel.plot(patch_lines(images, sheet, number, true),
               "using 1:2:3:4:5:6 with boxxyerror lc rgb '#D55E00' lw 1.6 fs empty notitle");
    panels.push_back(std::move(panel));
  }
  panels.front().commands.insert(
      0, image_commands(-1.5, sheet.whole_width(), sheet.whole_height()) +
             fmt::format("  set label 1 {} at screen 0.5, 0.985 center textcolor rgb ink\n",
                         plot_name(images.title)));
  constexpr int kSide = 300;
  const double ratio =
      static_cast<double>(sheet.whole_height()) / static_cast<double>(sheet.whole_width());
  return panel_figure(stem, panels,
                      {.columns = 4,
                       .width = kSide,
                       .height = static_cast<int>(std::lround(kSide * ratio)),
                       .left = 15,
                       .right = 15,
                       .top = 60,
                       .bottom = 15,
                       .gap_x = 25,
                       .gap_y = 40});
}

ConfigProblem config_problem(const ImageGridConfig& config) {
  if (config.augment.mixup == 0.0) return {};
  return {"mixup needs a batch, but images are drawn one by one; leave it out",
          {"augment.mixup", "augment"}};
}

Figure image_grid_figure(const ImageGridConfig& config, const ReproduceOptions& options) {
  DatasetCache datasets(options.open);
  const auto data = datasets.get(config.data, config.split, config.preprocess);
  if (!data->has_images()) fail_usage("dataset '{}': the inputs are not images", config.data);
  const ImageTransform transform(data->info(), config.augment);
  std::vector<Panel> panels;
  for (const int64_t index : config.images) {
    if (index >= data->size()) {
      fail_usage("the split '{}' of '{}' has {} images; image {} does not exist", config.split,
                 config.data, data->size(), index);
    }
    const CounterRng rng = augment_rng(static_cast<uint64_t>(config.seed), 0, index);
    panels.push_back({image_title(sample_title(*data, index))});
    panels.back().plot(pixel_block(sample_pixels(*data, transform, index, rng)), kPixels);
  }
  panels.front().commands.insert(
      0, image_commands(-0.5, data->info().width - 1, data->info().height - 1));
  return panel_figure("figure", panels,
                      {.columns = static_cast<int>(config.num_columns),
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
