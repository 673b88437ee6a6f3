// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/preprocess.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/config/document.h"
#include "moesaic/data/resize.h"
#include "moesaic/data/source.h"

namespace moesaic {
namespace {

/// Returns whether images have the same shape and orientation.
bool same_images(const DatasetInfo& a, const DatasetInfo& b) {
  return a.height == b.height && a.width == b.width && a.channels == b.channels &&
         a.applies_exif.value_or(true) == b.applies_exif.value_or(true);
}

/// Warns, once of each, of a std that is smaller than a level of a pixel, which few images have.
void warn_of_small_std(const std::vector<double>& std, const std::string& from) {
  constexpr double kLevel = 1.0 / 256.0;  // Pixels from 0 to 255 as they are have 1/255.
  for (const double value : std) {
    if (value >= kLevel) continue;
    return log_once(LogLevel::warning,
                    fmt::format("{}: std is of pixels scaled to [0, 1], whose levels are 1/255 "
                                "apart, and {} is less; divide std by 255 only once",
                                from, value));
  }
}

/// Returns the part of an image that is kept: the whole image, or with `central_crop` > 0 that
/// fraction of the largest central part whose sides have the ratio of `shape`.
Rectangle central_part(int64_t height, int64_t width, double central_crop, Size2d shape) {
  if (central_crop == 0.0) return {0, 0, height, width};
  const double ratio = static_cast<double>(shape.width) / static_cast<double>(shape.height);
  const double h = static_cast<double>(height), w = static_cast<double>(width);
  const auto kept = [&](double largest, int64_t most) {
    return std::clamp<int64_t>(std::llround(largest * central_crop), 1, most);
  };
  const int64_t rows = kept(std::min(h, w / ratio), height);
  const int64_t columns = kept(std::min(w, h * ratio), width);
  return {(height - rows) / 2, (width - columns) / 2, rows, columns};
}

class PreprocessedDataset final : public Dataset {
 public:
  PreprocessedDataset(std::shared_ptr<const Dataset> base, DatasetInfo metadata,
                      const PreprocessConfig& config)
      : Dataset(std::move(metadata)), base_(std::move(base)), central_crop_(config.central_crop) {
    unchanged_ =
        same_images(base_->info(), info()) && (central_crop_ == 0.0 || central_crop_ == 1.0);
  }

  int64_t size() const override { return base_->size(); }
  int64_t label(int64_t index) const override { return base_->label(index); }
  int64_t group(int64_t index) const override { return base_->group(index); }
  void targets(int64_t index, float* out) const override { base_->targets(index, out); }
  std::vector<int64_t> blocks() const override { return base_->blocks(); }

  void oriented_image(int64_t index, std::optional<bool> applies_exif,
                      uint8_t* out) const override {
    if (unchanged_) return base_->oriented_image(index, applies_exif, out);
    read_crop(
        index,
        [this](int64_t h, int64_t w) {
          return central_part(h, w, central_crop_, {info().height, info().width});
        },
        out, applies_exif);
  }

  Rectangle decode(int64_t index, const ChooseCrop& choose, const ReadOptions& options,
                   Bitmap& bitmap) const override {
    ReadOptions own = options;
    if (!own.applies_exif) own.applies_exif = info().applies_exif;
    const Rectangle chosen = base_->decode(index, choose, own, bitmap);
    convert_channels(bitmap, info().channels);
    return chosen;
  }

 private:
  std::shared_ptr<const Dataset> base_;
  double central_crop_;
  bool unchanged_;
};

constexpr double kByte = 1.0 / 255.0;

/// What a reader has to do as the decoder of JPEG does, see ImageDecoder::decode(): it follows from
/// the settings and is none.
constexpr const char* kReductions = "jpeg_reductions";

}  // namespace

DatasetInfo preprocessed_info(DatasetInfo info, const PreprocessConfig& config) {
  if (config.size != Size2d(0)) {
    info.height = config.size.height;
    info.width = config.size.width;
  }
  if (info.height < 1 || info.width < 1) {
    fail_usage("dataset '{}': the images may differ in size; set preprocess.size", info.name);
  }
  if (config.orientation != "data") info.applies_exif = config.orientation == "upright";
  if (config.channels != 0 && can_convert_channels(info.channels, config.channels)) {
    info.channels = config.channels;
    info.mean = converted_values(info.mean, info.channels);
    info.std = converted_values(info.std, info.channels);
  }
  const auto channels = static_cast<size_t>(info.channels);
  if (config.values == "symmetric") {
    info.mean.assign(channels, 0.5);
    info.std.assign(channels, 0.5);
  } else if (config.values == "unit") {
    info.mean.assign(channels, 0.0);
    info.std.assign(channels, 1.0);
  } else if (!config.mean.empty()) {
    if (config.mean.size() != channels) {
      fail_usage("dataset '{}': its images have {} channels, preprocess.mean {} values", info.name,
                 channels, config.mean.size());
    }
    info.mean = config.mean;
    info.std = config.std;
  }
  return info;
}

ConfigProblem config_problem(const PreprocessConfig& config) {
  if (config.truncate && (config.antialias || config.interpolation != "bilinear")) {
    return {"truncate needs interpolation bilinear and antialias false"};
  }
  if (config.mean.size() != config.std.size()) return {"mean and std must be of the same channels"};
  if (!config.mean.empty() && config.values != "standardized") {
    return "mean and std are for the values 'standardized', found '" + config.values + "'";
  }
  if ((config.size.height == 0) != (config.size.width == 0)) {
    return {"size must have both sides above 0, or be 0"};
  }
  if (config.channels == 2) return {"channels must be 1 (grey), 3 (colours) or 0, found 2"};
  if (config.central_crop > 0 && config.size == Size2d(0)) return {"central_crop needs size"};
  return unit_problem(config.mean, config.std);
}

ConfigProblem unit_problem(const std::vector<double>& mean, const std::vector<double>& std) {
  constexpr double kLeast = 1e-6;  // Of a channel of one value; normalised values would overflow.
  for (const auto* values : {&mean, &std}) {
    const std::string name = values == &mean ? "mean" : "std";
    for (const double value : *values) {
      if (values == &std && value > 0.0 && value < kLeast) {
        return {fmt::format("std must be at least {}, found {}", kLeast, value), {name}};
      }
      if (value >= 0.0 && value <= 1.0) continue;
      return {
          fmt::format("{} is of pixels scaled to [0, 1] and must be between 0 and 1, found {}{}",
                      name, value, value > 1.0 ? "; of pixels from 0 to 255 divide it by 255" : ""),
          {name}};
    }
  }
  return {};
}

PreprocessConfig for_network(PreprocessConfig config, const DatasetInfo& data,
                             const std::vector<int64_t>& input_shape) {
  if (input_shape.size() != 3) return config;
  const int64_t channels = input_shape[0];
  if (config.channels == 0 && data.has_flexible_channels &&
      can_convert_channels(data.channels, channels)) {
    config.channels = channels;
  }
  if (config.size == Size2d(0) && data.height == 0) config.size = {input_shape[1], input_shape[2]};
  return config;
}

std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base,
                                            const PreprocessConfig& config) {
  if (!base->has_images()) {
    if (to_json(config) == to_json(PreprocessConfig())) return base;
    fail_usage("dataset '{}': the inputs are not images; leave 'preprocess' out",
               base->info().name);
  }
  DatasetInfo info = preprocessed_info(base->info(), config);
  warn_of_small_std(info.std, fmt::format("dataset '{}'", info.name));
  return preprocessed(std::move(base), std::move(info), config);
}

std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base, DatasetInfo info,
                                            const PreprocessConfig& config) {
  const DatasetInfo& own = base->info();
  const bool same = same_images(info, own) && info.mean == own.mean && info.std == own.std;
  if (same && config.central_crop == 0.0) return base;
  info.resize = {
      config.interpolation == "bicubic" ? Interpolation::bicubic : Interpolation::bilinear,
      config.antialias, config.truncate};
  return std::make_shared<PreprocessedDataset>(std::move(base), std::move(info), config);
}

std::string channel_order(int64_t channels) {
  return channels == 3 ? "rgb" : channels == 1 ? "gray" : "as stored";
}

ConfigProblem config_problem(const InputSpec& spec) {
  if (spec.input_size.size() != 3) {
    return {fmt::format("input_size must be [channels, height, width], found {} numbers",
                        spec.input_size.size()),
            {"input_size"}};
  }
  if (spec.takes_bytes && (!spec.has_images || spec.mean.empty() || !spec.rescale_factor)) {
    return {"takes_bytes needs images, rescale_factor, mean and std", {"takes_bytes"}};
  }
  if (!spec.has_images) return {};
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
  if (ConfigProblem unit = unit_problem(spec.mean, spec.std); !unit.empty()) return unit;
  if (spec.rescale_factor && std::abs(*spec.rescale_factor - kByte) > 1e-6 * kByte) {
    return {fmt::format("rescale_factor must be 1/255, found {}", *spec.rescale_factor),
            {"rescale_factor"}};
  }
  PreprocessConfig preprocess = spec.preprocess;
  preprocess.size = {spec.input_size[1], spec.input_size[2]};
  preprocess.mean = preprocess.std = {};
  if (ConfigProblem problem = config_problem(preprocess); !problem.empty()) return problem.text;
  const std::string order = channel_order(spec.input_size[0]);
  if (spec.channel_order == order) return {};
  return {fmt::format("channel_order of {} channels is '{}', found '{}'", channels, order,
                      spec.channel_order),
          {"channel_order"}};
}

InputSpec input_spec(const Dataset& data, const PreprocessConfig& config) {
  const DatasetInfo& info = data.info();
  InputSpec spec = {.dataset = name_without_folders(info.name),
                    .is_listed = std::ranges::count(dataset_names(), info.name) > 0,
                    .has_images = info.has_images,
                    .input_size = {info.channels, info.height, info.width},
                    .preprocess = config,
                    .has_own_values = !config.mean.empty(),
                    .channel_order = info.has_images ? channel_order(info.channels) : "as stored",
                    .classes = info.classes};
  spec.preprocess.mean = spec.preprocess.std = {};
  spec.preprocess.orientation = info.applies_exif.value_or(true) ? "upright" : "stored";
  if (!spec.has_images) return spec;
  spec.rescale_factor = kByte;
  spec.mean = info.mean;
  spec.std = info.std;
  return spec;
}

Json document_of(const InputSpec& spec) {
  Json document = to_json(spec);
  document.erase("size");
  document.erase("channels");
  if (!spec.takes_bytes) document.erase("takes_bytes");
  if (spec.preprocess.orientation == "data") document["orientation"] = nullptr;
  for (const char* list : {"mean", "std"}) {
    if (document.at(list).empty()) document[list] = nullptr;
  }
  document[kReductions] = !spec.has_images            ? Json()
                          : spec.preprocess.antialias ? Json({2, 4, 8})
                                                      : Json::array();
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
  return with_errors_as_failures([&] {
    auto spec = parse<InputSpec>(Value::from_json(known, from), "input");
    spec.preprocess.mean = spec.preprocess.std = {};
    warn_of_small_std(spec.std, from);
    return spec;
  });
}

std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base,
                                            const InputSpec& spec) {
  const bool images = base->has_images();
  if (images != spec.has_images) {
    fail_usage("dataset '{}' has {}, the network was trained on {}", base->info().name,
               images ? "images" : "inputs other than images",
               spec.has_images ? "images" : "inputs other than images");
  }
  if (!images) return base;
  // Before the setting existed photos were as stored unless the data told otherwise.
  PreprocessConfig wanted = {.size = {spec.input_size[1], spec.input_size[2]},
                             .channels = spec.input_size[0],
                             .orientation = spec.preprocess.orientation};
  if (wanted.orientation == "data" && !base->info().applies_exif) wanted.orientation = "stored";
  DatasetInfo info = preprocessed_info(base->info(), wanted);
  if (!spec.mean.empty()) {
    info.mean = spec.mean;
    info.std = spec.std;
  }
  return preprocessed(std::move(base), std::move(info), spec.preprocess);
}

void warn_overridden(const InputSpec& spec, const DatasetInfo& data, const std::string& from) {
  std::vector<std::string> names;
  const bool of_data = !spec.has_own_values && spec.preprocess.values == "standardized";
  // Grey of colours, or the reverse, has the same values in other numbers.
  const auto differ = [&](const std::vector<double>& own, const std::vector<double>& wanted) {
    return of_data && !wanted.empty() && converted_values(own, spec.input_size[0]) != wanted;
  };
  if (differ(data.mean, spec.mean)) names.emplace_back("mean");
  if (differ(data.std, spec.std)) names.emplace_back("std");
  const bool other_size =
      data.height != 0 && (data.height != spec.input_size[1] || data.width != spec.input_size[2]);
  // Those of its own data were resized in training, too.
  if (spec.has_images && other_size && name_without_folders(data.name) != spec.dataset) {
    names.emplace_back("size of images");
  }
  const std::string& habit = spec.preprocess.orientation;
  if (data.applies_exif && habit != "data" && *data.applies_exif != (habit == "upright")) {
    names.emplace_back("orientation");
  }
  if (names.empty()) return;
  log_warning("{}: images of '{}' get the checkpoint's {}, which differ{} from the dataset's", from,
              data.name, fmt::join(names, " and "), names.size() == 1 ? "s" : "");
}

}  // namespace moesaic
