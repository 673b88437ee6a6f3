// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/evaluation_points.h"
#include "moesaic/base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/random.h"

namespace moesaic {
namespace {

/// Returns the expert of each image, [B], -1 for none; undefined if an image has several.
at::Tensor experts_of_images(const ModelOutput& output, int64_t images) {
  if (output.routings.empty()) return {};
  const RoutingRecord& record = output.routings.back();
  if (record.members > 1 || record.routing.tokens() != images) return {};
  const at::Tensor rows_of_image = record.routing.token_offsets.diff().to(at::kCPU, at::kLong);
  if (rows_of_image.max().item<int64_t>() > 1) return {};
  const at::Tensor row_expert = row_experts(record.routing).to(at::kCPU);
  const at::Tensor token = record.routing.token.to(at::kCPU, at::kLong);
  const auto rows = rows_of_image.sum().item<int64_t>();
  const at::Tensor ids = at::tensor(record.kept, at::kLong);
  at::Tensor expert_B = at::full({images}, -1, at::kLong);
  expert_B.index_copy_(0, token.narrow(0, 0, rows),
                       ids.index_select(0, row_expert.narrow(0, 0, rows)));
  return expert_B;
}

/// Returns the predicted classes [B] of logits [B members, C].
at::Tensor predicted_classes(const at::Tensor& logits, int64_t images) {
  if (logits.size(0) == images) return logits.argmax(1).cpu();
  return logits.view({images, -1, logits.size(1)}).softmax(2).mean(1).argmax(1).cpu();
}

at::Tensor joined_numbers(const std::vector<at::Tensor>& parts) {
  return parts.empty() ? at::Tensor() : at::cat(parts);
}

/// Returns the index of `name` among the dataset's names of this kind.
int64_t number_of_name(const std::string& name, const char* kind,
                       const std::vector<std::string>& names, const std::string& data) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    fail_usage("'{}' has no {} '{}'; {}", data, kind, name,
               names.empty() ? "it has no groups" : did_you_mean(name, names));
  }
  return found - names.begin();
}

/// Indices of the requested images, and their description.
struct Candidates {
  std::vector<int64_t> images;
  std::string of;
};

Candidates candidates_of(const Dataset& dataset, const EvaluationPointsOptions& options) {
  const DatasetInfo& info = dataset.info();
  Candidates found{{}, fmt::format("'{}'", info.name)};
  std::optional<int64_t> label;
  if (options.only_class) {
    label = number_of_name(*options.only_class, "class", info.classes, info.name);
    found.of = fmt::format("class '{}' of {}", *options.only_class, found.of);
  }
  std::set<int64_t> groups;
  for (const std::string& name : options.only_groups) {
    groups.insert(number_of_name(name, "group", info.groups, info.name));
  }
  if (!groups.empty()) {
    found.of = fmt::format("group {} of {}", fmt::join(options.only_groups, ", "), found.of);
  }
  for (int64_t i = 0; i < dataset.size(); ++i) {
    if (label && dataset.label(i) != *label) continue;
    if (groups.empty() || groups.count(dataset.group(i)) > 0) found.images.push_back(i);
  }
  return found;
}

}  // namespace

EvaluationPointCollector::EvaluationPointCollector(EvaluationPointsOptions options)
    : options_(std::move(options)) {}

void EvaluationPointCollector::choose(const Dataset& dataset) {
  const Candidates candidates = candidates_of(dataset, options_);
  const auto count = static_cast<int64_t>(candidates.images.size());
  if (std::min(count, options_.points) < kMinPoints) {
    fail_usage("an image by t-SNE needs {} points, {} has {}", kMinPoints, candidates.of, count);
  }
  const std::vector<int64_t> order =
      permutation(count, options_.seed, stream_id("report.evaluation_points"));
  for (int64_t i = 0; i < std::min(count, options_.points); ++i) {
    chosen_.push_back(candidates.images[static_cast<size_t>(order[static_cast<size_t>(i)])]);
  }
  std::sort(chosen_.begin(), chosen_.end());
}

void EvaluationPointCollector::begin(const EvaluatedBatch& batch) {
  const DatasetInfo& data = batch.dataset.info();
  info_.data = data.name;
  info_.classes = data.classes;
  info_.groups = data.groups;
  if (!batch.output.routings.empty()) {
    info_.experts = batch.output.routings.back().logits_TE.size(1);
  }
  if (options_.boundary && data.classes.size() != 2) {
    fail_usage("'{}' has {}; a decision boundary is drawn between two classes", data.name,
               count_text(static_cast<int64_t>(data.classes.size()), "class"));
  }
  if (options_.color == "group" && !batch.groups_B.defined()) {
    fail_usage("'{}' has no groups to colour by; choose expert or class", data.name);
  }
  choose(batch.dataset);
}

void EvaluationPointCollector::add(const EvaluatedBatch& batch) {
  if (info_.data.empty()) begin(batch);
  const int64_t images = batch.labels_B.size(0);
  std::vector<int64_t> places;
  for (; next_ < chosen_.size() && chosen_[next_] < batch.first + images; ++next_) {
    places.push_back(chosen_[next_] - batch.first);
  }
  if (places.empty()) return;
  const at::Tensor rows = at::tensor(places, at::kLong);
  const at::Tensor& from = options_.of == "inputs" ? batch.images_BCHW : batch.output.pre_logits;
  x_.push_back(
      from.reshape({images, -1}).index_select(0, rows.to(from.device())).to(at::kCPU, at::kFloat));
  label_.push_back(batch.labels_B.index_select(0, rows));
  predicted_.push_back(predicted_classes(batch.output.logits, images).index_select(0, rows));
  if (batch.groups_B.defined()) group_.push_back(batch.groups_B.index_select(0, rows));
  const at::Tensor expert_B = experts_of_images(batch.output, images);
  one_expert_ = one_expert_ && expert_B.defined();
  if (one_expert_) expert_.push_back(expert_B.index_select(0, rows));
  if (!one_expert_ && options_.color == "expert") {
    fail_usage("the network does not send each image to one expert; colour by class or group");
  }
}

EvaluationPoints EvaluationPointCollector::points() const {
  EvaluationPoints points = info_;
  points.color = !options_.color.empty() ? options_.color : one_expert_ ? "expert" : "class";
  points.x_ND = joined_numbers(x_);
  points.index_N = at::tensor(chosen_, at::kLong);
  points.label_N = joined_numbers(label_);
  points.predicted_N = joined_numbers(predicted_);
  points.group_N = joined_numbers(group_);
  if (one_expert_) points.expert_N = joined_numbers(expert_);
  return points;
}

}  // namespace moesaic
