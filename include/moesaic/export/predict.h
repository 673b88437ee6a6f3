// SPDX-License-Identifier: Apache-2.0
// Inference on a file of images, and the features of an evaluation.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "moesaic/base/file.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/models/model.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

/// Options of predict() and predict_images().
struct PredictOptions {
  bool returns_routing = false;            ///< Also returns the routing of each MoE layer.
  std::optional<int64_t> batch_size = {};  ///< Images per batch; unset: 256, or 32 of image files.
  int64_t top_k = 5;                       ///< Number of most probable classes of an image file.
  std::string loss;  ///< Loss of training, see train/objective.h; empty means softmax.
};

/// Runs the network on images_BCHW [B, C, H, W] float32, normalised. Returns "logits" [B, classes]
/// and "pre_logits" [B, d]; with `returns_routing`, for the MoE layer of each block i, also
/// "routing.<i>.logits" [T, E] and "routing.<i>.combine" [T, E]. The latter is the weight of expert
/// e's output in the output of token t: 0 where t is not routed to e or dropped, or e is pruned.
/// Tokens are ordered by image.
///
/// An ensemble of M members has M rows of "logits" and "pre_logits" per image, and "log_mean_prob"
/// [B, classes]: the log of the mean over members of softmax(logits), or of sigmoid(logits) for a
/// sigmoid loss. An ensemble's tokens are ordered by image, position and member; the logits for
/// other members' experts are -infinity, so that a row's softmax is the gates.
///
/// Without a head, "logits" are "pre_logits", as in the reference.
///
/// Where experts have a capacity, images of a batch compete for it, so all of them form one batch.
/// Where encoder.moe.group_size does not divide its tokens, the last group is smaller and routed as
/// if it were alone, or rejected if it has fewer tokens than an expert selects.
std::map<std::string, at::Tensor> predict(Model& model, const at::Tensor& images_BCHW,
                                          const PredictOptions& options = {});

/// Reads the tensor `images` from a safetensors file and writes what predict() returns to another,
/// atomically. Throws Error for a missing tensor, another dtype or shape or a value that is not
/// finite, and Error (usage) for an output that exists already.
void predict_file(Model& model, const fs::path& input, const fs::path& output,
                  const PredictOptions& options = {});

/// A safetensors file of an evaluation: "pre_logits" [N members, d] float32, an image's members in
/// a row, "labels" and "predictions" [N] int64. Features are kept in a temporary file beside it, so
/// that memory holds those of one batch.
class FeatureFile {
 public:
  /// Begins the temporary file. Throws Error (failure) where it cannot be written.
  explicit FeatureFile(const fs::path& file) : path_(file), file_(file) {}

  /// Adds a batch. Throws Error: failure for a full disk, usage for data without classes.
  void add(const EvaluatedBatch& batch);
  /// Writes the file, whole or not at all.
  void finish(const Predictions& predictions);

 private:
  fs::path path_;
  AtomicFile file_;  ///< Never put in place.
  int64_t num_rows_ = 0, width_ = 0;
};

// Predictions for image files.

/// A class with its probability.
struct PredictedClass {
  int64_t index = 0;
  double probability = 0.0;
};

/// The experts that computed each token of an image in one MoE layer, with their gates, best choice
/// first in token choice. Choices that were dropped or pruned are left out.
struct ImageRouting {
  int64_t block = 0;
  std::vector<std::vector<int64_t>> experts;  ///< Ids of experts by token.
  std::vector<std::vector<double>> gates;
};

/// The prediction for an image file.
struct ImagePrediction {
  fs::path file;
  std::string problem;              ///< Why the file cannot be read; then the rest is empty.
  std::vector<PredictedClass> top;  ///< Classes by falling probability, on ties by index.
  std::vector<ImageRouting> routing;
};

/// Runs the network on image files, which become inputs as `spec` says, turned as EXIF says, and
/// calls `on_prediction` with each prediction, in order; false ends the work. Memory holds one
/// batch. Probabilities are softmax(logits), or sigmoid(logits) for a sigmoid loss, and for an
/// ensemble the mean over its members.
///
/// An image's result does not depend on the other files: where images of a batch would compete for
/// the capacity of experts, or draw noise in evaluation, each is run alone.
///
/// Throws Error (usage) for a network without classes or whose inputs are no images, Error where
/// `spec` lacks mean and std.
void predict_images(Model& model, const InputSpec& spec, const std::vector<fs::path>& files,
                    const PredictOptions& options,
                    const std::function<bool(const ImagePrediction&)>& on_prediction);

/// Returns {"file", "top": [{"class", "index", "probability"}, ...]} and with routing "routing":
/// [{"layer", "experts", "gates"}, ...], lists of a list for each token; or {"file", "error"}.
Json to_json(const ImagePrediction& prediction, const std::vector<std::string>& classes);
/// Returns a line for each class: file, rank from 1, class, probability. Fields are quoted as RFC
/// 4180 says; in names, control characters and bytes that are no UTF-8 are escaped(), so that each
/// line is one row.
std::string to_csv(const ImagePrediction& prediction, const std::vector<std::string>& classes);
/// Returns "file: class 97.31 %, class 1.20 %".
std::string to_text(const ImagePrediction& prediction, const std::vector<std::string>& classes);

}  // namespace moesaic
