// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <set>

#include "moesaic/models/registry.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/distill.h"

namespace moesaic {

/// The network on the meta device as each phase finds it, as far as known before training: how many
/// experts stay, but not which ones. It is that of the start until a phase changes it.
class PlannedModel {
 public:
  /// `outputs` are the names of the outputs of `model`, the network of the start.
  PlannedModel(const Model& model, std::vector<std::string> outputs)
      : classes(std::move(outputs)), model_(&model) {}

  /// Names of the outputs, none where they are not known. Their order is that of the data in which
  /// they began, which a resumed run finds in its checkpoint only.
  std::vector<std::string> classes;

  /// Names of the phases before this one, in order.
  std::vector<std::string> earlier;

  const Model& model() const { return *model_; }

  void upcycle(const Upcycling& upcycling) {
    copy_ = model_->upcycled(upcycling, 0);
    model_ = copy_.get();
  }

  void prune(const KeepSpec& keep, const std::string& replace) {
    apply_plan(changed(), {"", {}, replace});  // It removes nothing yet.
    KeptExperts kept;
    // Which layers keep how many is not known before there are scores; here all are equal.
    if (!names_unknown_experts(keep)) kept = check_keep(*model_, keep);
    for (const MoEBlock& block : changed().moe_blocks()) {
      const KeepRule* rule = keep.rule_of(block.block);
      if (rule == nullptr) continue;
      const bool known = rule->ids() != nullptr && !guessed_.contains(block.block);
      const std::vector<int64_t> ids = kept.contains(block.block) ? kept.at(block.block)
                                       : known                    ? *rule->ids()
                                                                  : first_experts(*rule, block);
      if (!known && ids.size() < block.layer->kept().size()) guessed_.insert(block.block);
      keep_meta_experts(block, ids, replace);
    }
  }

  void reset_head(int64_t outputs) { replace_head(changed(), outputs); }

  /// Returns the network of an earlier phase, as a teacher; nothing where no phase is called so.
  std::optional<PlannedTeacher> after(const std::string& phase) const {
    const auto ended = ended_.find(phase);
    if (ended == ended_.end()) return std::nullopt;
    return PlannedTeacher{build_meta_model(Value::from_json(ended->second.model, "model")),
                          ended->second.classes, ended->second.mean, ended->second.std};
  }

  /// Remembers the network as it is at the end of a phase, for restore().
  void end(const std::string& phase, const DatasetInfo& data) {
    ended_[phase] = {model_->config(), guessed_, classes, data.mean, data.std};
    earlier.push_back(phase);
  }

  void restore(const std::string& phase) {
    const Ended& ended = ended_.at(phase);
    take(ended.model);
    guessed_ = ended.guessed;
    classes = ended.classes;
  }

 private:
  void take(const Json& config) {
    copy_ = build_meta_model(Value::from_json(config, "model"));
    model_ = copy_.get();
  }
  /// Returns a copy that a phase may change.
  Model& changed() {
    if (copy_ == nullptr) take(model_->config());
    return *copy_;
  }

  bool names_unknown_experts(const KeepSpec& keep) const {
    return std::any_of(guessed_.begin(), guessed_.end(), [&](int64_t block) {
      const KeepRule* rule = keep.rule_of(block);
      return rule != nullptr && rule->ids() != nullptr;
    });
  }

  struct Ended {
    Json model;
    std::set<int64_t> guessed;
    std::vector<std::string> classes;
    std::vector<double> mean, std;  ///< Of its data.
  };

  std::map<std::string, Ended> ended_;
  std::shared_ptr<Model> copy_;
  const Model* model_;
  std::set<int64_t> guessed_;  ///< Blocks that are pruned by scores.
};

}  // namespace moesaic
