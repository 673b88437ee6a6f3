// SPDX-License-Identifier: Apache-2.0
// How images become inputs: timm's pretrained_cfg and Hugging Face's preprocessor_config.json.

#include <cmath>

#include "vit.h"

namespace moesaic::vit {
namespace {

constexpr const char* kAssumedCubic = "; bicubic is used";

/// Returns a member of an object, null where it has none.
Value member(const Value& object, const char* key) {
  const Value* const found = object.find(key);
  return found == nullptr ? Value() : *found;
}

/// Returns a value for each channel, or for those of colours where a network has others.
std::vector<double> numbers(const Value& value, const char* name, int64_t channels) {
  std::vector<double> list;
  if (value.is_null()) return list;
  for (const Value& item : value.items(name)) list.push_back(item.as_double("a value"));
  const int64_t count = std::ssize(list);
  if (count == channels || count == 3) return list;
  fail("{}: '{}' has {}, images have {}", value.where(), name, count_text(count, "value"),
       count_text(channels, "channel"));
}

/// Returns the part of an image that a crop leaves.
double cropped_part(double part, const char* name, std::vector<std::string>& notes) {
  if (part <= 1.0) return part;
  notes.push_back(fmt::format(
      "{}: the crop is larger than the image; all of it is used, without padding", name));
  return 1.0;
}

/// Returns the height of sizes given as N, [height, width] or {"height": N, ...}.
double height_of(const Value& value) {
  if (value.is_null()) return 0.0;
  if (value.is_object()) {
    for (const char* key : {"height", "shortest_edge"}) {
      if (const Value* side = value.find(key)) return side->as_double(key);
    }
    return 0.0;
  }
  if (value.kind() == Value::Kind::array) {
    const Value::Array& sides = value.items();
    return sides.empty() ? 0.0 : sides.front().as_double("height");
  }
  return value.as_double("size");
}

bool is_false(const Value& value) {
  return !value.is_null() && !value.as_bool("a switch");
}

void read_timm(const SideFiles& beside, InputSpec& spec, std::vector<std::string>& notes) {
  spec.mean = numbers(beside.pretrained("mean"), "mean", spec.input_size[0]);
  spec.std = numbers(beside.pretrained("std"), "std", spec.input_size[0]);
  const Value crop = beside.pretrained("crop_pct"), mode = beside.pretrained("crop_mode");
  const Value interpolation = beside.pretrained("interpolation");
  const double fraction = crop.is_null() ? 0.875 : crop.as_double("crop_pct");
  if (!(fraction > 0.0)) {
    fail("{}: 'crop_pct' must be above 0, found {}", crop.where(), fraction);
  }
  const std::string how = mode.is_null() ? "center" : mode.as_string("crop_mode");
  // timm resizes to floor(size / crop_pct) first, of which the crop has the size.
  const auto side = static_cast<double>(spec.preprocess.size.height);
  spec.preprocess.central_crop =
      cropped_part(side / std::floor(side / fraction), "crop_pct", notes);
  if (how == "squash" && fraction >= 1.0) spec.preprocess.central_crop = 0.0;
  if (how != "center" && !(how == "squash" && fraction >= 1.0)) {
    notes.push_back(fmt::format("crop_mode {} becomes a central crop", printable(how)));
  }
  const std::string name =
      interpolation.is_null() ? "bicubic" : interpolation.as_string("interpolation");
  spec.preprocess.interpolation = name == "bilinear" ? name : "bicubic";
  if (name != spec.preprocess.interpolation) {
    notes.push_back(fmt::format("interpolation {}{}", printable(name), kAssumedCubic));
  }
}

void read_hugging_face(const Value& images, InputSpec& spec, std::vector<std::string>& notes) {
  for (const char* step : {"do_resize", "do_rescale"}) {
    if (is_false(member(images, step))) {
      fail("{}: '{}' is false; images are resized and scaled to [0, 1] here, as with true",
           images.where(), step);
    }
  }
  const Value rescale = member(images, "rescale_factor");
  if (!rescale.is_null()) spec.rescale_factor = rescale.as_double("rescale_factor");
  spec.mean = numbers(member(images, "image_mean"), "image_mean", spec.input_size[0]);
  spec.std = numbers(member(images, "image_std"), "image_std", spec.input_size[0]);
  const auto channels = static_cast<size_t>(spec.input_size[0]);
  if (is_false(member(images, "do_normalize"))) {
    spec.mean.assign(channels, 0.0);
    spec.std.assign(channels, 1.0);
  }
  const Value size = member(images, "size"), crops = member(images, "do_center_crop");
  const double resized = height_of(size), cropped = height_of(member(images, "crop_size"));
  const bool is_cropped = !crops.is_null() && !is_false(crops);
  if (is_cropped && resized > 0.0 && cropped > 0.0) {
    spec.preprocess.central_crop = cropped_part(cropped / resized, "crop_size", notes);
  } else if (size.find("shortest_edge") != nullptr) {
    spec.preprocess.central_crop = 1.0;
  }
  const double given = is_cropped && cropped > 0.0 ? cropped : resized;
  const int64_t height = spec.preprocess.size.height;
  if (given > 0.0 && given != static_cast<double>(height)) {
    notes.push_back(fmt::format(
        "the processor makes images of height {0}, this network takes {1}; --image-size {0} "
        "makes both equal",
        given, height));
  }
  constexpr int64_t kBilinear = 2, kBicubic = 3;  // Pillow's numbers.
  const Value filter = member(images, "resample");
  const int64_t number = filter.is_null() ? kBilinear : filter.as_int("resample");
  spec.preprocess.interpolation = number == kBilinear ? "bilinear" : "bicubic";
  if (number != kBilinear && number != kBicubic) {
    notes.push_back(fmt::format("resample {}{}", number, kAssumedCubic));
  }
}

/// Returns the names of the classes, none where the files have other ones or numbers only.
std::vector<std::string> class_names(const VMoEConfig& config, const SideFiles& beside,
                                     std::vector<std::string>& notes) {
  std::vector<std::string> names;
  const Value listed = beside.pretrained("label_names");
  const Value by_number = listed.is_object() ? listed : member(beside.model, "id2label");
  if (listed.kind() == Value::Kind::array) {
    for (const Value& name : listed.items()) names.push_back(name.as_string("a label"));
  } else if (by_number.is_object()) {
    names.resize(by_number.members().size());
    for (const Value::Member& label : by_number.members()) {
      const auto number = parsed_number<size_t>(label.key);
      if (!number || *number >= names.size()) return {};
      names[*number] = label.value.as_string("a label");
      if (names[*number] == "LABEL_" + label.key) return {};
    }
  }
  if (std::ssize(names) == config.num_classes) return names;
  if (!names.empty() && config.num_classes > 0) {
    notes.push_back(fmt::format("{} left out: the network has {}",
                                count_text(std::ssize(names), "name") + " of classes",
                                count_text(config.num_classes, "output")));
  }
  return {};
}

}  // namespace

InputSpec input_of(const VMoEConfig& config, const SideFiles& beside,
                   std::vector<std::string>& notes) {
  InputSpec spec;
  spec.input_size = {config.channels, config.image_size.height, config.image_size.width};
  spec.preprocess.orientation = "stored";
  spec.preprocess.size = config.image_size;
  spec.rescale_factor = 1.0 / 255.0;
  spec.channel_order = channel_order(config.channels);
  with_errors_as_failures([&] {
    if (!beside.images.is_null()) {
      read_hugging_face(beside.images, spec, notes);
    } else if (!beside.pretrained("mean").is_null()) {
      read_timm(beside, spec, notes);
    }
    spec.classes = class_names(config, beside, notes);
  });
  const auto channels = static_cast<size_t>(config.channels);
  if (spec.mean.size() != channels || spec.std.size() != channels) {
    spec.mean = spec.std = {};
    notes.push_back(
        "no file tells mean and std of the channels: those of the data are used; for predict, add "
        "image_mean and image_std to preprocessor_config.json and import again");
  }
  spec.has_own_values = !spec.mean.empty();
  const std::set<std::string> different(spec.classes.begin(), spec.classes.end());
  if (different.size() < spec.classes.size()) {
    spec.classes.clear();
    notes.push_back("names of classes left out: several classes have the same name");
  }
  const std::string from = beside.images.is_null() ? "config.json" : "preprocessor_config.json";
  read_input_spec(document_of(spec), from);
  return spec;
}

}  // namespace moesaic::vit
