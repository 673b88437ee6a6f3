// SPDX-License-Identifier: Apache-2.0
// Predictions for image files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moesaic/data/input_spec.h"
#include "moesaic/models/model.h"

namespace moesaic {

struct PredictImagesOptions {
  int64_t batch_size = 32;  ///< Images at a time, where they do not change each other's result.
  int64_t top = 5;          ///< Most probable classes of an image.
  bool routing = false;     ///< Also returns the experts of each token.
  std::string loss;         ///< Loss of training, see train/objective.h; empty means softmax.
};

struct PredictedClass {
  int64_t index = 0;
  double probability = 0.0;
};

/// The experts that computed each token of an image in one MoE layer, with their gates, best choice
/// first in token choice. Choices that were dropped or pruned are left out.
struct ImageRouting {
  int64_t block = 0;
  std::vector<std::vector<int64_t>> experts;  ///< By token.
  std::vector<std::vector<double>> gates;
};

struct ImagePrediction {
  std::filesystem::path file;
  std::string problem;              ///< Why the file cannot be read; then the rest is empty.
  std::vector<PredictedClass> top;  ///< By falling probability, on ties by index.
  std::vector<ImageRouting> routing;
};

/// Runs the network on image files, which become inputs as `spec` says, turned as EXIF says, and
/// calls `take` with each prediction, in order; false ends the work. Memory holds one batch.
/// Probabilities are softmax(logits), or sigmoid(logits) for a sigmoid loss, and for an ensemble
/// the mean over its members.
///
/// An image's result does not depend on the other files: where images of a batch would compete for
/// the capacity of experts, or draw noise in evaluation, each is run alone.
///
/// Throws Error (usage) for a network without classes or whose inputs are no images, Error where
/// `spec` lacks mean and std.
void predict_images(Model& model, const InputSpec& spec,
                    const std::vector<std::filesystem::path>& files,
                    const PredictImagesOptions& options,
                    const std::function<bool(const ImagePrediction&)>& take);

/// Returns {"file", "top": [{"class", "index", "probability"}, ...]} and with routing "routing":
/// [{"layer", "experts", "gates"}, ...], lists of a list for each token; or {"file", "error"}.
nlohmann::ordered_json to_json(const ImagePrediction& prediction,
                               const std::vector<std::string>& classes);
/// Returns a line for each class: file, rank from 1, class, probability.
std::string to_csv(const ImagePrediction& prediction, const std::vector<std::string>& classes);
/// Returns "file: class 97.31 %, class 1.20 %".
std::string to_text(const ImagePrediction& prediction, const std::vector<std::string>& classes);

}  // namespace moesaic
