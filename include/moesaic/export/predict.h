// SPDX-License-Identifier: Apache-2.0
// A network applied to a file of images.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "moesaic/models/model.h"

namespace moesaic {

struct PredictOptions {
  bool routing = false;      ///< also what each MoE layer decided
  int64_t batch_size = 256;  ///< images at a time; all of them where experts have a capacity
  std::string loss;          ///< that trained the network, see classification_loss.h; empty: a softmax one
};

/// images_BCHW: [B, C, H, W] float32, normalised. Returns "logits" [B, classes], "pre_logits" [B,
/// d] and, with `routing`, for the MoE layer of each block i "routing.<i>.logits" [T, E] and
/// "routing.<i>.combine" [T, E]: the weight with which expert e's output is added to token t, 0
/// where it is not routed there, was dropped, or was pruned. Tokens run image by image.
///
/// An ensemble of M has M rows of "logits" and "pre_logits" for an image, one for each member, and
/// "log_mean_prob" [B, classes]: the log of the mean over members of softmax(logits), or of
/// sigmoid(logits) where `loss` is a sigmoid one. Its tokens run by image, place and member; the
/// logits for other members' experts are -infinity, so that a row's softmax is the gates.
///
/// Without a head, "logits" are "pre_logits", as the reference's network gives them.
///
/// Where experts have a capacity, images of one batch compete for it, so all of them form one
/// batch. Where encoder.moe.group_size does not divide its tokens, the last group is smaller: it is
/// routed, or refused (as one with fewer tokens than an expert selects is), as if it were alone.
std::map<std::string, at::Tensor> predict(Model& model, const at::Tensor& images_BCHW,
                                          const PredictOptions& options = {});

/// Reads `images` from a safetensors file and writes what predict() returns to another, atomically.
/// Throws Error in one line for a missing tensor, another dtype or shape, a number that is not
/// finite, and (usage) an output that is there already.
void predict_file(Model& model, const std::filesystem::path& input,
                  const std::filesystem::path& output, const PredictOptions& options = {});

}  // namespace moesaic
