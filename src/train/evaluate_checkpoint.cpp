// SPDX-License-Identifier: Apache-2.0

#include "moesaic/train/evaluate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/log.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/data/views.h"
#include "moesaic/ops/device.h"
#include "moesaic/parallel/process_mesh.h"
#include "moesaic/train/distributed_run.h"
#include "moesaic/train/objective.h"

namespace moesaic {
namespace {

/// Returns the text at a JSON pointer, "" where there is none.
std::string stored_text(const Json& json, const std::string& path) {
  const Json value = value_at(json, path);
  return value.is_string() ? value.get<std::string>() : "";
}

std::string trained_on(const Json& config, const fs::path& from) {
  const std::string data = stored_text(config, "/data");
  if (!data.empty()) return data;
  const std::string name = stored_text(config, std::string("/") + kInputKey + "/dataset");
  if (name.empty()) {
    fail_usage("{}: the name of its training data is not stored; give --data", from.string());
  }
  fail_usage("{}: the path of its dataset '{}' is not stored; give --data", from.string(),
             one_line(name));
}

/// The training split with what is held out of it.
constexpr const char* kWhole = "train+validation";

std::shared_ptr<const Dataset> open_split(const DatasetOpener& open, const std::string& data,
                                          const std::string& split) {
  const std::vector<std::string> splits = open.splits(data);
  const bool known = std::find(splits.begin(), splits.end(), split) != splits.end();
  if (!known && split != kWhole) {  // What that is without a validation split, the data tell.
    fail_usage("dataset '{}' has no split '{}'; choose one of {}", data, split,
               fmt::join(splits, ", "));
  }
  return open(data, split);
}

/// Returns the split that tells how good a network is, of those that there are.
std::string evaluation_split(const std::vector<std::string>& splits) {
  if (std::ranges::count(splits, "test") > 0) return "test";
  return std::ranges::count(splits, "validation") > 0 ? "validation" : "test";
}

/// Returns the split that is asked for: the whole of a folder that has no other images than those
/// of which a part is held out to validate with, since a network, unlike a probe, learned from no
/// part of it.
std::string asked_split(const EvaluateCheckpointOptions& options) {
  const std::string& data = options.data;
  const bool is_fixed = !options.few_shot.shots.empty() || !options.split.empty() || data.empty();
  if (is_fixed || !has_spec(data) || !load_dataset_spec(data).is_path()) return options.split;
  const bool is_bare =
      DatasetSource(data).validation() > 0 && evaluation_split(dataset_splits(data)) != "test";
  return is_bare ? kWhole : options.split;
}

/// Says whose data they are where no one gave their name.
void check_is_here(const DatasetOpener& open, const std::string& data,
                   const fs::path& checkpoint) try {
  open.splits(data);
} catch (const Error&) {
  if (has_spec(data)) throw;
  fail_usage("{}: its training data, '{}', are not here; give --data", checkpoint.string(),
             one_line(data));
}

/// Returns whether the first of some classes, of which text sorts numbers first, is a number.
bool has_numbers(const std::vector<std::string>& classes) {
  return !classes.empty() && classes.front().find_first_not_of("0123456789") == std::string::npos;
}

/// Returns the numbers of so many outputs.
std::vector<std::string> output_numbers(int64_t outputs) {
  std::vector<std::string> numbers;
  for (int64_t i = 0; i < outputs; ++i) numbers.push_back(fmt::to_string(i));
  return numbers;
}

/// Takes classes for the outputs whose numbers they are called by, which sort as text; classes that
/// are the data's own only where every output has one.
void take_numbers(CheckpointData& data, int64_t outputs, ClassNameSource class_name_source) {
  const std::vector<std::string> output_indices = output_numbers(outputs);
  const std::vector<std::string>& own = data.dataset->info().classes;
  if (class_name_source == ClassNameSource::data &&
      !std::ranges::is_permutation(own, output_indices))
    return;
  data.dataset = with_classes_of(std::move(data.dataset), output_indices,
                                 "name each class by the number of its output, or choose data of "
                                 "the network's classes");
  log_info(
      "'{}': a class that is named by a number is the output of that number; classes are shown by "
      "these numbers, not by the network's names",
      data.name);
}

/// Says that the network's class names do not count, where --classes-of data leaves them out.
void tell_of_unused_names(const CheckpointData& data, const std::vector<std::string>& own,
                          int64_t outputs) {
  const std::vector<std::string>& names = data.input.classes;
  if (names.empty() || own.empty() || own == names) return;
  if (!has_numbers(names) && std::ranges::is_permutation(own, output_numbers(outputs))) return;
  log_info(
      "'{}': the data's class names count, in the order of the outputs; the network's names are "
      "not used",
      data.name);
}

/// Gives the data the labels of the network's outputs.
void match_classes(CheckpointData& data, const fs::path& from, std::string_view suggestion) {
  const std::vector<std::string>& names = data.input.classes;
  const size_t own = data.dataset->info().classes.size();
  if (own == 0) return;
  if (names.empty()) {
    log_warning(
        "{}: no class names are stored: the outputs are assumed to be the classes of '{}', in "
        "their order",
        from.string(), data.name);
    return;
  }
  try {
    // Outputs can take the names of as many classes only.
    data.dataset = with_classes_of(std::move(data.dataset), names,
                                   own == names.size() ? suggestion : kRenameClass);
  } catch (const Error& error) {
    fail_usage("{}: {}", from.string(), error.what());
  }
  if (own < names.size()) {
    log_info("'{}' has {} of the network's {} classes: predictions of the others count as wrong",
             data.name, own, names.size());
  }
}

/// Evaluates a network; errors of a forward pass are failures of the checkpoint, not of usage.
Evaluation evaluate_model(Model& model, const std::shared_ptr<const Dataset>& dataset,
                          const EvaluateOptions& options, const fs::path& from) try {
  Evaluation evaluation = evaluate(model, dataset, options);
  if (!evaluation.is_complete) return evaluation;
  const double loss = evaluation.metric("loss");
  if (!std::isfinite(loss)) fail("the loss is {}", loss);
  return evaluation;
} catch (const Error& error) {
  if (error.kind() == ErrorKind::usage) throw;
  fail("{}: {}", from.string(), error.what());
}

Json per_class_json(const CheckpointEvaluation& result) {
  const ConfusionMatrix& confusion = result.evaluation.confusion;
  auto list = Json::array();
  for (const std::string& name : result.classes) {
    const auto label = static_cast<int64_t>(list.size());
    const int64_t images = confusion.num_images(label), correct = confusion.count(label, label);
    const double accuracy = 100.0 * static_cast<double>(correct) / static_cast<double>(images);
    list.push_back({{"name", name},
                    {"images", images},
                    {"correct", correct},
                    {"accuracy", images > 0 ? Json(accuracy) : Json()}});
  }
  return list;
}

/// Returns the accuracy of each class or, of many, of those with the lowest.
std::string per_class_text(const CheckpointEvaluation& result) {
  constexpr size_t kMaxClasses = 20;
  if (result.evaluation.confusion.empty()) return "";
  const Json all = per_class_json(result);
  std::vector<Json> list(all.begin(), all.end());
  const std::vector<std::string> names = disambiguated(result.classes);
  for (size_t i = 0; i < list.size(); ++i) list[i]["name"] = names[i];
  std::erase_if(list, [](const Json& found) { return found.at("accuracy").is_null(); });
  std::string text = "accuracy by class\n";
  if (list.size() > kMaxClasses) {
    std::stable_sort(list.begin(), list.end(), [](const Json& a, const Json& b) {
      return a.at("accuracy").get<double>() < b.at("accuracy").get<double>();
    });
    text = fmt::format("accuracy by class, the lowest {} of {}; --json has all\n", kMaxClasses,
                       list.size());
    list.resize(kMaxClasses);
  }
  for (const Json& found : list) {
    text += fmt::format("  {:6.2f} % of {:<6} {}\n", found.at("accuracy").get<double>(),
                        found.at("images").get<int64_t>(), found.at("name").get<std::string>());
  }
  return text;
}

/// Measures few shots in place of the network's own classes.
void probe(const EvaluateCheckpointOptions& options, const Checkpoint& checkpoint, Model& model,
           const EvaluateOptions& evaluate, CheckpointEvaluation& result) {
  if (result.split == "train") {
    fail_usage(
        "--shots learns from the split 'train' and cannot measure on it; choose --split validation "
        "or test");
  }
  CheckpointData train = open_checkpoint_data(checkpoint, options.open, options.data, "train");
  adapt_data(train, checkpoint, model, ClassNameSource::data);
  const Metrics found = few_shot(model, train.dataset, result.dataset, options.few_shot, evaluate);
  result.evaluation.is_complete = !found.empty();
  result.evaluation.num_images = result.dataset->size();
  result.evaluation.metrics = found;
  if (found.empty()) return;
  for (const int64_t shots : options.few_shot.shots) {
    const std::string name = fmt::format("{}-shot", shots), key = "few_shot." + name;
    std::string text = fmt::format("{:.2f} % with l2 {:g}", found.at(key), found.at(key + "_l2"));
    const auto spread = found.find(key + "_std");
    if (spread != found.end()) text += fmt::format(", std {:.2f} over seeds", spread->second);
    result.metric_rows.emplace_back(name, text);
  }
}

/// Returns which experts of a layer computed how many rows, and the fraction of each in them.
std::string layer_text(const LayerRouting& layer) {
  const bool one = layer.kept.size() == 1;
  const bool whole = static_cast<int64_t>(layer.kept.size()) == layer.num_experts;
  const std::string experts = whole ? count_text(layer.num_experts, "expert")
                                    : fmt::format("{} {} of {}", one ? "expert" : "experts",
                                                  fmt::join(layer.kept, " "), layer.num_experts);
  return fmt::format("{} {} {:.3f} rows per token; fraction of rows by expert {:.2f}", experts,
                     one ? "computes" : "compute", layer.rows_per_token,
                     fmt::join(layer.load, " "));
}

}  // namespace

std::string trained_loss(const Checkpoint& checkpoint) {
  const Json phase = value_at(checkpoint.state, "/phase_index");
  const std::string index = phase.is_number_integer() ? phase.dump() : "0";
  const std::string loss = stored_text(checkpoint.config, "/run/phases/" + index + "/loss");
  return objectives().find(loss) != nullptr ? loss : "";
}

int64_t trained_batch_size(const Checkpoint& checkpoint) {
  const Json size = value_at(checkpoint.config, "/run/evaluate_batch_size");
  if (size.is_null()) return EvaluateOptions().batch_size;
  const bool valid = size.is_number_integer() && size >= 1 && size <= kMaxBatchSize;
  if (valid) return size.get<int64_t>();
  fail("{}: run.evaluate_batch_size must be 1 to {}, found {}; give --batch-size",
       (checkpoint.folder / "config.json").string(), kMaxBatchSize, one_line(size.dump()));
}

CheckpointData open_checkpoint_data(const Checkpoint& checkpoint, const DatasetOpener& open,
                                    const std::string& data, const std::string& split,
                                    std::string (*choose)(const std::vector<std::string>&)) {
  const std::string name = data.empty() ? trained_on(checkpoint.config, checkpoint.folder) : data;
  if (data.empty()) check_is_here(open, name, checkpoint.folder);
  const std::string chosen = split.empty() ? choose(open.splits(name)) : split;
  return {name, chosen, open_split(open, name, chosen)};
}

void adapt_data(CheckpointData& data, const Checkpoint& checkpoint, const Model& model,
                ClassNameSource class_name_source, std::string_view suggestion) {
  data.input = input_spec_of(checkpoint, model);
  // What an older version did not store is as it is in the data.
  if (!checkpoint.config.contains(kInputKey)) data.input.has_images = data.dataset->has_images();
  warn_overridden(data.input, data.dataset->info(), checkpoint.folder.string());
  const bool is_named = !data.input.classes.empty() && !has_numbers(data.input.classes);
  if (is_named && has_numbers(data.dataset->info().classes)) {
    take_numbers(data, model.num_classes(), class_name_source);
  } else if (class_name_source == ClassNameSource::checkpoint) {
    match_classes(data, checkpoint.folder, suggestion);
  }
  data.dataset = preprocessed(std::move(data.dataset), data.input);
}

CheckpointEvaluation evaluate_checkpoint(const EvaluateCheckpointOptions& options) {
  check_device(options.device);
  Checkpoint checkpoint = load_newest_checkpoint(
      options.checkpoint,
      {.load_optimizer = false, .trust = options.trust, .accept_program = true});
  const bool probes = !options.few_shot.shots.empty();
  CheckpointData data = open_checkpoint_data(checkpoint, options.open, options.data,
                                             asked_split(options), evaluation_split);
  for (const fs::path& file : options.files) check_outside_images(file, data.name);
  if (options.split.empty() && data.split != "test") {
    log_info("'{}' has no test split: its {} split is measured", data.name, data.split);
  }
  CheckpointEvaluation result = {
      .checkpoint = checkpoint.folder, .data = data.name, .split = data.split};
  EvaluateOptions evaluate = options.evaluate;
  evaluate.batch_size = options.batch_size ? *options.batch_size : trained_batch_size(checkpoint);
  const std::shared_ptr<Model> model = model_of(checkpoint);
  model->to(at::Device(options.device));
  evaluate.precision = use_precision(*model, evaluate.precision);
  checkpoint.model.clear();  // The model holds copies.
  const std::vector<std::string> own = data.dataset->info().classes;
  LabelLists real;
  if (!options.real_labels.empty()) real = read_real_labels(options.real_labels, *data.dataset);
  adapt_data(data, checkpoint, *model, probes ? ClassNameSource::data : options.class_name_source,
             "--classes-of data takes the data's classes for the outputs, in their order");
  if (!probes && options.class_name_source == ClassNameSource::data) {
    tell_of_unused_names(data, own, model->num_classes());
  }
  if (const auto& processes = options.evaluate.processes) {
    warn_unless_sharded(evaluate.batch_size, *processes);
    check_same_build(*processes);
    sync_network(*processes, checkpoint.folder, *model);
    processes->check_same(
        "data", fmt::format("{} {} {}", data.name, data.split, data_fingerprint(*data.dataset)));
  }
  const std::shared_ptr<const Dataset>& dataset = data.dataset;
  result.dataset = dataset;
  result.classes = dataset->info().classes;
  result.groups = dataset->info().groups;
  if (evaluate.loss.empty()) evaluate.loss = trained_loss(checkpoint);
  if (probes) {
    probe(options, checkpoint, *model, evaluate, result);
  } else {
    result.evaluation = evaluate_model(*model, dataset, evaluate, result.checkpoint);
  }
  if (!result.evaluation.is_complete) return result;
  Metrics& metrics = result.evaluation.metrics;
  if (!real.empty()) {  // Numbers are outputs, as adapt_data() took them.
    metrics.merge(real_label_metrics(real, has_numbers(own) ? result.classes : own,
                                     result.evaluation.predictions.predicted_N, result.classes));
  }
  if (!probes) result.metric_rows = rows_for_people(dataset->info(), metrics);
  result.flops_per_image = model->flops_per_image(result.evaluation.rows_per_token());
  // A program does not tell which rows its experts computed.
  result.counts_selected =
      !probes && result.evaluation.routing.empty() && !model->moe_blocks().empty();
  result.num_parameters = model->num_parameters();
  return result;
}

Json to_json(const CheckpointEvaluation& result) {
  Json json = {{"checkpoint", result.checkpoint.string()},
               {"data", result.data},
               {"split", result.split},
               {"images", result.evaluation.num_images}};
  json.update(to_json(result.evaluation.metrics));
  const double speed = result.evaluation.images_per_second;
  json.update({{"images_per_second", speed > 0.0 ? Json(speed) : Json()},
               {"flops_per_image", result.flops_per_image},
               {"parameters", result.num_parameters},
               {"classes", result.classes}});
  if (result.counts_selected) json["flops_rows"] = "selected";
  if (!result.groups.empty()) json["groups"] = result.groups;
  if (!result.evaluation.confusion.empty()) json["per_class"] = per_class_json(result);
  json["routing"] = to_json(result.evaluation.routing);
  return json;
}

std::string to_text(const CheckpointEvaluation& result) {
  const Evaluation& evaluation = result.evaluation;
  std::string text;
  const auto row = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{:<16} {}\n", name, value);
  };
  row("checkpoint", result.checkpoint.string());
  const std::string example = example_noun(result.dataset->info());
  row("data",
      fmt::format("{}, {} {} {}s", result.data, evaluation.num_images, result.split, example));
  for (const auto& [name, value] : result.metric_rows) row(name, value);
  if (evaluation.images_per_second > 0.0) {
    row(fmt::format("{}s/s", example), fmt::format("{:.0f}", evaluation.images_per_second));
  }
  row(fmt::format("FLOPs/{}", example),
      fmt::format("{:.4g}{}", result.flops_per_image,
                  result.counts_selected ? ", of all selected rows" : ""));
  row("parameters", fmt::format("{}", result.num_parameters));
  for (const LayerRouting& layer : evaluation.routing) {
    row(fmt::format("block {}", layer.block), layer_text(layer));
    std::vector<std::string> entropies;
    if (!layer.by_class.rows.empty())
      entropies = {fmt::format("{:.3f} nats by class", layer.by_class.entropy)};
    if (layer.by_group)
      entropies.push_back(fmt::format("{:.3f} by group", layer.by_group->entropy));
    if (!entropies.empty())
      row("  dispatch", fmt::format("entropy {}", fmt::join(entropies, ", ")));
  }
  return text + per_class_text(result);
}

}  // namespace moesaic
