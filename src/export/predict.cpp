// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/predict.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/base/posix.h"
#include "moesaic/base/random.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/transforms.h"
#include "moesaic/export/formats.h"
#include "moesaic/formats/safetensors.h"
#include "moesaic/train/objective.h"

namespace moesaic {
namespace {

/// Expands the kept experts' weights [T, K] to [T, E].
at::Tensor combine_of_all(const RoutingRecord& record) {
  const auto options = record.logits_TE.options().dtype(torch::kLong);
  const at::Tensor kept = torch::tensor(record.kept, options);
  return torch::zeros_like(record.logits_TE).index_copy_(1, kept, combine_weights(record.routing));
}

/// Returns which tensors there are in place of 'images', as a part of a line: the one that is
/// probably meant, or their number and the names that are most like it.
std::string in_place_of_images(std::vector<std::string> names) {
  constexpr size_t kNamed = 3;
  if (names.empty()) return "; it holds none";
  if (nearest("images", names)) return "; " + did_you_mean("images", names);
  const std::string count = count_text(std::ssize(names), "tensor");
  const bool more = names.size() > kNamed;
  std::ranges::stable_sort(names, {},
                           [](const std::string& name) { return edit_distance("images", name); });
  names.resize(std::min(names.size(), kNamed));
  for (std::string& name : names) name = printable(name);
  return fmt::format("; it holds {}{}{}", count, more ? ", such as " : ": ",
                     fmt::join(names, ", "));
}

/// Returns the entry after checking its dtype and shape, before anything is read.
const safetensors::Entry& checked_entry(const safetensors::File& file, const Model& model,
                                        const fs::path& path) {
  const safetensors::Entry* entry = file.find("images");
  if (entry == nullptr) {
    std::vector<std::string> names;
    for (const auto& other : file.entries()) names.push_back(other.name);
    fail_usage("{}: no tensor 'images'{}", path.string(), in_place_of_images(std::move(names)));
  }
  if (entry->dtype != "F32" && entry->dtype != "F16" && entry->dtype != "BF16") {
    fail_usage("{}: 'images' must be F32, F16 or BF16, normalised, found {}", path.string(),
               entry->dtype);
  }
  const std::vector<int64_t> shape = model.input_shape();
  const bool fits =
      entry->shape.size() == 4 && std::equal(shape.begin(), shape.end(), entry->shape.begin() + 1);
  if (!fits) {
    fail_usage("{}: 'images' must have the shape [batch, {}], found [{}]", path.string(),
               fmt::join(shape, ", "), fmt::join(entry->shape, ", "));
  }
  return *entry;
}

void check_finite(const at::Tensor& images, const fs::path& path) {
  if (images.numel() == 0) return;
  const at::Tensor finite = images.flatten(1).isfinite().all(1);
  if (finite.all().item<bool>()) return;
  fail("{}: image {} of 'images' (from 0) holds NaN or infinity", path.string(),
       finite.logical_not().nonzero()[0][0].item<int64_t>());
}

at::Tensor read_images(const Model& model, const fs::path& path) {
  check_tensor_file(path);
  const safetensors::File file(path);
  const safetensors::Entry& entry = checked_entry(file, model, path);
  const at::ScalarType type = entry.dtype == "F32"   ? at::kFloat
                              : entry.dtype == "F16" ? at::kHalf
                                                     : at::kBFloat16;
  const at::Tensor stored = torch::empty(entry.shape, type);
  const auto bytes = file.bytes(entry);
  if (!bytes.empty()) std::memcpy(stored.mutable_data_ptr(), bytes.data(), bytes.size());
  const at::Tensor images = stored.to(at::kFloat);
  check_finite(images, path);
  return images;
}

/// Returns image files as a network takes them, with the bits of eval.
std::shared_ptr<const Dataset> inputs_of(const InputSpec& spec,
                                         const std::vector<fs::path>& files) {
  const int64_t channels = spec.input_size[0];
  if (channels != 1 && channels != 3) {
    fail_usage(
        "the network takes images of {} channels, image files have 3 or 1; give --input and "
        "--output",
        channels);
  }
  if (spec.mean.empty()) {
    fail(
        "the checkpoint does not store mean and std of its training data; "
        "give --input and --output, or of an imported vit add image_mean and image_std to its "
        "preprocessor_config.json and import it again");
  }
  return preprocessed(make_image_dataset({.name = "predict", .channels = channels}, files), spec);
}

at::Tensor network_input(const Dataset& data, int64_t index) {
  const DatasetInfo& info = data.info();
  at::Tensor input = at::empty({info.channels, info.height, info.width});
  std::vector<uint8_t> bytes(static_cast<size_t>(input.numel()));
  data.image(index, bytes.data());
  CounterRng unused(0, 0, 0);
  ImageTransform{info}(bytes.data(), unused, input.mutable_data_ptr<float>());
  return input;
}

/// The input of a file, undefined with a problem for one that cannot be read.
struct FileInput {
  at::Tensor values_CHW;
  std::string problem;
};

std::vector<FileInput> read_batch(const Dataset& data, int64_t first, int64_t count) {
  std::vector<FileInput> batch(static_cast<size_t>(count));
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      FileInput& input = batch[static_cast<size_t>(i)];
      try {
        input.values_CHW = network_input(data, first + i);
      } catch (const ImageError& error) {
        input.problem = error.what();
      } catch (const IoError& error) {
        input.problem = error.what();
      }
    }
  });
  return batch;
}

/// Adds the most probable classes of each image.
void add_top_classes(const at::Tensor& logits, const PredictOptions& options,
                     std::vector<ImagePrediction>& images) {
  const int64_t members = logits.size(0) / std::ssize(images);
  const at::Tensor log_BC = log_mean_probabilities(options.loss, logits, members);
  // The logarithm's rounding could make different logits equal.
  const at::Tensor& ranks = members == 1 ? logits : log_BC;
  const int64_t count = std::min(options.top_k, log_BC.size(1));
  const at::Tensor order =
      std::get<1>(ranks.sort(/*stable=*/true, 1, /*descending=*/true)).narrow(1, 0, count);
  const at::Tensor best = log_BC.gather(1, order).to(at::kDouble).exp();
  const auto index = order.accessor<int64_t, 2>();
  const auto probability = best.accessor<double, 2>();
  for (int64_t i = 0; i < std::ssize(images); ++i) {
    for (int64_t c = 0; c < count; ++c) {
      images[static_cast<size_t>(i)].top.push_back({index[i][c], probability[i][c]});
    }
  }
}

/// Adds the experts and gates of each image's tokens in one layer.
void add_routing(const RoutingRecord& record, std::vector<ImagePrediction>& images) {
  const auto numbers = [](const at::Tensor& tensor) { return tensor.to(at::kCPU, at::kLong); };
  const Routing& routing = record.routing;
  const at::Tensor bounds = numbers(routing.token_offsets), rows = numbers(routing.token_row);
  const at::Tensor experts = numbers(row_experts(routing));
  const at::Tensor gates = routing.gate.to(at::kCPU, at::kDouble).contiguous();
  const auto* const bound = bounds.const_data_ptr<int64_t>();
  const int64_t tokens = routing.num_tokens() / std::ssize(images);
  for (int64_t t = 0; t < routing.num_tokens(); ++t) {
    std::vector<ImageRouting>& layers = images[static_cast<size_t>(t / tokens)].routing;
    if (t % tokens == 0) layers.push_back({.block = record.block});
    ImageRouting& image = layers.back();
    image.experts.emplace_back();
    image.gates.emplace_back();
    for (int64_t i = bound[t]; i < bound[t + 1]; ++i) {
      const int64_t row = rows.const_data_ptr<int64_t>()[i];
      const int64_t slot = experts.const_data_ptr<int64_t>()[row];
      image.experts.back().push_back(record.kept.at(static_cast<size_t>(slot)));
      image.gates.back().push_back(gates.const_data_ptr<double>()[row]);
    }
  }
}

/// Returns what a forward pass of images [B, C, H, W] says of each.
std::vector<ImagePrediction> predict_batch(Model& model, const at::Tensor& images_BCHW,
                                           const PredictOptions& options) {
  const ModelOutput output = model.forward(images_BCHW.to(model.device()));
  std::vector<ImagePrediction> images(static_cast<size_t>(images_BCHW.size(0)));
  add_top_classes(output.logits.cpu(), options, images);
  for (const RoutingRecord& record : output.routings) {
    if (options.returns_routing) add_routing(record, images);
  }
  return images;
}

void check_predicts_classes(const Model& model, const InputSpec& spec, const std::string& loss) {
  if (!spec.has_images) {
    fail_usage(
        "the network's inputs are not images; give --input FILE.safetensors, with a float32 tensor "
        "'images' of shape [batch, {}], and --output",
        fmt::join(model.input_shape(), ", "));
  }
  if (model.num_classes() == 0) {
    fail_usage("the network has no head, so there are no classes; give --input and --output");
  }
  if (classification_losses().find(loss) == nullptr) {
    fail_usage("the network was trained by '{}', not to classify; give --input and --output", loss);
  }
}

std::string class_name(int64_t index, const std::vector<std::string>& classes) {
  const auto at = static_cast<size_t>(index);
  return at < classes.size() ? classes[at] : fmt::to_string(index);
}

/// Returns a number of six significant digits, since float32 has no more.
double rounded(double value) {
  return parsed_number<double>(fmt::format("{:.6g}", value)).value();
}

/// Refuses a network whose experts select more tokens than the image has that is routed alone.
void check_image_is_enough(const Model& model) {
  for (const MoEBlock& block : model.moe_blocks()) {
    const RouteOptions rule = block.layer->router->evaluation_rule();
    if (!rule.is_expert_choice() || rule.l <= model.tokens_per_image()) continue;
    fail_usage(
        "predict: each expert of block {} selects {} tokens of a batch, but images are classified "
        "one by one and have {}; moesaic eval classifies batches",
        block.block, rule.l, count_text(model.tokens_per_image(), "token"));
  }
}

}  // namespace

std::map<std::string, at::Tensor> predict(Model& model, const at::Tensor& images_BCHW,
                                          const PredictOptions& options) {
  int64_t batch = options.batch_size.value_or(256);
  if (batch < 1) fail_usage("predict: batch_size must be at least 1, found {}", batch);
  const torch::NoGradGuard no_grad;
  const int64_t count = images_BCHW.size(0);
  for (const MoEBlock& block : model.moe_blocks()) {
    const bool couples = nn::is_batch_dependent(block.layer->router->evaluation_rule());
    if (couples) batch = std::max<int64_t>(count, 1);
  }
  std::map<std::string, std::vector<at::Tensor>> parts;
  int64_t begin = 0;
  do {  // Runs once even without an image, for the outputs' shapes.
    const int64_t size = std::min(batch, count - begin);
    model.set_first_sample_index(begin);
    const ModelOutput out = model.forward(images_BCHW.narrow(0, begin, size).to(model.device()));
    parts["logits"].push_back(out.logits.cpu());
    if (out.pre_logits.defined()) parts["pre_logits"].push_back(out.pre_logits.cpu());
    for (const RoutingRecord& record : out.routings) {
      if (!options.returns_routing) break;
      const std::string name = "routing." + std::to_string(record.block);
      parts[name + ".logits"].push_back(record.logits_TE.cpu());
      parts[name + ".combine"].push_back(combine_of_all(record).cpu());
    }
    begin += size;
  } while (begin < count);
  model.set_first_sample_index(0);
  std::map<std::string, at::Tensor> outputs;
  for (const auto& [name, list] : parts) outputs[name] = torch::cat(list);
  if (model.num_members() > 1 && model.num_classes() > 0) {
    const std::string loss = options.loss.empty() ? "ensemble_softmax" : options.loss;
    outputs["log_mean_prob"] =
        log_mean_probabilities(loss, outputs.at("logits"), model.num_members());
  }
  return outputs;
}

void predict_file(Model& model, const fs::path& input, const fs::path& output,
                  const PredictOptions& options) {
  check_new_file(output, "predict");
  write_tensors(output, predict(model, read_images(model, input), options));
}

void FeatureFile::add(const EvaluatedBatch& batch) {
  if (!batch.labels_B.defined()) {
    fail_usage("--features: the targets of '{}' are real numbers, not classes; leave it out",
               batch.dataset.info().name);
  }
  const at::Tensor rows = batch.output.pre_logits.to(at::kCPU, at::kFloat).contiguous();
  num_rows_ += rows.size(0);
  width_ = rows.size(1);
  file_.write({static_cast<const std::byte*>(rows.const_data_ptr()), rows.nbytes()});
}

void FeatureFile::finish(const Predictions& predictions) {
  file_.sync();
  const MappedFile mapped(fmt::format("/proc/self/fd/{}", file_.fd()));
  auto* const bytes = const_cast<std::byte*>(mapped.bytes().data());  // Only read.
  write_tensors(path_, {{"pre_logits", at::from_blob(bytes, {num_rows_, width_}, at::kFloat)},
                        {"labels", predictions.label_N},
                        {"predictions", predictions.predicted_N}});
}

void predict_images(Model& model, const InputSpec& spec, const std::vector<fs::path>& files,
                    const PredictOptions& given,
                    const std::function<bool(const ImagePrediction&)>& on_prediction) {
  PredictOptions options = given;
  if (options.loss.empty()) options.loss = model.num_members() > 1 ? "ensemble_softmax" : "softmax";
  check_predicts_classes(model, spec, options.loss);
  const std::shared_ptr<const Dataset> data = inputs_of(spec, files);
  const c10::InferenceMode inference;
  model.eval();
  const bool alone = !batch_dependence(model).empty();
  if (alone) check_image_is_enough(model);
  const int64_t total = std::ssize(files);
  const int64_t batch_size = options.batch_size.value_or(32);
  for (int64_t first = 0; first < total; first += batch_size) {
    const int64_t count = std::min(batch_size, total - first);
    const std::vector<FileInput> batch = read_batch(*data, first, count);
    std::vector<at::Tensor> sound;
    for (const FileInput& input : batch) {
      if (input.values_CHW.defined()) sound.push_back(input.values_CHW.unsqueeze(0));
    }
    if (!alone && !sound.empty()) sound = {at::cat(sound)};
    std::vector<ImagePrediction> predicted;
    for (const at::Tensor& images_BCHW : sound) {
      for (auto& one : predict_batch(model, images_BCHW, options)) {
        predicted.push_back(std::move(one));
      }
    }
    auto next = predicted.begin();
    for (size_t i = 0; i < batch.size(); ++i) {
      ImagePrediction prediction;
      if (batch[i].values_CHW.defined()) prediction = std::move(*next++);
      prediction.file = files[static_cast<size_t>(first) + i];
      prediction.problem = batch[i].problem;
      if (!on_prediction(prediction)) return;
    }
  }
}

Json to_json(const ImagePrediction& prediction, const std::vector<std::string>& classes) {
  Json json = {{"file", prediction.file.string()}};
  if (!prediction.problem.empty()) {
    json["error"] = prediction.problem;
    return json;
  }
  json["top"] = Json::array();
  for (const PredictedClass& found : prediction.top) {
    json["top"].push_back({{"class", class_name(found.index, classes)},
                           {"index", found.index},
                           {"probability", rounded(found.probability)}});
  }
  for (const ImageRouting& layer : prediction.routing) {
    auto gates = Json::array();
    for (const std::vector<double>& of_token : layer.gates) {
      gates.push_back(Json::array());
      for (const double gate : of_token) gates.back().push_back(rounded(gate));
    }
    json["routing"].push_back(
        {{"layer", layer.block}, {"experts", layer.experts}, {"gates", gates}});
  }
  return json;
}

std::string to_csv(const ImagePrediction& prediction, const std::vector<std::string>& classes) {
  std::string lines;
  for (size_t i = 0; i < prediction.top.size(); ++i) {
    const PredictedClass& found = prediction.top[i];
    lines += csv_line({escaped(prediction.file.string()), fmt::to_string(i + 1),
                       escaped(class_name(found.index, classes)),
                       fmt::format("{:.6g}", found.probability)});
  }
  return lines;
}

std::string to_text(const ImagePrediction& prediction, const std::vector<std::string>& classes) {
  std::string line = one_line(prediction.file.string(), prediction.file.string().size()) + ":";
  for (const PredictedClass& found : prediction.top) {
    line += fmt::format("{} {} {:.2f} %", &found == &prediction.top.front() ? "" : ",",
                        escaped(class_name(found.index, classes)), 100.0 * found.probability);
  }
  return line + "\n";
}

}  // namespace moesaic
