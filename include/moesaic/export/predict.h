// SPDX-License-Identifier: Apache-2.0
// Inference on a file of images.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "moesaic/models/model.h"

namespace moesaic {

struct PredictOptions {
  bool routing = false;      ///< Also returns the routing of each MoE layer.
  int64_t batch_size = 256;  ///< Images per batch; all of them where experts have a capacity.
  std::string loss;          ///< Loss of training, see train/objective.h; empty means softmax.
};

/// Runs the network on images_BCHW [B, C, H, W] float32, normalised. Returns "logits" [B, classes],
/// "pre_logits" [B, d] and, with `routing`, for the MoE layer of each block i "routing.<i>.logits"
/// [T, E] and "routing.<i>.combine" [T, E], the weight of expert e's output in the output of token
/// t: 0 where t is not routed to e or dropped, or e is pruned. Tokens are ordered by image.
///
/// An ensemble of M members has M rows of "logits" and "pre_logits" per image, and "log_mean_prob"
/// [B, classes]: the log of the mean over members of softmax(logits), or of sigmoid(logits) for a
/// sigmoid loss. Its tokens are ordered by image, position and member; the logits for other
/// members' experts are -infinity, so that a row's softmax is the gates.
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
void predict_file(Model& model, const std::filesystem::path& input,
                  const std::filesystem::path& output, const PredictOptions& options = {});

}  // namespace moesaic
