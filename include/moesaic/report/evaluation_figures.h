// SPDX-License-Identifier: Apache-2.0
// Figures of an evaluation: its confusion matrix, its mistakes, t-SNE of its images, and the
// patches of each expert.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "moesaic/data/dataset.h"
#include "moesaic/report/figure.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

/// More classes are written as CSV only.
inline constexpr size_t kMaxFigureClasses = 200;

/// Throws Error (usage) unless `file` ends in .png, .svg or .csv and is new, with the script and
/// data of a figure; Error (failure) if it could not be written.
void check_new_confusion(const fs::path& file, const std::string& what);

/// Throws Error (usage) where the data have no classes, or too many for such a file.
void check_confusion_classes(const DatasetInfo& data, const fs::path& file);

/// Returns the matrix with a heading line and the names of the classes in the first column.
std::string confusion_csv(const ConfusionMatrix& confusion,
                          const std::vector<std::string>& classes);

/// Returns a heat map of the matrix; `stem` names its files.
Figure confusion_figure(const ConfusionMatrix& confusion, const std::vector<std::string>& classes,
                        const std::string& title, const std::string& stem);

/// Writes the matrix as `file`, whole or not at all; a figure with its script and data beside it
/// (draw_figure_file()).
void write_confusion(const ConfusionMatrix& confusion, const std::vector<std::string>& classes,
                     const std::string& title, const fs::path& file);

/// Throws Error (usage) unless `file` is new, with the table beside it, and ends in .png; Error
/// (failure) if it could not be written.
void check_new_mistakes(const fs::path& file);

/// Throws Error (usage) for data that are no images of classes.
void check_can_show_mistakes(const DatasetInfo& data);

/// Draws at most `count` mistakes of the largest confidence on a sheet, row by row, and writes a
/// .csv table beside it: file, index, label, prediction and confidence of each. Returns how many
/// there are; without any, nothing is written.
int64_t write_mistakes(const CheckpointEvaluation& result, int64_t count, const fs::path& file);

inline constexpr int64_t kMinPoints = 10, kMaxPoints = 10000;

/// Selection of an evaluation's images as points, and their features.
struct EvaluationPointsOptions {
  std::string features = "embedding";  ///< "embedding", or "inputs" for flattened inputs.
  int64_t num_points = 2000;           ///< Max number, drawn by `seed` where there are more.
  std::string color;  ///< "expert", "class" or "group"; empty means expert if possible.
  std::optional<std::string> only_class;  ///< Restricts points to this class.
  std::vector<std::string> only_groups;   ///< Restricts points to these groups; empty means all.
  bool has_boundary = false;              ///< For a figure of the boundary between two classes.
  uint64_t seed = 1;
};

/// A sample of an evaluation's images as points: their inputs or embeddings, with labels,
/// predictions and experts.
struct EvaluationPoints {
  std::string data;                          ///< Name of the dataset.
  std::vector<std::string> classes, groups;  ///< Names of classes and groups.
  int64_t num_experts = 0;                   ///< Rows of the last layer's router.
  std::string color;                         ///< "expert", "class" or "group".
  at::Tensor x_ND;                           ///< Points, float32.
  at::Tensor index_N;                        ///< Index of each image in the split.
  /// Labels of the points, int64. The predicted class has the largest logit, for an ensemble the
  /// largest mean probability. The expert is the one that the last MoE layer routed the image to,
  /// -1 for a dropped image; undefined where that layer does not route images to one expert each.
  /// Groups are undefined where the dataset has none.
  at::Tensor label_N, predicted_N, expert_N, group_N;
};

/// Collects the points from the batches of an evaluation. Throws Error (usage), at the first batch,
/// for a class or group that the dataset lacks, fewer than kMinPoints images, a color that is not
/// available, and a boundary between more than two classes.
class EvaluationPointCollector {
 public:
  /// Takes the options, which the first batch checks.
  explicit EvaluationPointCollector(EvaluationPointsOptions options)
      : options_(std::move(options)) {}

  /// Adds a batch.
  void add(const EvaluatedBatch& batch);
  /// Returns the points, after the last batch.
  EvaluationPoints points() const;

 private:
  void begin(const EvaluatedBatch& batch);

  EvaluationPointsOptions options_;
  EvaluationPoints info_;
  std::vector<int64_t> chosen_;  ///< Indices of the points, ascending.
  size_t next_ = 0;              ///< First point that is not collected yet.
  bool has_one_expert_ = true;
  std::vector<at::Tensor> x_, label_, predicted_, expert_, group_;
};

/// Exact t-SNE (van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 2008): embeds
/// points of many dimensions in a plane. Time and memory are quadratic in the number of points, so
/// that it suits some thousand.
struct TsneOptions {
  double perplexity = 30.0;  ///< Effective number of neighbours.
  /// Called after each iteration; false ends the descent early.
  std::function<bool(int64_t done, int64_t total)> on_progress;
};

/// Returns p_ij = (p_j|i + p_i|j) / 2N, [N, N] float64, symmetric with sum 1. p_j|i is proportional
/// to exp(-|x_i - x_j|^2 / 2 sigma_i^2), and sigma_i gives row i the perplexity 2^entropy =
/// `perplexity` (section 2). x_ND is [N, D] of any floating type with N >= 2. Throws Error (usage)
/// for a perplexity that is not between 1 and N - 1.
at::Tensor tsne_affinities(const at::Tensor& x_ND, double perplexity);

/// Returns the gradient [N, 2] of KL(P || Q), eq. 2, with q_ij ~ 1 / (1 + |y_i - y_j|^2) (eq. 4):
/// 4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2) (eq. 5); y_N2 has P's dtype.
at::Tensor tsne_gradient(const at::Tensor& p_NN, const at::Tensor& y_N2);

/// Returns the embedded points, [N, 2] float64. Starts from the first two principal components, so
/// that the result is deterministic; gradient descent with momentum 0.5, then 0.8, and a gain for
/// each coordinate.
at::Tensor tsne(const at::Tensor& x_ND, const TsneOptions& options = {});

/// Values on a square grid that covers the points y_N2 [N, 2] float64 with a margin.
struct PlaneGrid {
  at::Tensor x_G, y_G;  ///< Coordinates of the nodes, float64.
  at::Tensor value_GG;  ///< Values [row of y, column of x] float64.
};

/// Returns at each node the mean of value_N [N] over the points, weighted by
/// exp(-|node - point|^2 / 2 h^2), with h the spacing of as many points on a regular grid over
/// their rectangle; far from all points the value of the nearest.
PlaneGrid plane_average(const at::Tensor& y_N2, const at::Tensor& value_N, int64_t nodes);

/// Returns a figure of the points at y_N2 [N, 2], colored by points.color, with a marker for the
/// label where there are two classes. With `has_boundary` it shows the lines where the averaged
/// prediction (plane_average()) is half of each class, if predictions differ.
Figure tsne_figure(const EvaluationPoints& points, const at::Tensor& y_N2, bool has_boundary,
                   const std::string& stem);

/// Draws t-SNE of the points with a perplexity of 30, or a third of the points for fewer than 91,
/// as `file` with script and data beside it (draw_figure_file()). `on_progress` is that of
/// TsneOptions; if it returns false nothing is written. Returns whether the figure was drawn.
bool draw_tsne(const EvaluationPoints& points, bool has_boundary, const fs::path& file,
               const std::function<bool(int64_t done, int64_t total)>& on_progress);

inline constexpr int64_t kMaxRoutingImages = 64;

/// The first images of an evaluation, and their routing in the last MoE layer.
struct RoutedImages {
  std::string title;             ///< The data and the layer.
  at::Tensor pixels_NCHW;        ///< Bytes.
  at::Tensor weight_NPK;         ///< Weight of each patch for each kept expert, 0 where not routed.
  Size2d grid;                   ///< P = grid.height * grid.width patches, row by row.
  std::vector<int64_t> experts;  ///< Ids of the kept experts.
};

/// Collects these images from the batches of an evaluation. Throws Error (usage), at the first
/// batch, for data that are no images and for a network without a layer that routes patches.
class RoutedImageCollector {
 public:
  /// Collects the first `images` images.
  explicit RoutedImageCollector(int64_t images) : wanted_(images) {}

  /// Adds a batch.
  void add(const EvaluatedBatch& batch);
  /// Returns the images, after the last batch.
  RoutedImages images() const;

 private:
  void begin(const EvaluatedBatch& batch);

  int64_t wanted_;
  RoutedImages routed_images_;
  std::vector<at::Tensor> pixels_, weights_;
};

/// Returns a figure with a panel for each expert: all images, dimmed but for the patches that it
/// got, which have a frame.
Figure routing_images_figure(const RoutedImages& images, const std::string& stem);

}  // namespace moesaic
