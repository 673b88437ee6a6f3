// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/evaluate_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/train/objective.h"

namespace moesaic {
namespace {

std::string trained_on(const nlohmann::ordered_json& config, const std::filesystem::path& from) {
  const auto data = config.find("data");
  if (data == config.end() || !data->is_string() || data->get<std::string>().empty()) {
    fail_usage("{}: does not say what it was trained on; give --data", from.string());
  }
  return data->get<std::string>();
}

/// Returns the preprocessing that the checkpoint's network was trained with.
PreprocessConfig trained_with(const nlohmann::ordered_json& config) {
  const auto found = config.find("preprocess");
  if (found == config.end()) return {};
  return parse<PreprocessConfig>(Value::from_json(*found, "preprocess"), "preprocess");
}

/// Evaluates a network; errors of a forward pass are failures of the checkpoint, not of usage.
Evaluation evaluate_model(Model& model, const std::shared_ptr<const Dataset>& dataset,
                          const EvaluateOptions& options, const std::filesystem::path& from) {
  try {
    Evaluation evaluation = evaluate(model, dataset, options);
    const double loss = evaluation.metric("loss");
    if (!std::isfinite(loss)) fail("the loss is {}", loss);
    return evaluation;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::usage) throw;
    fail("{}: {}", from.string(), error.what());
  }
}

}  // namespace

std::string trained_loss(const Checkpoint& checkpoint) {
  using Json = nlohmann::ordered_json;
  const auto setting = [](const Json& json, const std::string& path) {
    const Json::json_pointer place(path);
    return json.contains(place) ? json.at(place) : Json();
  };
  const Json phase = setting(checkpoint.state, "/phase_index");
  const std::string index = phase.is_number_integer() ? phase.dump() : "0";
  const Json loss = setting(checkpoint.config, "/run/phases/" + index + "/loss");
  const bool known = loss.is_string() && objectives().find(loss.get<std::string>()) != nullptr;
  return known ? loss.get<std::string>() : "";
}

CheckpointEvaluation evaluate_checkpoint(const EvaluateCheckpointOptions& options) {
  CheckpointEvaluation result;
  const Checkpoint checkpoint = load_newest_checkpoint(options.checkpoint, {.optimizer = false});
  result.checkpoint = checkpoint.folder;
  result.data =
      options.data.empty() ? trained_on(checkpoint.config, result.checkpoint) : options.data;
  const std::shared_ptr<const Dataset> dataset =
      preprocessed(options.open(result.data, "test"), trained_with(checkpoint.config));
  const std::shared_ptr<Model> model = model_of(checkpoint);
  EvaluateOptions evaluate = options.evaluate;
  result.classes = dataset->info().classes;
  result.groups = dataset->info().groups;
  if (evaluate.loss.empty()) evaluate.loss = trained_loss(checkpoint);
  result.evaluation = evaluate_model(*model, dataset, evaluate, result.checkpoint);
  result.flops_per_image = model->flops_per_image(result.evaluation.rows_per_token());
  result.parameters = model->parameter_count();
  return result;
}

nlohmann::ordered_json to_json(const CheckpointEvaluation& result) {
  nlohmann::ordered_json json = {{"checkpoint", result.checkpoint.string()},
                                 {"data", result.data},
                                 {"images", result.evaluation.images}};
  json.update(to_json(result.evaluation.metrics));
  json.update({{"images_per_second", result.evaluation.images_per_second},
               {"flops_per_image", result.flops_per_image},
               {"parameters", result.parameters},
               {"classes", result.classes}});
  if (!result.groups.empty()) json["groups"] = result.groups;
  json["routing"] = to_json(result.evaluation.routing);
  return json;
}

namespace {

/// Adds a row for each metric, the most compared ones first, with their units.
template <class Row>
void add_metrics(const CheckpointEvaluation& result, const Row& row) {
  const Metrics& metrics = result.evaluation.metrics;
  if (!metrics.contains("accuracy")) {
    for (const auto& [name, value] : metrics) row(name, fmt::format("{:.6g}", value));
    return;
  }
  const auto at = [&](const std::string& name) { return metrics.at(name); };
  row("accuracy", fmt::format("{:.2f} %", at("accuracy")));
  if (result.classes.size() > 5) row("top-5", fmt::format("{:.2f} %", at("top5_accuracy")));
  row("loss", fmt::format("{:.4f}", at("loss")));
  row("calibration", fmt::format("error (ECE) {:.4f}", at("calibration_error")));
  if (!metrics.contains("ensemble.members")) return;
  row("ensemble",
      fmt::format("{:.0f} members, NLL {:.4f}, disagreement {:.4f}", at("ensemble.members"),
                  at("ensemble.negative_log_likelihood"), at("ensemble.disagreement")));
  row("a member", fmt::format("accuracy {:.2f} %, NLL {:.4f}", at("ensemble.member_accuracy"),
                              at("ensemble.member_negative_log_likelihood")));
}

}  // namespace

std::string to_text(const CheckpointEvaluation& result) {
  const Evaluation& evaluation = result.evaluation;
  std::string text;
  const auto row = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{:<16} {}\n", name, value);
  };
  row("checkpoint", result.checkpoint.string());
  row("data", fmt::format("{}, {} test images", result.data, evaluation.images));
  add_metrics(result, row);
  row("images/s", fmt::format("{:.0f}", evaluation.images_per_second));
  row("FLOPs/image", fmt::format("{:.4g}", result.flops_per_image));
  row("parameters", fmt::format("{}", result.parameters));
  for (const LayerRouting& layer : evaluation.routing) {
    row(fmt::format("block {}", layer.block),
        fmt::format("{} of {} experts, {:.3f} rows a token, load {:.2f}", layer.kept.size(),
                    layer.experts, layer.rows_per_token, fmt::join(layer.load, " ")));
    row("  dispatch",
        fmt::format("entropy {:.3f} nats by class", layer.by_class.entropy) +
            (layer.by_group ? fmt::format(", {:.3f} by group", layer.by_group->entropy) : ""));
  }
  return text;
}

}  // namespace moesaic
