// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/predict.h"

#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/formats/safetensors.h"
#include "moesaic/train/objective.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

bool couples_images(const Model& model) {
  const auto blocks = model.moe_blocks();
  return std::any_of(blocks.begin(), blocks.end(), [](const MoEBlock& block) {
    return nn::couples_tokens(block.layer->router->evaluation_rule());
  });
}

/// Expands the kept experts' weights [T, K] to [T, E].
at::Tensor combine_of_all(const RoutingRecord& record) {
  const auto options = record.logits_TE.options().dtype(torch::kLong);
  const at::Tensor kept = torch::tensor(record.kept, options);
  return torch::zeros_like(record.logits_TE).index_copy_(1, kept, combine_weights(record.routing));
}

using Parts = std::map<std::string, std::vector<at::Tensor>>;

void add_batch(Model& model, const at::Tensor& images, bool routing, Parts& parts) {
  const ModelOutput out = model.forward(images.to(model.device()));
  parts["logits"].push_back(out.logits.cpu());
  parts["pre_logits"].push_back(out.pre_logits.cpu());
  if (!routing) return;
  for (const RoutingRecord& record : out.routings) {
    const std::string name = "routing." + std::to_string(record.block);
    parts[name + ".logits"].push_back(record.logits_TE.cpu());
    parts[name + ".combine"].push_back(combine_of_all(record).cpu());
  }
}

std::string names_in(const safetensors::File& file) {
  std::vector<std::string> names;
  for (const auto& entry : file.entries()) names.push_back(entry.name);
  return did_you_mean("images", names);
}

/// Returns the entry after checking its dtype and shape, before anything is read.
const safetensors::Entry& checked_entry(const safetensors::File& file, const Model& model,
                                        const fs::path& path) {
  const safetensors::Entry* entry = file.find("images");
  if (entry == nullptr) fail("{}: no tensor 'images'; {}", path.string(), names_in(file));
  if (entry->dtype != "F32" && entry->dtype != "F16" && entry->dtype != "BF16") {
    fail("{}: 'images' must be F32, F16 or BF16, normalised, found {}", path.string(),
         entry->dtype);
  }
  const std::vector<int64_t> shape = model.input_shape();
  const bool fits =
      entry->shape.size() == 4 && std::equal(shape.begin(), shape.end(), entry->shape.begin() + 1);
  if (!fits) {
    fail("{}: 'images' must have the shape [batch, {}], found [{}]", path.string(),
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

}  // namespace

std::map<std::string, at::Tensor> predict(Model& model, const at::Tensor& images_BCHW,
                                          const PredictOptions& options) {
  if (options.batch_size < 1) {
    fail_usage("predict: batch_size must be at least 1, found {}", options.batch_size);
  }
  const torch::NoGradGuard no_grad;
  const int64_t count = images_BCHW.size(0);
  const int64_t batch = couples_images(model) ? std::max<int64_t>(count, 1) : options.batch_size;
  Parts parts;
  int64_t begin = 0;
  do {  // Runs once even without an image, for the outputs' shapes.
    const int64_t size = std::min(batch, count - begin);
    model.set_first_sample_index(begin);
    add_batch(model, images_BCHW.narrow(0, begin, size), options.routing, parts);
    begin += size;
  } while (begin < count);
  model.set_first_sample_index(0);
  std::map<std::string, at::Tensor> outputs;
  for (const auto& [name, list] : parts) outputs[name] = torch::cat(list);
  if (model.members() > 1 && model.classes() > 0) {
    const std::string loss = options.loss.empty() ? "ensemble_softmax" : options.loss;
    outputs["log_mean_prob"] = log_mean_probabilities(loss, outputs.at("logits"), model.members());
  }
  return outputs;
}

void predict_file(Model& model, const fs::path& input, const fs::path& output,
                  const PredictOptions& options) {
  check_new_file(output, "predict");
  write_tensors(output, predict(model, read_images(model, input), options));
}

}  // namespace moesaic
