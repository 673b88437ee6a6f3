// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/info.h"

namespace moesaic {

ExportInfo export_info(const Checkpoint& checkpoint, const Model& model) {
  ExportInfo info{.input = input_spec_of(checkpoint, model)};
  const auto dtypes = checkpoint.config.find("array_dtypes");
  if (dtypes == checkpoint.config.end()) return info;
  const std::string from = (checkpoint.folder / "config.json").string();
  const Value stored = Value::from_json(*dtypes, from);
  for (const Value::Member& array : stored.members("array_dtypes")) {
    info.array_dtypes[array.key] = array.value.as_string("array_dtypes");
  }
  return info;
}

std::map<std::string, std::string> side_files(const Model& model, const ExportInfo& info) {
  return {{"config.json", model.config().dump(2) + "\n"},
          {"labels.json", nlohmann::ordered_json(info.input.classes).dump(2) + "\n"},
          {"preprocess.json", document_of(info.input).dump(2) + "\n"}};
}

}  // namespace moesaic
