// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/checkpoint/store.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

/// Whose names the network's outputs have: those that its checkpoint stores, by which classes of
/// data are found, or the data's own, as many as there are outputs and in their order.
enum class ClassesOf { checkpoint, data };

struct EvaluateCheckpointOptions {
  std::filesystem::path checkpoint;  ///< Checkpoint, or a run for its newest one.
  std::string data;                  ///< Empty means the checkpoint's last training data.
  std::string split = {};            ///< Empty means "test", "validation" where there is none.
  ClassesOf classes_of = ClassesOf::checkpoint;
  /// Images a batch, in place of evaluate.batch_size; absent means as the run's own evaluations.
  std::optional<int64_t> batch_size = {};
  EvaluateOptions evaluate;
  DatasetOpener open = {};
  std::string device = "cpu";
  bool trust = false;  ///< See LoadOptions.
  /// New files for the result, which the caller writes: none may lie among the data's images.
  std::vector<std::filesystem::path> files = {};
};

/// Quality and cost of a checkpoint; FLOPs count the rows that routing the data really computed.
struct CheckpointEvaluation {
  std::filesystem::path checkpoint;
  std::string data, split;
  std::vector<std::string> classes, groups;  ///< Names of the rows of a Dispatch.
  Evaluation evaluation;
  MetricRows metric_rows;  ///< Its metrics for people.
  double flops_per_image = 0.0;
  int64_t parameters = 0;
  bool of_images = true;  ///< Whether the data's examples are images.
};

/// Returns the name of the objective of a checkpoint's phase, "" where it is not stored.
std::string trained_loss(const Checkpoint& checkpoint);

/// Returns the batch size of the evaluations of the checkpoint's run, which changes results where
/// images of a batch share the capacity of experts; the default where it is not stored. Throws
/// Error (failure) where what is stored is out of range.
int64_t trained_batch_size(const Checkpoint& checkpoint);

/// A split of data, and how a checkpoint's network takes it.
struct CheckpointData {
  std::string name, split;
  std::shared_ptr<const Dataset> dataset;
  InputSpec input = {};
};

/// Opens a split of `data`, of what the checkpoint was trained on where that is empty; where
/// `split` is empty, the one that `choose` takes of those that there are. Its examples are as they
/// are stored. Throws Error (usage) for data or a split that is not there.
CheckpointData open_checkpoint_data(
    const Checkpoint& checkpoint, const DatasetOpener& open, const std::string& data,
    const std::string& split,
    std::string (*choose)(const std::vector<std::string>& splits) = calibration_split);

/// Makes the examples what the checkpoint's network takes, and their labels the numbers of its
/// outputs; of a network whose classes have no names those of the data, with a warning. Throws
/// Error (usage) for a class that the network does not have; where there are as many classes as
/// outputs it ends in `way_out`, what to do instead.
void adapt_data(CheckpointData& data, const Checkpoint& checkpoint, const Model& model,
                ClassesOf classes_of = ClassesOf::checkpoint, std::string_view way_out = {});

/// Evaluates on a split and says which one it took in place of a test split. Where
/// `evaluate.proceed` ends it early, evaluation.complete is false and the rest invalid. Throws
/// Error (usage) where the data does not have the split, with those that it has, or does not fit
/// the checkpoint.
CheckpointEvaluation evaluate_checkpoint(const EvaluateCheckpointOptions& options);

/// Returns {"checkpoint", "data", "split", "images", the metrics, "images_per_second",
/// "flops_per_image", "parameters", "classes", "groups" (where there are any), "per_class" (where
/// there are classes: [{"name", "images", "correct", "accuracy" in %, null without images}, ...]),
/// "routing"}.
nlohmann::ordered_json to_json(const CheckpointEvaluation& result);
/// Returns the same as a table of plain text.
std::string to_text(const CheckpointEvaluation& result);

}  // namespace moesaic
