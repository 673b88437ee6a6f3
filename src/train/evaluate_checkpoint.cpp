// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/evaluate_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/train/main_loss.h"

namespace moesaic {
namespace {

std::string trained_on(const nlohmann::ordered_json& config, const std::filesystem::path& from) {
  const auto data = config.find("data");
  if (data == config.end() || !data->is_string() || data->get<std::string>().empty()) {
    fail_usage("{}: does not say what it was trained on; give --data", from.string());
  }
  return data->get<std::string>();
}

/// What images became before the checkpoint's network saw them.
PreprocessConfig trained_with(const nlohmann::ordered_json& config) {
  const auto found = config.find("preprocess");
  if (found == config.end()) return {};
  return parse<PreprocessConfig>(Value::from_json(*found, "preprocess"), "preprocess");
}

/// What goes wrong in a forward pass is the checkpoint's fault, not that of who asks.
Evaluation evaluate_model(Model& model, const std::shared_ptr<const Dataset>& dataset,
                          const EvaluateOptions& options, const std::filesystem::path& from) {
  try {
    Evaluation evaluation = evaluate(model, dataset, options);
    if (!std::isfinite(evaluation.loss)) fail("the loss is {}", evaluation.loss);
    return evaluation;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::usage) throw;
    fail("{}: {}", from.string(), error.what());
  }
}

}  // namespace

std::string trained_loss(const std::filesystem::path& checkpoint) {
  using Json = nlohmann::ordered_json;
  const auto setting = [&](const char* file, const std::string& path) {
    const Json json = Document::from_file(checkpoint / file).root().to_json();
    const Json::json_pointer place(path);
    return json.contains(place) ? json.at(place) : Json();
  };
  const Json phase = setting("state.json", "/phase_index");
  const std::string index = phase.is_number_integer() ? phase.dump() : "0";
  const Json loss = setting("config.json", "/run/phases/" + index + "/loss");
  const std::vector<std::string> known = main_loss_names();
  const auto found = loss.is_string()
                         ? std::find(known.begin(), known.end(), loss.get<std::string>())
                         : known.end();
  return found == known.end() ? "" : *found;
}

CheckpointEvaluation evaluate_checkpoint(const EvaluateCheckpointOptions& options) {
  CheckpointEvaluation result;
  result.checkpoint = resolve_checkpoint(options.checkpoint);
  const Checkpoint checkpoint = load_checkpoint(result.checkpoint);
  result.data =
      options.data.empty() ? trained_on(checkpoint.config, result.checkpoint) : options.data;
  const std::shared_ptr<const Dataset> dataset =
      preprocessed(options.open(result.data, "test"), trained_with(checkpoint.config));
  const std::shared_ptr<Model> model = load_model(result.checkpoint);
  EvaluateOptions evaluate = options.evaluate;
  result.classes = dataset->info().classes;
  result.groups = dataset->info().groups;
  if (evaluate.loss.empty()) evaluate.loss = trained_loss(result.checkpoint);
  result.evaluation = evaluate_model(*model, dataset, evaluate, result.checkpoint);
  result.flops_per_image = model->flops_per_image(result.evaluation.rows_per_token());
  result.parameters = model->parameter_count();
  return result;
}

nlohmann::ordered_json to_json(const CheckpointEvaluation& result) {
  nlohmann::ordered_json json = {{"checkpoint", result.checkpoint.string()},
                                 {"data", result.data},
                                 {"images", result.evaluation.images}};
  json.update(to_json(static_cast<const ClassificationMetrics&>(result.evaluation)));
  json.update({{"images_per_second", result.evaluation.images_per_second},
               {"flops_per_image", result.flops_per_image},
               {"parameters", result.parameters},
               {"classes", result.classes}});
  if (!result.groups.empty()) json["groups"] = result.groups;
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
  row("data", fmt::format("{}, {} test images", result.data, evaluation.images));
  row("accuracy", fmt::format("{:.2f} %", evaluation.accuracy));
  if (result.classes.size() > 5) row("top-5", fmt::format("{:.2f} %", evaluation.top5_accuracy));
  row("loss", fmt::format("{:.4f}", evaluation.loss));
  row("calibration", fmt::format("error (ECE) {:.4f}", evaluation.calibration_error));
  if (evaluation.ensemble) {
    const EnsembleMetrics& ensemble = *evaluation.ensemble;
    row("ensemble", fmt::format("{} members, NLL {:.4f}, disagreement {:.4f}", ensemble.members,
                                ensemble.negative_log_likelihood, ensemble.disagreement));
    row("a member", fmt::format("accuracy {:.2f} %, NLL {:.4f}", ensemble.member_accuracy,
                                ensemble.member_negative_log_likelihood));
  }
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
