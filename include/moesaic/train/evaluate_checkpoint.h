// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "moesaic/checkpoint/store.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

struct EvaluateCheckpointOptions {
  std::filesystem::path checkpoint;  ///< or a run: its newest checkpoint
  std::string data;                  ///< empty: what the checkpoint was last trained on
  EvaluateOptions evaluate;
  DatasetOpener open = {};
};

/// A checkpoint's quality and cost; FLOPs count the rows that the data's routing really computed.
struct CheckpointEvaluation {
  std::filesystem::path checkpoint;
  std::string data;
  std::vector<std::string> classes, groups;  ///< what the rows of a Dispatch count
  Evaluation evaluation;
  double flops_per_image = 0.0;
  int64_t parameters = 0;
};

/// The objective that the phase of a checkpoint minimised, by its name; "" where it does not say.
std::string trained_loss(const Checkpoint& checkpoint);

/// On the test split. Throws Error (usage) where the data does not fit the checkpoint.
CheckpointEvaluation evaluate_checkpoint(const EvaluateCheckpointOptions& options);

/// {"checkpoint", "data", "images", the metrics, "images_per_second",
/// "flops_per_image", "parameters", "classes", "groups" (where there are any), "routing"}
nlohmann::ordered_json to_json(const CheckpointEvaluation& result);
/// The same as a small table for people.
std::string to_text(const CheckpointEvaluation& result);

}  // namespace moesaic
