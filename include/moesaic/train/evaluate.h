// SPDX-License-Identifier: Apache-2.0
// Tasks: targets of a dataset, and metrics of predictions. Evaluation of a network on a dataset,
// and of a checkpoint: metrics and loads of the experts.
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/checkpoint/store.h"
#include "moesaic/data/loader.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/train/datasets.h"

namespace moesaic {

/// Numbers of images by true and by predicted class. Only pairs that occur take memory.
class ConfusionMatrix {
 public:
  /// Adds classes [B] int64.
  void add(const at::Tensor& labels_B, const at::Tensor& predicted_B);

  /// Returns whether nothing was added.
  bool empty() const { return counts_.empty(); }
  /// Returns the number of images of class `label` predicted as `predicted`.
  int64_t count(int64_t label, int64_t predicted) const;
  /// Returns the number of images of a class.
  int64_t num_images(int64_t label) const;

 private:
  std::map<std::pair<int64_t, int64_t>, int64_t> counts_;  ///< By true and predicted class.
};

/// Metrics by name; a dot in a name makes an object in JSON.
using Metrics = std::map<std::string, double>;

/// Names and values of metrics for people, the most compared first.
using MetricRows = std::vector<std::pair<std::string, std::string>>;

enum class Direction { higher_is_better, lower_is_better };

/// A metric that `best` may follow.
struct MetricInfo {
  std::string name;
  Direction direction = Direction::higher_is_better;
  std::string unit = {};  ///< Unit behind a value in messages, e.g. " %".
};

/// What was predicted for each image, in order; undefined where there are no classes.
struct Predictions {
  at::Tensor label_N, predicted_N;  ///< True and predicted classes, int64.
  at::Tensor confidence_N;          ///< Probability of the predicted class, float32.
};

/// Measures predictions batch by batch, with sums in float64.
class Meter {
 public:
  virtual ~Meter() = default;
  /// Adds the network's output for a batch, on the CPU.
  virtual void add(const ModelOutput& output, const Batch& batch) = 0;
  /// Returns the metrics of all images so far, at least one.
  virtual Metrics result() const = 0;
  /// Returns what was predicted for each image.
  virtual Predictions predictions() const { return {}; }
};

/// Bins of the calibration error.
inline constexpr int64_t kCalibrationBins = 15;

/// Returns a meter of classes. An image's probabilities are softmax(logits), or sigmoid(logits) for
/// a sigmoid loss, and for an ensemble, with its members' logits in a row, the mean over its
/// members; the predicted class is the most probable one, on ties the one with the lower index. The
/// metrics are
///
///     accuracy            top-1 accuracy in %
///     top5_accuracy       top-5 accuracy in %; none of at most five classes, where it is 100 for
///                         any network
///     loss                mean of evaluation_losses()
///     calibration_error   expected calibration error (Guo et al., arXiv:1706.04599): over bins of
///                         equal width of the predicted class's probability p in (0, 1], the sum of
///                         (fraction of the images in the bin) * |accuracy in it - mean p in it|
///
/// and of an ensemble, where a negative log-likelihood is that of the true class, the mean over
/// images:
///
///     ensemble.members
///     ensemble.negative_log_likelihood           of the members' mean probability
///     ensemble.member_negative_log_likelihood    mean over the members
///     ensemble.member_accuracy                   mean over the members, in %
///     ensemble.disagreement    fraction of pairs of members with different predictions
std::unique_ptr<Meter> classification_meter(const std::string& loss);

/// Returns the meter of the data: of classes, or of real-valued targets. `loss` is the objective's
/// name (train/objective.h), "" the default one. Throws Error (usage) for an ensemble that is to
/// predict real-valued targets.
std::unique_ptr<Meter> meter_of(const DatasetInfo& data, const Model& model,
                                const std::string& loss);

/// Returns the metrics of such data that `best` may follow, the default first.
std::vector<MetricInfo> metrics_of(const DatasetInfo& data);

/// Returns the metrics of such data as text.
MetricRows rows_for_people(const DatasetInfo& data, const Metrics& metrics);

/// Returns the number of outputs of a head for this data.
inline int64_t outputs_for(const DatasetInfo& data) {
  return std::ssize(data.targets.empty() ? data.classes : data.targets);
}

/// Throws Error (usage) if the network does not have as many outputs as the targets require.
void check_num_outputs(const Model& model, const DatasetInfo& data);

/// Returns the metric of this name, the first for "". Throws Error (usage) with the nearest name.
MetricInfo metric_of(const DatasetInfo& data, const std::string& name);

/// Returns the metrics as JSON; names with dots become objects.
Json to_json(const Metrics& metrics);

class ProcessMesh;  // parallel/process_mesh.h

/// A batch with the network's output, for EvaluateOptions::on_batch.
struct EvaluatedBatch {
  const Dataset& dataset;
  int64_t first = 0;              ///< Index of the batch's first image in the dataset.
  const at::Tensor& images_BCHW;  ///< Preprocessed images, [B, C, H, W].
  const at::Tensor& labels_B;     ///< Classes [B] int64; undefined without classes.
  const at::Tensor& targets_BK;   ///< Targets [B, K] float32; undefined where they are classes.
  const at::Tensor& groups_B;     ///< Groups [B] int64; undefined where the dataset has none.
  const ModelOutput& output;
  const Model& model;
};

/// Options of evaluate().
struct EvaluateOptions {
  int64_t batch_size = 256;
  int64_t num_loader_threads = 1;
  /// Called with the number of images done, 0 at first, then after each batch; false ends the
  /// evaluation early, that of all processes.
  std::function<bool(int64_t done, int64_t total)> on_progress = {};
  /// Objective that trained the network (train/objective.h); empty means the default one.
  std::string loss = {};
  /// See Autocast; for evaluate_checkpoint() use_precision().
  std::string precision = "float32";
  /// Processes that share the batches and call this together; each returns the whole result. Null:
  /// this one is alone.
  std::shared_ptr<const ProcessMesh> processes = {};
  /// Called with each batch, in order, in inference mode.
  std::function<void(const EvaluatedBatch& batch)> on_batch = {};
};

/// How tokens of each class or group of images were dispatched: rows [classes, K] of K kept
/// experts.
struct DispatchCounts {
  std::vector<std::vector<int64_t>> rows;
  double entropy = 0.0;  ///< Eq. 6.1 of the clusters paper, see dispatch_entropy().
};

/// Routing statistics of one MoE layer on a dataset.
struct LayerRouting {
  int64_t block = 0;
  int64_t num_experts = 0;                 ///< Rows of the router, E.
  std::vector<int64_t> kept;               ///< Ids of the kept experts.
  double rows_per_token = 0;               ///< Mean rows per token that kept experts computed.
  std::vector<double> load;                ///< Fraction of these rows of each kept expert.
  DispatchCounts by_class;                 ///< Counts by class; no rows without classes.
  std::optional<DispatchCounts> by_group;  ///< Set where the dataset has groups.
};

/// Result of evaluate().
struct Evaluation {
  /// Metrics of the data's task: "accuracy" in %, "loss", ...; see classification_meter().
  Metrics metrics;
  ConfusionMatrix confusion;  ///< Empty where targets are real numbers.
  Predictions predictions;
  int64_t num_images = 0;
  bool is_complete = true;  ///< False where `on_progress` ended it; then the rest is invalid.
  double seconds = 0.0;
  double images_per_second = 0.0;
  std::vector<LayerRouting> routing;

  /// Returns a metric by its name. Throws Error where the task has no metric of that name.
  double metric(const std::string& name) const;
  /// Returns the measured rows per token by block, for Model::flops_per_image().
  RowsPerToken rows_per_token() const;
};

/// Runs the network over every image once, in order, in evaluation and inference mode, and restores
/// the mode it was in. Results, apart from times, have the same bits for any number of threads.
/// Throws Error (usage) where images or classes do not fit the network.
Evaluation evaluate(Model& model, std::shared_ptr<const Dataset> dataset,
                    const EvaluateOptions& options = {});

/// Runs the network as evaluate() does, over inputs whose targets need not be its own, and measures
/// nothing: options.on_batch takes each batch. Returns false where options.on_progress ended it.
/// Throws Error (usage) where images do not fit the network.
bool evaluate_batches(Model& model, std::shared_ptr<const Dataset> dataset,
                      const EvaluateOptions& options);

/// Returns that the network takes inputs of another shape than the data has, "" where it does not.
std::string inputs_problem(const Model& model, const DatasetInfo& data);

/// Warns where processes cannot have equal shards of an evaluation's batches: each makes all of it.
void warn_unless_sharded(int64_t batch_size, const ProcessMesh& processes);

/// Returns [{"layer", "experts", "kept", "rows_per_token", "load", ...}, ...]. Where there are
/// classes each also has "dispatch_entropy" and "dispatch", and where there are groups
/// "group_dispatch_entropy" and "group_dispatch".
Json to_json(const std::vector<LayerRouting>& routing);

/// Options of calibrate().
struct CalibrateOptions {
  int64_t num_images = 1024;  ///< The first ones of an order by `seed`; all where there are fewer.
  int64_t batch_size = 256;   ///< Where images share capacities, as in the run's evaluations.
  int64_t num_loader_threads = 1;
  uint64_t seed = 0;
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// Returns the use of the network's experts on images of the dataset, in evaluation mode: the same
/// for any number of threads. Throws Error (usage) where the images do not fit the network.
ExpertStatistics calibrate(Model& model, const std::shared_ptr<const Dataset>& dataset,
                           const CalibrateOptions& options = {});

/// Returns the split that calibration images are of: "validation" where the data has one, else
/// "train".
std::string calibration_split(const std::vector<std::string>& splits);

/// Source of the names of the network's outputs: the checkpoint, by whose names classes of data are
/// matched, or the data, which have as many classes as there are outputs, in their order.
enum class ClassNameSource { checkpoint, data };

/// Options of few_shot().
struct FewShotOptions {
  std::vector<int64_t> shots = {};  ///< Training images of each class; one result each.
  std::vector<double> l2 = {};      ///< Strengths to choose from; empty: 2^-10 to 2^19.
  int64_t num_seeds = 3;            ///< Choices of the training images.
};

/// Returns the predicted classes [l2, M] of rows x_MD by ridge regression in float64, for each
/// strength l2 > 0, of y = +1 for a row's class and -1 for the others on features x_ND. W = (X^T X
/// + l2 I)^-1 X^T Y = X^T (X X^T + l2 I)^-1 Y, where X is (x - mean) / (std + 1e-5) and a column of
/// 100, a bias that hardly any l2 shrinks.
at::Tensor ridge_predictions(const at::Tensor& x_ND, const at::Tensor& labels_N,
                             int64_t num_classes, const std::vector<double>& l2,
                             const at::Tensor& x_MD);

/// Returns "few_shot.K-shot", the mean accuracy in % over seeds after K images of each class of
/// `train`; "few_shot.K-shot_l2", the strength of the largest mean, chosen on `test` as in the
/// reference; of several seeds also "few_shot.K-shot_std", of a sample. A seed's fewer images are
/// the first of its more. Features are pre_logits, those of an ensemble's members in a row; memory
/// holds those of `test` and of one seed's images. Returns nothing where options.on_progress ended
/// it. Throws Error (usage) for data without classes, and for more shots than a class has images.
Metrics few_shot(Model& model, const std::shared_ptr<const Dataset>& train,
                 const std::shared_ptr<const Dataset>& test, const FewShotOptions& few,
                 const EvaluateOptions& options);

/// Options of evaluate_checkpoint().
struct EvaluateCheckpointOptions {
  fs::path checkpoint;     ///< Checkpoint, or a run for its newest one.
  std::string data;        ///< Empty means the checkpoint's last training data.
  std::string split = {};  ///< Empty means "test", "validation" where there is none.
  ClassNameSource class_name_source = ClassNameSource::checkpoint;
  /// Images a batch, in place of evaluate.batch_size; absent means as the run's own evaluations.
  std::optional<int64_t> batch_size = {};
  fs::path real_labels = {};  ///< See read_real_labels(); empty: none.
  /// With shots, few_shot() on images of the split "train" is measured instead, of any classes.
  FewShotOptions few_shot = {};
  EvaluateOptions evaluate;
  DatasetOpener open = {};
  std::string device = "cpu";
  bool trust = false;  ///< See LoadOptions.
  /// New files for the result, which the caller writes: none may lie among the data's images.
  std::vector<fs::path> files = {};
};

/// Quality and cost of a checkpoint; FLOPs count the rows that routing the data really computed, of
/// a program, which does not report them, all that tokens select.
struct CheckpointEvaluation {
  fs::path checkpoint;
  std::string data, split;
  std::shared_ptr<const Dataset> dataset;    ///< Preprocessed data.
  std::vector<std::string> classes, groups;  ///< Names of the rows of a Dispatch.
  Evaluation evaluation;
  MetricRows metric_rows;  ///< Metrics of `evaluation` for people.
  double flops_per_image = 0.0;
  bool counts_selected = false;  ///< Whether FLOPs are of all selected rows.
  int64_t num_parameters = 0;
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
/// `split` is empty, the one that `choose` takes of those that there are. The split's examples are
/// as stored. Throws Error (usage) for data or a split that is not there.
CheckpointData open_checkpoint_data(
    const Checkpoint& checkpoint, const DatasetOpener& open, const std::string& data,
    const std::string& split,
    std::string (*choose)(const std::vector<std::string>& splits) = calibration_split);

/// Makes the examples what the checkpoint's network takes, and their labels the numbers of its
/// outputs; of a network whose classes have no names those of the data, with a warning. Classes
/// that are called 0, 1, ..., unlike the network's, are those outputs, as in ImageNet-V2. Throws
/// Error (usage) for a class that the network does not have; where there are as many classes as
/// outputs it ends in `suggestion`, what to do instead.
void adapt_data(CheckpointData& data, const Checkpoint& checkpoint, const Model& model,
                ClassNameSource class_name_source = ClassNameSource::checkpoint,
                std::string_view suggestion = {});

/// Several labels of each image, or none.
using LabelLists = std::vector<std::vector<int64_t>>;

/// Reads labels of ImageNet-ReaL (Beyer et al., arXiv:2006.07159): a JSON list that has for each
/// image a list of numbers of the data's classes. The images' order is that of the numbers, from 1,
/// that end the names of their files (ILSVRC2012_val_00000001.JPEG), or the data's where images are
/// no files. Throws Error (usage) for another number of lists, no label at all, a class that the
/// data lack, and files without a number of their own.
LabelLists read_real_labels(const fs::path& file, const Dataset& dataset);

/// Returns "real.images", the number with labels, and "real.accuracy", % of them predicted as one
/// of these. `classes` names the labels, `outputs` the predictions.
Metrics real_label_metrics(const LabelLists& labels, const std::vector<std::string>& classes,
                           const at::Tensor& predicted_N, const std::vector<std::string>& outputs);

/// Evaluates on a split and says which one it took in place of a test split. Where
/// `evaluate.on_progress` ends it early, evaluation.is_complete is false and the rest invalid.
/// Throws Error (usage) where the data does not have the split, with those that it has, or does not
/// fit the checkpoint.
CheckpointEvaluation evaluate_checkpoint(const EvaluateCheckpointOptions& options);

/// Returns {"checkpoint", "data", "split", "images", the metrics, "images_per_second" (null of few
/// shots), "flops_per_image", "flops_rows" ("selected" by counts_selected), "parameters",
/// "classes", "groups" (where there are any), "per_class" (where there are classes: [{"name",
/// "images", "correct", "accuracy" in %, null without images}, ...]), "routing"}.
Json to_json(const CheckpointEvaluation& result);
/// Returns the same as a table of plain text.
std::string to_text(const CheckpointEvaluation& result);

}  // namespace moesaic
