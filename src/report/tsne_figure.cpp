// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/tsne_figure.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/report/tsne.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGridNodes = 121;
constexpr size_t kMaxKey = 20;

// Columns of the data are counted from 1: image, x, y, label, predicted, expert, group.
constexpr std::string_view kTsneScript = R"(
set encoding utf8
ink = '#333333'

set border 15 lc rgb '#999999' lw 0.8
unset tics
set size ratio -1
set offsets graph 0.03, graph 0.03, graph 0.03, graph 0.03
set key outside right center Left reverse samplen 1 spacing 1.2 textcolor rgb ink noenhanced

if (boundary) {
  set contour base
  set cntrparam levels discrete 0.5
  unset surface
  set table $boundary
  splot data index 1 using 1:2:3 with lines
  unset table
  unset contour
}

if (file[strlen(file)-3:] eq '.svg') {
  set terminal svg size 720,560 dynamic enhanced font 'Helvetica,Arial,sans-serif,14' \
    background rgb 'white'
} else {
  set terminal pngcairo size 1440,1120 enhanced font 'DejaVu Sans,20' linewidth 2 pointscale 2 \
    background rgb 'white'
}
set output file
color(number) = number < 0 ? int(0xBBBBBB) : int(palette[number + 1])
marker(label) = markers == 2 ? (label == 0 ? 2 : 7) : 7
size_of(label) = marker(label) == 2 ? 0.45 : 0.35
)";

constexpr std::string_view kTsnePlot =
    R"(plot data index 0 using 2:3:(size_of($4)):(marker($4)):(color(column(by))) \
       with points ps variable pt variable lc rgb variable notitle)";

std::set<int64_t> numbers_present(const at::Tensor& number_N) {
  const auto* const numbers = number_N.const_data_ptr<int64_t>();
  return {numbers, numbers + number_N.numel()};
}

/// Returns the colours of the kinds: Okabe and Ito's, distinguishable for colour-blind readers, for
/// present kinds if they suffice, else colours around the circle of hues.
std::vector<std::string> palette_of(size_t kinds, const std::set<int64_t>& present) {
  static const std::vector<std::string> kFew = {"0072B2", "D55E00", "009E73", "CC79A7",
                                                "E69F00", "56B4E9", "F0E442", "000000"};
  if (kinds <= kFew.size()) return kFew;
  std::vector<std::string> colors;
  if (present.size() <= kFew.size()) {
    colors.assign(kinds, kFew.back());
    size_t next = 0;
    for (const int64_t number : present) {
      if (number >= 0) colors[static_cast<size_t>(number)] = kFew[next++];
    }
    return colors;
  }
  for (size_t i = 0; i < kinds; ++i) {
    std::array<int, 3> rgb{};
    for (size_t c = 0; c < 3; ++c) {
      const double turn =
          static_cast<double>(i) / static_cast<double>(kinds) + static_cast<double>(c) / 3.0;
      const double level = 0.5 + 0.5 * std::cos(2.0 * M_PI * turn);
      rgb[c] = static_cast<int>(std::lround(40.0 + (i % 2 == 0 ? 190.0 : 140.0) * level));
    }
    colors.push_back(fmt::format("{:02X}{:02X}{:02X}", rgb[0], rgb[1], rgb[2]));
  }
  return colors;
}

/// Meaning of the colours of points: the column in the data, each point's number, and the names of
/// the numbers.
struct Coloring {
  int column = 0;
  at::Tensor number_N;
  std::vector<std::string> names;
};

Coloring coloring_of(const EvaluationPoints& points) {
  if (points.color == "class") return {4, points.label_N, points.classes};
  if (points.color == "group") return {7, points.group_N, points.groups};
  Coloring coloring{6, points.expert_N, {}};
  for (int64_t e = 0; e < points.experts; ++e) {
    coloring.names.push_back(fmt::format("expert {}", e + 1));
  }
  return coloring;
}

/// Returns a plot without points that adds an entry to the key.
std::string key_entry(const std::string& name, const std::string& style) {
  return fmt::format(", \\\n     NaN with points {} title {}", style, gnuplot_quoted(name));
}

std::string tsne_key(const EvaluationPoints& points, const Coloring& coloring) {
  const std::set<int64_t> present = numbers_present(coloring.number_N);
  const std::set<int64_t> labels = numbers_present(points.label_N);
  std::string key;
  if (present.size() > kMaxKey) return key;
  for (const int64_t number : present) {
    const std::string name =
        number < 0 ? "no expert" : coloring.names.at(static_cast<size_t>(number));
    key += key_entry(name, fmt::format("pt 5 ps 1 lc rgb color({})", number));
  }
  if (points.classes.size() == 2) {
    for (const int64_t label : labels) {
      key += key_entry(points.classes[static_cast<size_t>(label)],
                       fmt::format("pt marker({}) ps 0.7 lc rgb ink", label));
    }
  }
  return key;
}

std::string number_or_dash(const at::Tensor& numbers, int64_t i) {
  return numbers.defined() ? fmt::to_string(numbers[i].item<int64_t>()) : "-";
}

std::string tsne_points(const EvaluationPoints& points, const at::Tensor& y_N2) {
  std::string text = "# image\tx\ty\tlabel\tpredicted\texpert (from 0)\tgroup\n";
  for (int64_t i = 0; i < y_N2.size(0); ++i) {
    text += fmt::format("{}\t{:.4f}\t{:.4f}", points.index_N[i].item<int64_t>(),
                        y_N2[i][0].item<double>(), y_N2[i][1].item<double>());
    for (const at::Tensor* numbers :
         {&points.label_N, &points.predicted_N, &points.expert_N, &points.group_N}) {
      text += "\t" + number_or_dash(*numbers, i);
    }
    text += "\n";
  }
  return text;
}

/// Returns the data of the grid; blank lines separate rows.
std::string tsne_grid(const PlaneGrid& grid) {
  std::string text = "\n\n# x\ty\tshare of predictions of the second class nearby\n";
  for (int64_t r = 0; r < grid.y_G.size(0); ++r) {
    for (int64_t c = 0; c < grid.x_G.size(0); ++c) {
      text += fmt::format("{:.4f}\t{:.4f}\t{:.4f}\n", grid.x_G[c].item<double>(),
                          grid.y_G[r].item<double>(), grid.value_GG[r][c].item<double>());
    }
    text += "\n";
  }
  return text;
}

bool crosses_half(const PlaneGrid& grid) {
  return grid.value_GG.min().item<double>() < 0.5 && grid.value_GG.max().item<double>() > 0.5;
}

}  // namespace

void check_new_figure(const fs::path& file, const std::string& what) {
  const std::string extension = file.extension().string();
  if (extension != ".png" && extension != ".svg") {
    fail_usage("{}: the figure's name must end in .png or .svg, found '{}'", what, file.string());
  }
  for (const fs::path& path : {file, script_beside(file), data_beside(file)}) {
    check_new_file(path, what);
  }
  check_can_draw(file.parent_path());
}

PlaneGrid plane_average(const at::Tensor& y_N2, const at::Tensor& value_N, int64_t nodes) {
  constexpr double kRoom = 0.04;
  const at::Tensor min = std::get<0>(y_N2.min(0)), max = std::get<0>(y_N2.max(0));
  const at::Tensor room = (max - min).max() * kRoom;
  const auto axis = [&](int64_t i) {
    return at::linspace((min[i] - room).item<double>(), (max[i] + room).item<double>(), nodes,
                        at::kDouble);
  };
  const double area = (max - min).clamp_min(1e-12).prod().item<double>();
  const double squared_width = area / static_cast<double>(y_N2.size(0));
  PlaneGrid grid{axis(0), axis(1), at::empty({nodes, nodes}, at::kDouble)};
  for (int64_t r = 0; r < nodes; ++r) {
    const at::Tensor node_G2 = at::stack({grid.x_G, grid.y_G[r].expand({nodes})}, 1);
    const at::Tensor squares_GN = (node_G2.unsqueeze(1) - y_N2.unsqueeze(0)).square().sum(2);
    const at::Tensor weight_GN = at::softmax(squares_GN * (-0.5 / squared_width), 1);
    grid.value_GG[r].copy_(weight_GN.mv(value_N.to(at::kDouble)));
  }
  return grid;
}

Figure tsne_figure(const EvaluationPoints& points, const at::Tensor& y_N2, bool boundary,
                   const fs::path& file) {
  const Coloring coloring = coloring_of(points);
  Figure figure;
  figure.data = tsne_points(points, y_N2);
  bool drawn_boundary = false;
  if (boundary) {
    const PlaneGrid grid = plane_average(y_N2, points.predicted_N, kGridNodes);
    drawn_boundary = crosses_half(grid);
    if (drawn_boundary) figure.data += tsne_grid(grid);
  }
  const std::vector<std::string> palette =
      palette_of(coloring.names.size(), numbers_present(coloring.number_N));
  figure.script = fmt::format(
      "# gnuplot {} draws {} from {}\ndata = {}\nfile = {}\n"
      "by = {}  # the column that the colour shows\n"
      "markers = {}  # kinds of markers, for labels\n"
      "boundary = {}\n",
      script_beside(file).filename().string(), file.filename().string(),
      data_beside(file).filename().string(), gnuplot_quoted(data_beside(file).filename().string()),
      gnuplot_quoted(file.filename().string()), coloring.column, points.classes.size() == 2 ? 2 : 1,
      drawn_boundary ? 1 : 0);
  figure.script += fmt::format("array palette[{}] = [", palette.size());
  for (size_t i = 0; i < palette.size(); ++i) {
    figure.script += fmt::format("{}0x{}", i == 0 ? "" : ", ", palette[i]);
  }
  figure.script += "]\n" + std::string(kTsneScript) + std::string(kTsnePlot);
  if (drawn_boundary) {
    figure.script += ", \\\n     $boundary using 1:2 with lines lc rgb ink lw 1.5 title 'boundary'";
  }
  figure.script += tsne_key(points, coloring) + "\n";
  return figure;
}

bool draw_tsne(const EvaluationPoints& points, bool boundary, const fs::path& file,
               const std::function<bool(int64_t done, int64_t total)>& proceed) {
  bool stopped = false;
  TsneOptions options;
  options.perplexity = std::min(options.perplexity, static_cast<double>(points.x_ND.size(0)) / 3.0);
  options.proceed = [&](int64_t done, int64_t total) {
    stopped = proceed && !proceed(done, total);
    return !stopped;
  };
  const at::Tensor y_N2 = tsne(points.x_ND, options);
  if (stopped) return false;
  draw_figure_file(file, tsne_figure(points, y_N2, boundary, file));
  return true;
}

}  // namespace moesaic
