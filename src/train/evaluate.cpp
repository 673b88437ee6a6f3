// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/evaluate.h"

#include <c10/util/ScopeExit.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/log.h"
#include "moesaic/base/text.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/ops/routing.h"
#include "moesaic/parallel/process_mesh.h"
#include "moesaic/train/distributed_run.h"

namespace moesaic {
namespace {

/// Keeps a network in evaluation mode while the result lives.
auto evaluation_mode(Model& model) {
  const bool training = model.is_training();
  model.eval();
  nn::set_batch_shard(model, {});
  return c10::make_scope_exit([&model, training] {
    model.train(training);
    model.set_first_sample_index(0);
    nn::set_batch_shard(model, {});
  });
}

void add_to(at::Tensor& sum, const at::Tensor& more) {
  sum = sum.defined() ? sum + more : more;
}

/// Adds the rows of each kind of images, as their numbers below `kinds` say; none without numbers.
void add_kinds(at::Tensor& sum, const Routing& routing, const at::Tensor& numbers_B,
               int64_t kinds) {
  if (!numbers_B.defined()) return;
  const int64_t tokens = routing.num_tokens() / std::max<int64_t>(1, numbers_B.size(0));
  const at::Tensor numbers_T = numbers_B.to(routing.token.device()).repeat_interleave(tokens);
  add_to(sum, dispatch_counts(routing, numbers_T, kinds).cpu());
}

/// Returns entropy and rows of counts [kinds, K].
DispatchCounts dispatch_of(const at::Tensor& counts) {
  DispatchCounts dispatch{.entropy = dispatch_entropy(counts).item<double>()};
  const auto at = counts.accessor<int64_t, 2>();
  for (int64_t kind = 0; kind < counts.size(0); ++kind) {
    dispatch.rows.emplace_back();
    for (int64_t e = 0; e < counts.size(1); ++e) dispatch.rows.back().push_back(at[kind][e]);
  }
  return dispatch;
}

/// Counts rows by layer and expert over batches.
class RoutingCounts {
 public:
  void add(const EvaluatedBatch& batch, const DatasetInfo& info) {
    const std::vector<RoutingRecord>& records = batch.output.routings;
    if (layers_.empty()) layers_.resize(records.size());
    for (size_t i = 0; i < records.size(); ++i) {
      const RoutingRecord& record = records[i];
      Layer& layer = layers_[i];
      layer.routing.block = record.block;
      layer.routing.num_experts = record.logits_TE.size(1);
      layer.routing.kept = record.kept;
      layer.tokens += record.routing.num_tokens();
      const at::Tensor rows = record.routing.offsets.diff().to(at::kCPU, at::kLong);
      add_to(layer.rows, rows);
      add_kinds(layer.by_class, record.routing, batch.labels_B, std::ssize(info.classes));
      add_kinds(layer.by_group, record.routing, batch.groups_B, std::ssize(info.groups));
    }
  }

  std::vector<LayerRouting> result() const {
    std::vector<LayerRouting> list;
    for (const Layer& layer : layers_) {
      LayerRouting routing = layer.routing;
      const auto total = static_cast<double>(layer.rows.sum().item<int64_t>());
      routing.rows_per_token = total / static_cast<double>(layer.tokens);
      for (int64_t i = 0; i < layer.rows.size(0); ++i) {
        const auto rows = static_cast<double>(layer.rows[i].item<int64_t>());
        routing.load.push_back(total > 0 ? rows / total : 0.0);
      }
      if (layer.by_class.defined()) routing.by_class = dispatch_of(layer.by_class);
      if (layer.by_group.defined()) routing.by_group = dispatch_of(layer.by_group);
      list.push_back(std::move(routing));
    }
    return list;
  }

 private:
  struct Layer {
    LayerRouting routing;
    at::Tensor rows, by_class, by_group;
    int64_t tokens = 0;
  };
  std::vector<Layer> layers_;
};

/// Throws Error (usage) that names both shapes of inputs if they differ.
void check_takes(const Model& model, const DatasetInfo& data) {
  const std::string problem = inputs_problem(model, data);
  if (!problem.empty()) fail_usage("{}", problem);
}

/// Returns inputs of a shape [C, H, W] in words.
std::string inputs_text(const std::vector<int64_t>& shape) {
  if (shape[0] == 1 && shape[1] == 1) return "rows of " + count_text(shape[2], "number");
  return fmt::format("images of {} (channels x height x width)", fmt::join(shape, " x "));
}

void check_outputs(const Model& model, const DatasetInfo& info) try {
  check_num_outputs(model, info);
} catch (const Error& error) {
  fail_usage("{}; choose data with {}, or a network with {}", error.what(),
             count_text(model.num_classes(), info.targets.empty() ? "class" : "target"),
             count_text(outputs_for(info), "output"));
}

}  // namespace

std::string inputs_problem(const Model& model, const DatasetInfo& data) {
  const std::vector<int64_t> shape = {data.channels, data.height, data.width};
  if (model.input_shape() == shape) return "";
  return fmt::format("'{}' has {}, the model takes {}", data.name, inputs_text(shape),
                     inputs_text(model.input_shape()));
}

void warn_unless_sharded(int64_t batch_size, const ProcessMesh& processes) {
  if (batch_size % processes.size() == 0) return;
  log_warning(
      "batches of {} cannot be divided equally among {}, so each evaluates all; choose a multiple "
      "of {} images",
      count_text(batch_size, "image"), count_text(processes.size(), "process"), processes.size());
}

double Evaluation::metric(const std::string& name) const {
  const auto found = metrics.find(name);
  if (found == metrics.end()) fail("unknown metric of an evaluation '{}'", name);
  return found->second;
}

RowsPerToken Evaluation::rows_per_token() const {
  RowsPerToken rows;
  for (const LayerRouting& layer : routing) rows[layer.block] = layer.rows_per_token;
  return rows;
}

bool evaluate_batches(Model& model, std::shared_ptr<const Dataset> dataset,
                      const EvaluateOptions& options) {
  check_takes(model, dataset->info());
  const ProcessMesh* const processes = options.processes.get();
  if (processes != nullptr) processes->set_activity("an evaluation");
  const auto mode = evaluation_mode(model);
  const c10::InferenceMode inference;
  LoaderOptions loader_options{.batch_size = options.batch_size,
                               .num_threads = options.num_loader_threads,
                               .is_shared = processes != nullptr};
  // Without equal shards each process takes all of a batch.
  if (processes != nullptr && options.batch_size % processes->size() == 0) {
    loader_options.batch_indices =
        batch_indices_of_rank(options.batch_size, /*num_micro_batches=*/1, /*is_strided=*/false,
                              processes->rank(), processes->size());
  }
  Loader loader(dataset, loader_options);
  std::vector<int64_t> replaced;
  // All processes end where one of them does.
  const auto on_progress = [&](int64_t done, const Batch& batch) {
    const int ends = options.on_progress && !options.on_progress(done, dataset->size()) ? 1 : 0;
    return sync_replaced_images(batch.replaced, loader, processes, replaced, ends) == 0;
  };
  bool should_continue = on_progress(0, {});
  for (int64_t done = 0; should_continue && !loader.is_done();) {
    Batch batch = loader.next();
    const int64_t count = std::min(options.batch_size, dataset->size() - done);
    const bool is_sharded = batch.inputs.size(0) < count;
    nn::set_batch_shard(model, {options.processes, is_sharded});
    const at::Tensor images = batch.inputs.to(model.device());
    model.set_first_sample_index(done);
    const ModelOutput output = [&] {
      const Autocast autocast(options.precision, images.device());
      return model.forward(images);
    }();
    for (at::Tensor* targets : {&batch.labels, &batch.targets}) {  // Those of all shards.
      if (!is_sharded || !targets->defined()) continue;
      *targets = processes->world().all_gather(*targets, Traffic::metrics);
    }
    const at::Tensor groups_B = group_indices(*dataset, done, count);
    if (options.on_batch) {
      options.on_batch(
          {*dataset, done, images, batch.labels, batch.targets, groups_B, output, model});
    }
    done += count;
    should_continue = on_progress(done, batch);
  }
  return loader.is_done();
}

Evaluation evaluate(Model& model, std::shared_ptr<const Dataset> dataset,
                    const EvaluateOptions& options) {
  const DatasetInfo& info = dataset->info();
  check_takes(model, info);
  check_outputs(model, info);
  Evaluation result;
  RoutingCounts counts;
  const std::unique_ptr<Meter> meter = meter_of(info, model, options.loss);
  EvaluateOptions measured = options;
  measured.on_batch = [&](const EvaluatedBatch& batch) {
    ModelOutput on_cpu{.logits = batch.output.logits.cpu()};
    const at::Tensor& targets = batch.labels_B.defined() ? batch.labels_B : batch.targets_BK;
    if (batch.images_BCHW.size(0) < targets.size(0)) {
      on_cpu.logits = options.processes->world().all_gather(on_cpu.logits, Traffic::metrics);
    }
    meter->add(on_cpu, {.labels = batch.labels_B, .targets = batch.targets_BK});
    counts.add(batch, info);
    if (options.on_batch) options.on_batch(batch);
  };
  const auto begin = std::chrono::steady_clock::now();
  result.is_complete = evaluate_batches(model, dataset, measured);
  if (!result.is_complete) return result;
  result.metrics = meter->result();
  result.predictions = meter->predictions();
  const Predictions& predictions = result.predictions;
  if (predictions.label_N.defined()) {
    result.confusion.add(predictions.label_N, predictions.predicted_N);
  }
  result.num_images = dataset->size();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.images_per_second = static_cast<double>(result.num_images) / result.seconds;
  result.routing = counts.result();
  return result;
}

Json to_json(const std::vector<LayerRouting>& routing) {
  auto list = Json::array();
  for (const LayerRouting& layer : routing) {
    Json item = {{"layer", layer.block},
                 {"experts", layer.num_experts},
                 {"kept", layer.kept},
                 {"rows_per_token", layer.rows_per_token},
                 {"load", layer.load}};
    if (!layer.by_class.rows.empty()) {
      item["dispatch_entropy"] = layer.by_class.entropy;
      item["dispatch"] = layer.by_class.rows;
    }
    if (layer.by_group) {
      item["group_dispatch_entropy"] = layer.by_group->entropy;
      item["group_dispatch"] = layer.by_group->rows;
    }
    list.push_back(std::move(item));
  }
  return list;
}

ExpertStatistics calibrate(Model& model, const std::shared_ptr<const Dataset>& dataset,
                           const CalibrateOptions& options) {
  check_takes(model, dataset->info());
  if (dataset->size() == 0)
    fail_usage("'{0}' has no {1}s to calibrate by; choose a split with {1}s, such as train",
               dataset->info().name, example_noun(dataset->info()));
  const auto mode = evaluation_mode(model);
  const c10::InferenceMode inference;
  const int64_t total = std::min(options.num_images, dataset->size());
  Loader loader(dataset, {.batch_size = std::min(options.batch_size, total),
                          .seed = options.seed,
                          .shuffle = true,
                          .num_threads = options.num_loader_threads});
  const ExpertStatisticsMeter meter(model);
  for (int64_t done = 0; done < total;) {
    if (options.progress) options.progress(done, total);
    const at::Tensor images = loader.next().inputs;
    const int64_t count = std::min(images.size(0), total - done);
    model.set_first_sample_index(done);
    model.forward(images.narrow(0, 0, count).to(model.device()));
    done += count;
  }
  if (options.progress) options.progress(total, total);
  return meter.statistics();
}

std::string calibration_split(const std::vector<std::string>& splits) {
  return std::ranges::count(splits, "validation") > 0 ? "validation" : "train";
}

}  // namespace moesaic
