// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/info.h"

#include <algorithm>

#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/data/catalog.h"
#include "moesaic/data/format.h"
#include "moesaic/data/preprocess.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

/// By the catalogue, or by a file or folder that is still there; a name alone is never a path.
bool is_described(const std::string& dataset) {
  const bool is_path = dataset.find('/') != std::string::npos || dataset.ends_with(".json");
  if (is_path) return path_exists(dataset);
  const std::vector<std::string> names = dataset_names();
  return std::find(names.begin(), names.end(), dataset) != names.end();
}

Json preprocess(const Model& model, const ExportInfo& info) {
  Json json;
  json["dataset"] = info.dataset.empty() ? Json() : Json(info.dataset);
  json["input_size"] = model.input_shape();
  json["rescale_factor"] = info.of_images ? Json(1.0 / 255.0) : Json();
  json["mean"] = info.mean.empty() ? Json() : Json(info.mean);
  json["std"] = info.std.empty() ? Json() : Json(info.std);
  return json;
}

/// Of a checkpoint that names no dataset: symmetric values are the same whatever they come from.
void describe_values(const Value& config, ExportInfo& info) {
  const Value* preprocess = config.find("preprocess");
  if (preprocess == nullptr) return;
  if (parse<PreprocessConfig>(*preprocess, "preprocess").values != "symmetric") return;
  const Value* channels = config.at("model").find("channels");
  const auto count =
      static_cast<size_t>(channels == nullptr ? 3 : channels->to_json().get<int64_t>());
  info.mean.assign(count, 0.5);
  info.std.assign(count, 0.5);
}

}  // namespace

ExportInfo export_info(const std::filesystem::path& checkpoint) {
  const Document config = stored_document(checkpoint / "config.json");
  ExportInfo info;
  if (const Value* classes = config.root().find("classes"); classes && !classes->is_null()) {
    for (const Value& name : classes->items("classes")) {
      info.classes.push_back(name.as_string("classes"));
    }
  }
  if (const Value* dtypes = config.root().find("array_dtypes")) {
    for (const Value::Member& array : dtypes->members("array_dtypes")) {
      info.array_dtypes[array.key] = array.value.as_string("array_dtypes");
    }
  }
  if (const Value* data = config.root().find("data"); data && !data->is_null()) {
    info.dataset = data->as_string("data");
  }
  if (info.dataset.empty()) {
    describe_values(config.root(), info);
    return info;
  }
  if (!is_described(info.dataset)) {
    log_warning("data set '{}' is not described here: mean and std are left out", info.dataset);
    return info;
  }
  const DatasetSpec spec = load_base_spec(info.dataset);
  info.of_images = format_of(spec).images;
  if (!info.of_images) return info;
  DatasetInfo data;
  data.channels = static_cast<int64_t>(spec.mean.size());
  data.height = data.width = 1;  // The model's configuration has them.
  data.mean = spec.mean;
  data.std = spec.std;
  if (const Value* preprocess = config.root().find("preprocess")) {
    data = preprocessed_info(data, parse<PreprocessConfig>(*preprocess, "preprocess"));
  }
  info.mean = data.mean;
  info.std = data.std;
  return info;
}

std::map<std::string, std::string> side_files(const Model& model, const ExportInfo& info) {
  return {{"config.json", model.config().dump(2) + "\n"},
          {"labels.json", Json(info.classes).dump(2) + "\n"},
          {"preprocess.json", preprocess(model, info).dump(2) + "\n"}};
}

}  // namespace moesaic
