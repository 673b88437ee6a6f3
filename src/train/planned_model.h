// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/models/registry.h"
#include "moesaic/prune/plan.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// The network on the meta device as each phase finds it, as far as known before training: how many
/// experts stay, but not which ones. It is that of the start until a phase changes it.
class PlannedModel {
 public:
  /// `classes` are the names of the outputs of `model`, the network of the start.
  PlannedModel(const RunConfig& config, const Model& model, std::vector<std::string> classes)
      : model_(&model), classes_(std::move(classes)) {
    const bool needed =
        std::any_of(config.phases.begin(), config.phases.end(), [](const PhaseConfig& phase) {
          const EntryConfig& entry = phase.on_entry;
          return entry.prune || entry.new_head || !entry.restore.empty();
        });
    if (!needed) return;
    copy_ = build_model_shape(Value::from_json(model.config(), "model"));
    model_ = copy_.get();
  }

  const Model& model() const { return *model_; }

  /// With `means` the removed experts leave theirs.
  void prune(const KeepSpec& keep, bool means) {
    means_ = means;
    if (!names_unknown_experts(keep)) check_keep(*model_, keep);
    if (keep.chooses_among_layers()) {
      prune_as_if_equal(keep);
      return;
    }
    for (const MoEBlock& block : copy_->moe_blocks()) {
      const KeepRule* rule = keep.rule_of(block.block);
      if (rule != nullptr) prune(block, *rule);
    }
  }

  void reset_head(int64_t classes) { give_head(*copy_, classes); }

  /// Returns the names of the outputs, none where they are not known. Their order is that of the
  /// data in which they began, which a resumed run finds in its checkpoint only.
  const std::vector<std::string>& classes() const { return classes_; }
  void set_classes(const DatasetInfo& data) {
    classes_ = data.classes_named ? data.classes : std::vector<std::string>();
  }

  /// Remembers the network as it is at the end of a phase, for restore().
  void end(const std::string& phase) {
    if (copy_ != nullptr) ended_[phase] = {copy_->config(), guessed_, classes_};
  }

  void restore(const std::string& phase) {
    const Ended& ended = ended_.at(phase);
    copy_ = build_model_shape(Value::from_json(ended.model, "model"));
    model_ = copy_.get();
    guessed_ = ended.guessed;
    classes_ = ended.classes;
  }

 private:
  /// Which layers keep how many is not known before there are scores; here all are equal.
  void prune_as_if_equal(const KeepSpec& keep) {
    const KeptExperts kept = check_keep(*copy_, keep);
    for (MoEBlock& block : copy_->moe_blocks()) {
      if (kept.at(block.block).size() == block.layer->kept().size()) continue;
      guessed_.insert(block.block);
      cut(block.layer, kept.at(block.block));
    }
  }

  void prune(const MoEBlock& block, const KeepRule& rule) {
    const bool known = rule.ids() != nullptr && !guessed_.contains(block.block);
    const std::vector<int64_t> ids = known ? *rule.ids() : first_experts(rule, block);
    if (!known && ids.size() < block.layer->kept().size()) guessed_.insert(block.block);
    cut(block.layer, ids);
  }

  void cut(nn::MoELayer layer, const std::vector<int64_t>& ids) const {
    const at::TensorOptions options = layer->router->weight.options();
    at::Tensor left;
    if (means_) left = at::empty({layer->options().experts, layer->experts->outputs()}, options);
    layer->keep_experts(ids, left);
  }

  bool names_unknown_experts(const KeepSpec& keep) const {
    return std::any_of(guessed_.begin(), guessed_.end(), [&](int64_t block) {
      const KeepRule* rule = keep.rule_of(block);
      return rule != nullptr && rule->ids() != nullptr;
    });
  }

  struct Ended {
    nlohmann::ordered_json model;
    std::set<int64_t> guessed;
    std::vector<std::string> classes;
  };

  std::map<std::string, Ended> ended_;
  std::shared_ptr<Model> copy_;
  const Model* model_;
  std::vector<std::string> classes_;
  std::set<int64_t> guessed_;  ///< Blocks that are pruned by scores.
  bool means_ = false;
};

}  // namespace moesaic
