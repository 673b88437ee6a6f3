// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/routing_images.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"
#include "moesaic/data/catalog.h"
#include "pixels.h"
#include "plots/panels.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxPanels = 64;

/// Returns the bytes of images that a network sees.
at::Tensor bytes_of(const at::Tensor& images_BCHW, const DatasetInfo& info) {
  const at::Tensor images = images_BCHW.to(at::kCPU, at::kFloat).contiguous();
  at::Tensor bytes = at::empty(images.sizes(), at::kByte);
  const int64_t plane = images.size(2) * images.size(3);
  for (int64_t i = 0; i < images.numel(); ++i) {
    const auto c = static_cast<size_t>(i / plane % images.size(1));
    bytes.mutable_data_ptr<uint8_t>()[i] = static_cast<uint8_t>(
        pixel_byte(images.const_data_ptr<float>()[i], info.mean[c], info.std[c]));
  }
  return bytes;
}

/// Returns the weight of each patch for each kept expert, [images, P, K]; an ensemble's patch has
/// the largest of its members.
at::Tensor patch_weights(const RoutingRecord& record, const PatchTokens& patches, int64_t images) {
  const at::Tensor weight_TK = combine_weights(record.routing).to(at::kCPU, at::kFloat).abs();
  const at::Tensor weight = weight_TK.view({images, -1, record.members, weight_TK.size(1)}).amax(2);
  return weight.narrow(1, patches.leading, patches.grid.height * patches.grid.width);
}

}  // namespace

void RoutedImageCollector::begin(const EvaluatedBatch& batch) {
  const DatasetInfo& info = batch.dataset.info();
  if (!batch.dataset.has_images()) {
    fail_usage("--routing-images: '{}' has inputs that are no images", info.name);
  }
  const std::optional<PatchTokens> patches = batch.model.patch_tokens();
  if (batch.output.routings.empty() || !patches) {
    fail_usage("--routing-images: the network has no layer that routes patches of an image");
  }
  const RoutingRecord& record = batch.output.routings.back();
  made_.grid = patches->grid;
  made_.experts = record.kept;
  made_.title =
      fmt::format("{}, layer {}", one_line(name_without_folders(info.name), 30), record.block);
  if (static_cast<int64_t>(made_.experts.size()) > kMaxPanels) {
    fail_usage("--routing-images: a figure shows at most {} experts, the last layer has {}",
               kMaxPanels, made_.experts.size());
  }
}

void RoutedImageCollector::add(const EvaluatedBatch& batch) {
  if (made_.experts.empty()) begin(batch);
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
  RoutedImages images = made_;
  images.pixels_NCHW = at::cat(pixels_);
  images.weight_NPK = at::cat(weights_);
  return images;
}

namespace {

/// Where each image stands on a panel.
struct Sheet {
  int64_t count, columns, height, width;

  explicit Sheet(const at::Tensor& pixels)
      : count(pixels.size(0)),
        columns(static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(pixels.size(0)))))),
        height(pixels.size(2)),
        width(pixels.size(3)) {}

  int64_t gap() const { return std::max<int64_t>(2, width / 16); }
  int64_t rows() const { return (count + columns - 1) / columns; }
  int64_t left(int64_t image) const { return image % columns * (width + gap()); }
  int64_t top(int64_t image) const { return image / columns * (height + gap()); }
  /// Returns the place of a pixel of the sheet in a plane of all images, -1 between them.
  int64_t offset_of(int64_t y, int64_t x) const {
    const int64_t down = y / (height + gap()), across = x / (width + gap());
    const int64_t image = down * columns + across;
    const int64_t row = y - down * (height + gap()), column = x - across * (width + gap());
    if (row >= height || column >= width || image >= count) return -1;
    return (image * height + row) * width + column;
  }
  int64_t whole_width() const { return columns * (width + gap()) - gap(); }
  int64_t whole_height() const { return rows() * (height + gap()) - gap(); }
};

/// Returns the whole sheet row by row, since gnuplot draws points in this order only; what is
/// between images is white.
std::string pixel_lines(const at::Tensor& pixels, const Sheet& sheet) {
  std::string lines = "# x\ty\tred\tgreen\tblue\n";
  const int64_t plane = sheet.height * sheet.width, channels = pixels.size(1);
  const auto* const bytes = pixels.const_data_ptr<uint8_t>();
  for (int64_t y = 0; y < sheet.whole_height(); ++y) {
    for (int64_t x = 0; x < sheet.whole_width(); ++x) {
      const int64_t offset = sheet.offset_of(y, x);
      lines += fmt::format("{}\t{}", x, y);
      for (int64_t colour = 0; colour < 3; ++colour) {
        const int64_t c = std::min(colour, channels - 1);
        const int64_t image = offset / plane, pixel = offset % plane;
        lines +=
            fmt::format("\t{}", offset < 0 ? 255 : bytes[(image * channels + c) * plane + pixel]);
      }
      lines += "\n";
    }
  }
  return lines;
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

}  // namespace

Figure routing_images_figure(const RoutedImages& images, const std::string& stem) {
  const Sheet sheet(images.pixels_NCHW);
  std::vector<Panel> panels;
  for (size_t slot = 0; slot < images.experts.size(); ++slot) {
    const auto number = static_cast<int64_t>(slot);
    const int others = slot == 0 ? 1 : 0;  // All panels show the pixels of the first block.
    Panel panel;
    if (slot == 0) panel.blocks.push_back(pixel_lines(images.pixels_NCHW, sheet));
    panel.blocks.push_back(patch_lines(images, sheet, number, false));
    panel.blocks.push_back(patch_lines(images, sheet, number, true));
    panel.commands = fmt::format(
        "  set title {} offset 0, -0.8 textcolor rgb ink\n"
        "  plot data index 0 using 1:2:3:4:5 with rgbimage notitle, \\\n"
        "    data index first + {} using 1:2:3:4:5:6 with boxxyerror fc rgb 'white' fs transparent "
        "solid 0.72 noborder notitle, \\\n"
        "    data index first + {} using 1:2:3:4:5:6 with boxxyerror lc rgb '#D55E00' lw 1.6 fs "
        "empty notitle\n",
        plot_name(fmt::format("expert {}", images.experts[slot])), others, others + 1);
    panels.push_back(std::move(panel));
  }
  panels.front().commands.insert(
      0, fmt::format("  unset tics\n  unset border\n  unset grid\n  set size ratio -1\n"
                     "  set label 1 {} at screen 0.5, 0.985 center textcolor rgb ink\n"
                     "  set xrange [-1.5:{}.5]\n  set yrange [{}.5:-1.5]\n",
                     plot_name(images.title), sheet.whole_width(), sheet.whole_height()));
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

}  // namespace moesaic
