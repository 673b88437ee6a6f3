// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/expert_loads.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <numeric>

#include "moesaic/base/text.h"
#include "moesaic/train/phase.h"
#include "moesaic/train/run_folder.h"

namespace moesaic {
namespace {

constexpr const char *kLoadPrefix = "experts/", *kRowsName = "rows", *kSelectedName = "selected";

/// Returns whether tokens can find no room at an expert that they select.
bool has_drops(const nn::MoELayerImpl& layer) {
  const RouteOptions& rule = layer.options().rule;
  return rule.is_token_choice() && layer.merged_into.empty() && rule.capacity.has_capacity();
}

/// Returns the number of tokens that selected each kept expert, [K] int64.
at::Tensor selections_of(const RoutingRecord& record) {
  const at::Tensor choice = record.routing.choice.flatten().to(at::kLong);
  const at::Tensor selected_E = at::zeros({record.logits_TE.size(1)}, choice.options())
                                    .index_add_(0, choice, at::ones_like(choice));
  return selected_E.index({index_on(choice.device(), record.kept)});
}

at::Tensor zero_counts(const nn::MoELayerImpl& layer) {
  return at::zeros({static_cast<int64_t>(layer.kept().size())},
                   at::TensorOptions(layer.router->weight.device()).dtype(at::kLong));
}

Json four_digits(const std::vector<double>& values) {
  auto list = Json::array();
  for (const double value : values) list.push_back(rounded(value, 4));
  return list;
}

}  // namespace

ExpertLoadMeter::ExpertLoadMeter(const Model& model)
    : blocks_(model.moe_blocks()), counts_(blocks_.size()) {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    nn::MoELayerImpl* const layer = blocks_[i].layer.get();
    Counts& counts = counts_[i];
    counts.rows_K = zero_counts(*layer);
    if (has_drops(*layer)) counts.selected_K = zero_counts(*layer);
    for (const char* what : {kRowsName, kSelectedName}) {
      if (what == kSelectedName && !counts.selected_K.defined()) continue;
      for (const int64_t id : layer->kept()) {  // Padded, since metrics are in alphabetical order.
        names_.push_back(fmt::format("{}{:06}/{}/{:06}", kLoadPrefix, blocks_[i].block, what, id));
      }
    }
    layer->set_observer([layer, &counts](const RoutingRecord& record, const at::Tensor&) {
      if (!layer->is_training()) return;
      const torch::NoGradGuard no_grad;
      counts.rows_K.add_(record.routing.offsets.diff());
      if (counts.selected_K.defined()) counts.selected_K.add_(selections_of(record));
    });
  }
}

ExpertLoadMeter::~ExpertLoadMeter() {
  for (MoEBlock& block : blocks_) block.layer->set_observer({});
}

at::Tensor ExpertLoadMeter::take() {
  std::vector<at::Tensor> parts;
  for (Counts& counts : counts_) {
    for (at::Tensor* count_K : {&counts.rows_K, &counts.selected_K}) {
      if (!count_K->defined()) continue;
      parts.push_back(count_K->to(at::kDouble));
      count_K->zero_();
    }
  }
  return at::cat(parts);
}

std::vector<LayerLoads> take_loads(std::map<std::string, double>& metrics) {
  std::vector<LayerLoads> layers;
  auto at = metrics.lower_bound(kLoadPrefix);
  while (at != metrics.end() && at->first.starts_with(kLoadPrefix)) {
    const std::vector<std::string> parts = split(at->first, '/');
    const double count = at->second;
    at = metrics.erase(at);
    if (parts.size() != 4) continue;  // A checkpoint's state may say anything.
    const int64_t block = parsed_number<int64_t>(parts[1]).value_or(0);
    if (layers.empty() || layers.back().block != block) layers.push_back({.block = block});
    const bool is_rows = parts[2] == kRowsName;
    (is_rows ? layers.back().load : layers.back().dropped).push_back(count);
    if (is_rows) layers.back().kept.push_back(parsed_number<int64_t>(parts[3]).value_or(0));
  }
  for (LayerLoads& layer : layers) {
    const double total = std::accumulate(layer.load.begin(), layer.load.end(), 0.0);
    if (layer.dropped.size() != layer.load.size()) layer.dropped.clear();
    for (size_t i = 0; i < layer.load.size(); ++i) {
      if (!layer.dropped.empty()) {
        double& dropped = layer.dropped[i];
        dropped = dropped > 0.0 ? (dropped - layer.load[i]) / dropped : 0.0;
      }
      if (total > 0.0) layer.load[i] /= total;
    }
  }
  return layers;
}

Json to_json(const std::vector<LayerLoads>& layers) {
  auto list = Json::array();
  for (const LayerLoads& layer : layers) {
    list.push_back(
        {{"layer", layer.block}, {"kept", layer.kept}, {"load", four_digits(layer.load)}});
    if (!layer.dropped.empty()) list.back()["dropped"] = four_digits(layer.dropped);
  }
  return list;
}

Json routing_line(const Evaluation& evaluation, const Model& model) {
  Json layers = to_json(evaluation.routing);
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  for (Json& layer : layers) {  // A row for each class is too much for a line.
    layer.erase("dispatch");
    layer.erase("group_dispatch");
    const auto block =
        std::ranges::find(blocks, layer.at("layer").get<int64_t>(), &MoEBlock::block);
    if (block == blocks.end()) continue;
    const at::Tensor norms_K = router_rows(block->layer).norm(2, {1}, false, at::kDouble);
    const auto* const norms = norms_K.const_data_ptr<double>();
    layer["router_norm"] = four_digits({norms, norms + norms_K.numel()});
  }
  return layers;
}

std::vector<std::string> StarvedExpertDetector::add(const std::vector<LayerLoads>& layers,
                                                    int64_t steps) {
  std::vector<std::string> messages;
  for (const LayerLoads& layer : layers) {
    const double total = std::accumulate(layer.load.begin(), layer.load.end(), 0.0);
    if (steps_ == 0 || total <= 0.0) continue;
    for (size_t i = 0; i < layer.load.size(); ++i) {
      const double share = layer.load[i] * static_cast<double>(layer.load.size()) / total;
      int64_t& below = below_[{layer.block, layer.kept[i]}];
      const int64_t before = std::exchange(below, share < share_ ? below + steps : 0);
      if (before >= steps_ || below < steps_) continue;
      messages.push_back(fmt::format(
          "block {}: expert {} has had less than {:.3g} % of a uniform load for {}, now {:.2g} %; "
          "raise an auxiliary loss (aux_losses) or remove it (moesaic prune)",
          layer.block, layer.kept[i], 100.0 * share_, count_text(below, "step"), 100.0 * share));
    }
  }
  return messages;
}

}  // namespace moesaic
