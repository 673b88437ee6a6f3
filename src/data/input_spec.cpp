// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/input_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/data/resize.h"
#include "moesaic/data/source.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kByte = 1.0 / 255.0;

/// What a reader has to do as the decoder of JPEG does, see ImageDecoder::decode(): it follows from
/// the settings and is none.
constexpr const char* kReductions = "jpeg_reductions";

Json reductions_of(const InputSpec& spec) {
  if (!spec.images) return nullptr;
  return spec.preprocess.antialias ? Json({2, 4, 8}) : Json::array();
}

}  // namespace

std::string channel_order(int64_t channels) {
  return channels == 3 ? "rgb" : channels == 1 ? "gray" : "as stored";
}

ConfigProblem config_problem(const InputSpec& spec) {
  if (spec.input_size.size() != 3) {
    return {fmt::format("input_size must be [channels, height, width], found {} numbers",
                        spec.input_size.size()),
            {"input_size"}};
  }
  if (!spec.images) return {};
  const auto channels = static_cast<size_t>(spec.input_size[0]);
  if (std::max(spec.input_size[1], spec.input_size[2]) > kMaxSide) {
    return {fmt::format("input_size must be at most {} high and wide", kMaxSide), {"input_size"}};
  }
  for (const char* name : {"mean", "std"}) {
    const std::vector<double>& values = name[0] == 'm' ? spec.mean : spec.std;
    if (values.empty() && spec.mean.size() == spec.std.size()) continue;
    if (values.size() == channels) continue;
    return {fmt::format("{} must have a number for each of {} channels, found {}", name, channels,
                        values.size()),
            {name}};
  }
  if (const std::string unit = unit_problem(spec.mean, spec.std); !unit.empty()) {
    return {unit, {"mean", "std"}};
  }
  if (spec.rescale_factor && std::abs(*spec.rescale_factor - kByte) > 1e-6 * kByte) {
    return {fmt::format("rescale_factor must be 1/255, found {}", *spec.rescale_factor),
            {"rescale_factor"}};
  }
  PreprocessConfig preprocess = spec.preprocess;
  preprocess.size = {spec.input_size[1], spec.input_size[2]};
  preprocess.mean = preprocess.std = {};
  if (const std::string problem = config_problem(preprocess); !problem.empty()) return problem;
  const std::string order = channel_order(spec.input_size[0]);
  if (spec.channel_order == order) return {};
  return {fmt::format("channel_order of {} channels is '{}', found '{}'", channels, order,
                      spec.channel_order),
          {"channel_order"}};
}

InputSpec input_spec(const Dataset& data, const PreprocessConfig& config) {
  const DatasetInfo& info = data.info();
  InputSpec spec;
  spec.dataset = name_without_folders(info.name);
  const std::vector<std::string> names = dataset_names();
  spec.listed = std::find(names.begin(), names.end(), info.name) != names.end();
  spec.images = data.has_images();
  spec.input_size = {info.channels, info.height, info.width};
  spec.preprocess = config;
  spec.preprocess.mean = spec.preprocess.std = {};
  spec.preprocess.orientation = info.upright.value_or(true) ? "upright" : "stored";
  spec.own_values = !config.mean.empty();
  spec.channel_order = spec.images ? channel_order(info.channels) : "as stored";
  spec.classes = info.classes;
  if (!spec.images) return spec;
  spec.rescale_factor = kByte;
  spec.mean = info.mean;
  spec.std = info.std;
  return spec;
}

Json document_of(const InputSpec& spec) {
  Json document = to_json(spec);
  document.erase("size");
  document.erase("channels");
  if (spec.preprocess.orientation == "data") document["orientation"] = nullptr;
  for (const char* list : {"mean", "std"}) {
    if (document.at(list).empty()) document[list] = nullptr;
  }
  document[kReductions] = reductions_of(spec);
  return document;
}

InputSpec read_input_spec(const Json& document, const std::string& from) {
  Json known = document;
  if (known.is_object()) {
    known.erase(kReductions);
    for (auto item = known.begin(); item != known.end();) {
      item = item->is_null() ? known.erase(item) : std::next(item);
    }
  }
  try {
    auto spec = parse<InputSpec>(Value::from_json(known, from), "input");
    spec.preprocess.mean = spec.preprocess.std = {};
    return spec;
  } catch (const Error& error) {
    fail("{}", error.what());  // A program wrote it, so it is damaged or foreign.
  }
}

std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base,
                                            const InputSpec& spec) {
  const bool images = base->has_images();
  if (images != spec.images) {
    fail_usage("dataset '{}' has {}, the network was trained on {}", base->info().name,
               images ? "images" : "inputs that are no images",
               spec.images ? "images" : "inputs that are no images");
  }
  if (!images) return base;
  // Before the setting existed photos were as stored unless the data told otherwise.
  PreprocessConfig wanted = {.size = {spec.input_size[1], spec.input_size[2]},
                             .channels = spec.input_size[0],
                             .orientation = spec.preprocess.orientation};
  if (wanted.orientation == "data" && !base->info().upright) wanted.orientation = "stored";
  DatasetInfo info = preprocessed_info(base->info(), wanted);
  if (!spec.mean.empty()) {
    info.mean = spec.mean;
    info.std = spec.std;
  }
  return preprocessed(std::move(base), std::move(info), spec.preprocess);
}

void warn_of_overruled(const InputSpec& spec, const DatasetInfo& data, const std::string& from) {
  std::vector<std::string> names;
  const bool of_data = !spec.own_values && spec.preprocess.values == "standardized";
  // Grey of colours, or the reverse, has the same values in other numbers.
  const auto differ = [&](const std::vector<double>& own, const std::vector<double>& wanted) {
    return of_data && !wanted.empty() && converted_values(own, spec.input_size[0]) != wanted;
  };
  if (differ(data.mean, spec.mean)) names.emplace_back("mean");
  if (differ(data.std, spec.std)) names.emplace_back("std");
  const bool other_size =
      data.height != 0 && (data.height != spec.input_size[1] || data.width != spec.input_size[2]);
  // Those of its own data were resized in training, too.
  if (spec.images && other_size && name_without_folders(data.name) != spec.dataset) {
    names.emplace_back("size of images");
  }
  const std::string& habit = spec.preprocess.orientation;
  if (data.upright && habit != "data" && *data.upright != (habit == "upright")) {
    names.emplace_back("orientation");
  }
  if (names.empty()) return;
  log_warning(
      "{}: data set '{}' has another {} than the network was trained with: those of the "
      "checkpoint are used",
      from, data.name, fmt::join(names, ", "));
}

}  // namespace moesaic
