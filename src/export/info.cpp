// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/info.h"

#include "moesaic/train/evaluate_checkpoint.h"

namespace moesaic {

using Json = nlohmann::ordered_json;

ExportInfo export_info(const Checkpoint& checkpoint, const Model& model) {
  ExportInfo info{.input = input_spec_of(checkpoint, model), .loss = trained_loss(checkpoint)};
  const Json::json_pointer size("/run/evaluate_batch_size");
  if (checkpoint.config.contains(size)) info.batch_size = trained_batch_size(checkpoint);
  const auto dtypes = checkpoint.config.find("array_dtypes");
  if (dtypes == checkpoint.config.end()) return info;
  const std::string from = (checkpoint.folder / "config.json").string();
  const Value stored = Value::from_json(*dtypes, from);
  for (const Value::Member& array : stored.members("array_dtypes")) {
    info.array_dtypes[array.key] = array.value.as_string("array_dtypes");
  }
  return info;
}

std::string batch_dependence(const Model& model) {
  for (const MoEBlock& block : model.moe_blocks()) {
    const nn::Router& router = block.layer->router;
    const nn::RoutingRule rule = router->evaluation_rule();
    const int64_t group = nn::group_size(rule);
    const bool of_one_image = group > 0 && model.tokens_per_image() % group == 0;
    if (nn::couples_tokens(rule) && !of_one_image) return "images share the capacity of experts";
    if (router->options().evaluation_seed) return "routers draw noise by the place in a batch";
  }
  return "";
}

std::map<std::string, std::string> side_files(const Model& model, const ExportInfo& info) {
  const Json evaluation = {{"loss", info.loss.empty() ? Json() : Json(info.loss)},
                           {"batch_size", info.batch_size ? Json(*info.batch_size) : Json()}};
  Json config = model.config();
  if (const Json constants = model.constants(); !constants.is_null()) {
    config[kConstantsKey] = constants;
  }
  return {{"config.json", config.dump(2) + "\n"},
          {"evaluation.json", evaluation.dump(2) + "\n"},
          {"labels.json", Json(info.input.classes).dump(2) + "\n"},
          {"preprocess.json", document_of(info.input).dump(2) + "\n"}};
}

}  // namespace moesaic
