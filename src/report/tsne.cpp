// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/evaluation_figures.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <cmath>
#include <set>

#include "moesaic/base/error.h"
#include "moesaic/base/random.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "panels.h"

namespace moesaic {
namespace {

/// Returns the expert of each image, [B], -1 for none; undefined if an image has several.
at::Tensor experts_of_images(const ModelOutput& output, int64_t images) {
  if (output.routings.empty()) return {};
  const RoutingRecord& record = output.routings.back();
  if (record.num_members > 1 || record.routing.num_tokens() != images) return {};
  const at::Tensor rows_of_image = record.routing.token_offsets.diff().to(at::kCPU, at::kLong);
  if (rows_of_image.max().item<int64_t>() > 1) return {};
  const at::Tensor row_expert = row_experts(record.routing).to(at::kCPU);
  const at::Tensor token = record.routing.token.to(at::kCPU, at::kLong);
  const auto rows = rows_of_image.sum().item<int64_t>();
  const at::Tensor ids = at::tensor(record.kept, at::kLong);
  at::Tensor expert_B = at::full({images}, -1, at::kLong);
  expert_B.index_copy_(0, token.narrow(0, 0, rows),
                       ids.index_select(0, row_expert.narrow(0, 0, rows)));
  return expert_B;
}

/// Returns the predicted classes [B] of logits [B members, C].
at::Tensor predicted_classes(const at::Tensor& logits, int64_t images) {
  if (logits.size(0) == images) return logits.argmax(1).cpu();
  return logits.view({images, -1, logits.size(1)}).softmax(2).mean(1).argmax(1).cpu();
}

at::Tensor joined_numbers(const std::vector<at::Tensor>& parts) {
  return parts.empty() ? at::Tensor() : at::cat(parts);
}

/// Returns the index of `name` among the dataset's names of this kind.
int64_t number_of_name(const std::string& name, const char* kind,
                       const std::vector<std::string>& names, const std::string& data) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    fail_usage("'{}' has no {} '{}'; {}", data, kind, name,
               names.empty() ? "it has no groups" : did_you_mean(name, names));
  }
  return found - names.begin();
}

/// Indices of the requested images, and their description.
struct Candidates {
  std::vector<int64_t> images;
  std::string of;
};

Candidates candidates_of(const Dataset& dataset, const EvaluationPointsOptions& options) {
  const DatasetInfo& info = dataset.info();
  Candidates found{{}, fmt::format("'{}'", info.name)};
  std::optional<int64_t> label;
  if (options.only_class) {
    label = number_of_name(*options.only_class, "class", info.classes, info.name);
    found.of = fmt::format("class '{}' of {}", *options.only_class, found.of);
  }
  std::set<int64_t> groups;
  for (const std::string& name : options.only_groups) {
    groups.insert(number_of_name(name, "group", info.groups, info.name));
  }
  if (!groups.empty()) {
    found.of = fmt::format("group {} of {}", fmt::join(options.only_groups, ", "), found.of);
  }
  for (int64_t i = 0; i < dataset.size(); ++i) {
    if (label && dataset.label(i) != *label) continue;
    if (groups.empty() || groups.count(dataset.group(i)) > 0) found.images.push_back(i);
  }
  return found;
}

at::Tensor squared_distances(const at::Tensor& x_ND) {
  const at::Tensor squares = x_ND.square().sum(1);
  return (squares.unsqueeze(0) + squares.unsqueeze(1) - 2.0 * x_ND.mm(x_ND.t())).clamp_min(0.0);
}

/// Computes p_j|i of one row of distances, by bisection on beta = 1 / 2 sigma^2.
void conditional_affinities(const double* distances, int64_t count, int64_t self, double entropy,
                            double* p) {
  constexpr int kSteps = 100;
  constexpr double kTolerance = 1e-5;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double low = 0.0, high = kInfinity, beta = 1.0, nearest = kInfinity;
  for (int64_t j = 0; j < count; ++j) {
    if (j != self) nearest = std::min(nearest, distances[j]);
  }
  for (int step = 0; step < kSteps; ++step) {
    double sum = 0.0, weighted = 0.0;
    for (int64_t j = 0; j < count; ++j) {
      p[j] = j == self ? 0.0 : std::exp(-beta * (distances[j] - nearest));
      sum += p[j];
      weighted += p[j] * (distances[j] - nearest);
    }
    const double off = std::log(sum) + beta * weighted / sum - entropy;
    for (int64_t j = 0; j < count; ++j) p[j] /= sum;
    if (std::abs(off) <= kTolerance) return;
    (off > 0 ? low : high) = beta;
    beta = std::isinf(high) ? 2.0 * beta : (low + high) / 2.0;
  }
}

/// Returns the first two principal components, the first with a standard deviation of 1e-4.
at::Tensor principal_components(const at::Tensor& x_ND) {
  const at::Tensor centred = x_ND - x_ND.mean(0, true);
  auto [u, s, vt] = at::linalg_svd(centred, /*full_matrices=*/false);
  at::Tensor y = at::zeros({x_ND.size(0), 2}, x_ND.options());
  const int64_t found = std::min<int64_t>(2, s.size(0));
  y.narrow(1, 0, found).copy_(u.narrow(1, 0, found) * s.narrow(0, 0, found));
  // The sign of a singular vector is arbitrary: the largest coordinate is made positive.
  const at::Tensor largest = y.gather(0, y.abs().argmax(0, true));
  y = y * at::where(largest < 0, -1.0, 1.0);
  return y * (1e-4 / y.select(1, 0).std(/*unbiased=*/false).clamp_min(1e-300));
}

constexpr int64_t kGridNodes = 121;
constexpr size_t kMaxKey = 20;

// The boundary is a table that gnuplot makes, in which spaces part the columns.
// Columns of the data are counted from 1: image, x, y, label, predicted, expert, group.
constexpr const char* kTsneStyle = R"(  set border 15
  unset tics
  unset grid
  set size ratio -1
  set offsets graph 0.03, graph 0.03, graph 0.03, graph 0.03
  set key outside right center Left reverse samplen 1 spacing 1.2 textcolor rgb ink noenhanced
  color(number) = number < 0 ? int(0xBBBBBB) : int(palette[number + 1])
  marker(label) = markers == 2 ? (label == 0 ? 2 : 7) : 7
  size_of(label) = marker(label) == 2 ? 0.45 : 0.35
)";

constexpr const char* kTsneBoundary = R"(  set datafile separator whitespace
  set contour base
  set cntrparam levels discrete 0.5
  unset surface
  set table $boundary
  splot data index 1 using 1:2:3 with lines
  unset table
  unset contour
  set surface
)";

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
    const auto level = [&](double shift) {
      const double turn = static_cast<double>(i) / static_cast<double>(kinds) + shift;
      const double part = 0.5 + 0.5 * std::cos(2.0 * M_PI * turn);
      return std::lround(40.0 + (i % 2 == 0 ? 190.0 : 140.0) * part);
    };
    colors.push_back(
        fmt::format("{:02X}{:02X}{:02X}", level(0.0), level(1.0 / 3.0), level(2.0 / 3.0)));
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
  return {6, points.expert_N, numbered("expert ", points.num_experts)};
}

/// Adds plots without points, each an entry of the key.
void add_tsne_key(const EvaluationPoints& points, const Coloring& coloring, Panel& panel) {
  const auto add = [&](const std::string& name, const std::string& style) {
    panel.plots.push_back(fmt::format("NaN with points {} title {}", style, gnuplot_quoted(name)));
  };
  const std::set<int64_t> present = numbers_present(coloring.number_N);
  if (present.size() > kMaxKey) return;
  for (const int64_t number : present) {
    add(number < 0 ? "no expert" : coloring.names.at(static_cast<size_t>(number)),
        fmt::format("pt 5 ps 1 lc rgb color({})", number));
  }
  if (points.classes.size() != 2) return;
  for (const int64_t label : numbers_present(points.label_N)) {
    add(points.classes[static_cast<size_t>(label)],
        fmt::format("pt marker({}) ps 0.7 lc rgb ink", label));
  }
}

std::string tsne_points(const EvaluationPoints& points, const at::Tensor& y_N2) {
  std::string text = "# image\tx\ty\tlabel\tpredicted\texpert (from 0)\tgroup\n";
  for (int64_t i = 0; i < y_N2.size(0); ++i) {
    text += fmt::format("{}\t{:.4f}\t{:.4f}", points.index_N[i].item<int64_t>(),
                        y_N2[i][0].item<double>(), y_N2[i][1].item<double>());
    for (const at::Tensor* numbers :
         {&points.label_N, &points.predicted_N, &points.expert_N, &points.group_N}) {
      text += "\t" + (numbers->defined() ? fmt::to_string((*numbers)[i].item<int64_t>()) : "-");
    }
    text += "\n";
  }
  return text;
}

/// Returns the data of the grid; blank lines separate rows.
std::string tsne_grid(const PlaneGrid& grid) {
  std::string text = "# x\ty\tshare of predictions of the second class nearby\n";
  for (int64_t r = 0; r < grid.y_G.size(0); ++r) {
    for (int64_t c = 0; c < grid.x_G.size(0); ++c) {
      text += fmt::format("{:.4f}\t{:.4f}\t{:.4f}\n", grid.x_G[c].item<double>(),
                          grid.y_G[r].item<double>(), grid.value_GG[r][c].item<double>());
    }
    text += "\n";
  }
  return text;
}

}  // namespace

void EvaluationPointCollector::begin(const EvaluatedBatch& batch) {
  const DatasetInfo& data = batch.dataset.info();
  info_ = {.data = data.name, .classes = data.classes, .groups = data.groups};
  if (!batch.output.routings.empty()) {
    info_.num_experts = batch.output.routings.back().logits_TE.size(1);
  }
  if (data.classes.empty()) {
    fail_usage("an image by t-SNE shows classes, but the targets of '{}' are real numbers",
               data.name);
  }
  if (options_.has_boundary && data.classes.size() != 2) {
    fail_usage(
        "'{}' has {}; a decision boundary is drawn between two classes; leave --tsne-boundary out",
        data.name, count_text(std::ssize(data.classes), "class"));
  }
  if (options_.color == "group" && !batch.groups_B.defined()) {
    fail_usage("'{}' has no groups to colour by; choose expert or class", data.name);
  }
  const Candidates candidates = candidates_of(batch.dataset, options_);
  const int64_t count = std::ssize(candidates.images);
  if (std::min(count, options_.num_points) < kMinPoints) {
    fail_usage("an image by t-SNE needs {} points, {} has {}", kMinPoints, candidates.of, count);
  }
  const std::vector<int64_t> order =
      permutation(count, options_.seed, stream_id("report.evaluation_points"));
  for (int64_t i = 0; i < std::min(count, options_.num_points); ++i) {
    chosen_.push_back(candidates.images[static_cast<size_t>(order[static_cast<size_t>(i)])]);
  }
  std::sort(chosen_.begin(), chosen_.end());
}

void EvaluationPointCollector::add(const EvaluatedBatch& batch) {
  if (info_.data.empty()) begin(batch);
  const int64_t images = batch.labels_B.size(0);
  std::vector<int64_t> places;
  for (; next_ < chosen_.size() && chosen_[next_] < batch.first + images; ++next_) {
    places.push_back(chosen_[next_] - batch.first);
  }
  if (places.empty()) return;
  const at::Tensor rows = at::tensor(places, at::kLong);
  const at::Tensor& from =
      options_.features == "inputs" ? batch.images_BCHW : batch.output.pre_logits;
  x_.push_back(
      from.reshape({images, -1}).index_select(0, rows.to(from.device())).to(at::kCPU, at::kFloat));
  label_.push_back(batch.labels_B.index_select(0, rows));
  predicted_.push_back(predicted_classes(batch.output.logits, images).index_select(0, rows));
  if (batch.groups_B.defined()) group_.push_back(batch.groups_B.index_select(0, rows));
  const at::Tensor expert_B = experts_of_images(batch.output, images);
  has_one_expert_ = has_one_expert_ && expert_B.defined();
  if (has_one_expert_) expert_.push_back(expert_B.index_select(0, rows));
  if (!has_one_expert_ && options_.color == "expert") {
    fail_usage("the network does not send each image to one expert; colour by class or group");
  }
}

EvaluationPoints EvaluationPointCollector::points() const {
  EvaluationPoints points = info_;
  points.color = !options_.color.empty() ? options_.color : has_one_expert_ ? "expert" : "class";
  points.x_ND = joined_numbers(x_);
  points.index_N = at::tensor(chosen_, at::kLong);
  points.label_N = joined_numbers(label_);
  points.predicted_N = joined_numbers(predicted_);
  points.group_N = joined_numbers(group_);
  if (has_one_expert_) points.expert_N = joined_numbers(expert_);
  return points;
}

at::Tensor tsne_affinities(const at::Tensor& x_ND, double perplexity) {
  const int64_t count = x_ND.size(0);
  if (!(perplexity >= 1.0 && perplexity <= static_cast<double>(count - 1))) {
    fail_usage("t-SNE: perplexity must be between 1 and {} for {} points, found {}", count - 1,
               count, perplexity);
  }
  const at::Tensor distances = squared_distances(x_ND.to(at::kDouble)).contiguous();
  at::Tensor p = at::empty({count, count}, at::kDouble);
  const auto* from = distances.const_data_ptr<double>();
  auto* const to = p.mutable_data_ptr<double>();
  at::parallel_for(0, count, 16, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      conditional_affinities(from + i * count, count, i, std::log(perplexity), to + i * count);
    }
  });
  p = p + p.t();
  return p / p.sum();
}

at::Tensor tsne_gradient(const at::Tensor& p_NN, const at::Tensor& y_N2) {
  const at::Tensor weight = (1.0 + squared_distances(y_N2)).reciprocal().fill_diagonal_(0.0);
  const at::Tensor pull = (p_NN - weight / weight.sum()) * weight;
  return 4.0 * (pull.sum(1, true) * y_N2 - pull.mm(y_N2));
}

at::Tensor tsne(const at::Tensor& x_ND, const TsneOptions& options) {
  constexpr int64_t kIterations = 1000, kExaggerated = 250;  // In all, and of these the first.
  constexpr double kExaggeration = 12.0;                     // Factor on affinities.
  const torch::NoGradGuard no_grad;
  const at::Tensor x = x_ND.to(at::kDouble);
  const double rate = std::max(static_cast<double>(x.size(0)) / kExaggeration / 4.0, 50.0);
  // The descent runs in float32: four times as fast and precise enough for an image.
  const at::Tensor p = tsne_affinities(x, options.perplexity).to(at::kFloat);
  const at::Tensor exaggerated = p * kExaggeration;
  at::Tensor y = principal_components(x).to(at::kFloat);
  at::Tensor move = at::zeros_like(y), gain = at::ones_like(y);
  for (int64_t i = 0; i < kIterations; ++i) {
    const bool early = i < kExaggerated;
    const at::Tensor grad = tsne_gradient(early ? exaggerated : p, y);
    gain = at::where((grad > 0) == (move > 0), gain * 0.8, gain + 0.2).clamp_min(0.01);
    move = (early ? 0.5 : 0.8) * move - rate * gain * grad;
    y = y + move;
    if (options.on_progress && !options.on_progress(i + 1, kIterations)) break;
  }
  return y.to(at::kDouble);
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

Figure tsne_figure(const EvaluationPoints& points, const at::Tensor& y_N2, bool has_boundary,
                   const std::string& stem) {
  const Coloring coloring = coloring_of(points);
  Panel panel;
  panel.plot(tsne_points(points, y_N2),
             "using 2:3:(size_of($4)):(marker($4)):(color(column(by))) with points ps variable "
             "pt variable lc rgb variable notitle");
  if (has_boundary) {
    const PlaneGrid grid = plane_average(y_N2, points.predicted_N, kGridNodes);
    has_boundary =
        grid.value_GG.min().item<double>() < 0.5 && grid.value_GG.max().item<double>() > 0.5;
    if (has_boundary) panel.blocks.push_back(tsne_grid(grid));
  }
  const std::vector<std::string> palette =
      palette_of(coloring.names.size(), numbers_present(coloring.number_N));
  panel.commands =
      fmt::format("  by = {}\n  markers = {}\n  array palette[{}] = [0x{}]\n{}{}", coloring.column,
                  points.classes.size() == 2 ? 2 : 1, palette.size(), fmt::join(palette, ", 0x"),
                  kTsneStyle, has_boundary ? kTsneBoundary : "");
  if (has_boundary) {
    panel.plots.push_back("$boundary using 1:2 with lines lc rgb ink lw 1.5 title 'boundary'");
  }
  add_tsne_key(points, coloring, panel);
  return panel_figure(stem, {panel}, {.width = 720, .height = 560, .fits_margins = true});
}

bool draw_tsne(const EvaluationPoints& points, bool has_boundary, const fs::path& file,
               const std::function<bool(int64_t done, int64_t total)>& on_progress) {
  bool stopped = false;
  TsneOptions options;
  options.perplexity = std::min(options.perplexity, static_cast<double>(points.x_ND.size(0)) / 3.0);
  options.on_progress = [&](int64_t done, int64_t total) {
    stopped = on_progress && !on_progress(done, total);
    return !stopped;
  };
  const at::Tensor y_N2 = tsne(points.x_ND, options);
  if (stopped) return false;
  draw_figure_file(file, tsne_figure(points, y_N2, has_boundary, file.stem().string()));
  return true;
}

}  // namespace moesaic
