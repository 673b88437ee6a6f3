// SPDX-License-Identifier: Apache-2.0
// Settings that phases of all kinds have.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/config/schema.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/models/router_config.h"
#include "moesaic/prune/plan.h"

namespace moesaic {

inline constexpr double kMaxSteps = 1e9;           // Products with batch sizes stay within 64 bits.
inline constexpr double kMaxMeasuredImages = 1e9;  // Of one split that a network is measured on.
inline constexpr double kMaxBatchSize = 1048576;   // Larger batches exceed any memory.

/// Returns the registered kinds of phases (train/phase.h) with their default settings,
/// "gradient" first.
std::vector<NamedSettings> phase_kind_choices();

/// Settings of `on_entry.prune`.
struct PrunePhaseConfig {
  std::string criterion = "router-norm-change";
  Value keep;
  std::string pretrained;
  std::optional<std::string> replace;
  int64_t num_calibration_images = 1024;
  Value source;  ///< where it was written
};
void describe(auto& f, PrunePhaseConfig& c) {
  f("criterion", c.criterion, "criterion that ranks the experts (moesaic list criteria)");
  f("keep", c.keep,
    "experts kept per layer: a fraction of the experts before any pruning, with a decimal point "
    "(0.5), a count without one (4) or the name of a JSON file; or an object {\"fraction\", "
    "\"count\" or \"parameters\", \"scope\", \"exclude_blocks\"}",
    required, common);
  f("pretrained", c.pretrained,
    "pretrained network that criteria compare with, an earlier phase or a checkpoint; empty: none");
  f("replace", c.replace, replace_help(), one_of(replacement_names()));
  f("num_calibration_images", c.num_calibration_images,
    "number of images for criteria and replacements that need them, from the phase's validation "
    "split, or without one from its training data",
    between(1, kMaxMeasuredImages), renamed_from("images"), renamed_from("calibration_images"));
}

/// Settings of `on_entry`.
struct EntryConfig {
  std::string restore;
  bool new_head = false;
  std::optional<Upcycling> upcycle;
  std::optional<PrunePhaseConfig> prune;
};
void describe(auto& f, EntryConfig& c) {
  f("restore", c.restore,
    "earlier phase whose final network is restored; empty: the current network");
  f("new_head", c.new_head, "new head for the classes of the phase's data", common);
  f("upcycle", c.upcycle,
    "replacement of the MLPs of some blocks by experts that begin as copies of them (sparse "
    "upcycling); null: none");
  f("prune", c.prune, "expert pruning before the phase; null: none");
}

/// Settings of a phase of any kind.
struct PhaseConfig {
  std::string name;
  NamedSettings kind = phase_kind_choices().front();
  std::string data;
  std::optional<int64_t> epochs, steps;
  std::vector<std::string> trainable = {".*"}, frozen;
  PreprocessConfig preprocess;
  EntryConfig on_entry;
  bool evaluate = true;
  Value source;  ///< where it was written
};
void describe(auto& f, PhaseConfig& c) {
  f("name", c.name, "name of the phase and of its final checkpoint", required, not_empty, common);
  f("data", c.data, "dataset (moesaic data list), description or folder", required, not_empty,
    common);
  f("epochs", c.epochs,
    "length in epochs, passes over the data, instead of steps; null: given by steps",
    between(0, kMaxSteps), common, known_as({"num_epochs", "max_epochs", "num_train_epochs"}));
  f("steps", c.steps, "length in steps, instead of epochs; null: given by epochs",
    between(0, kMaxSteps), common, known_as({"num_steps", "max_steps"}));
  f("trainable", c.trainable, "names of trained parameters, as regular expressions", not_empty,
    common, renamed_from("trains"));
  f("frozen", c.frozen,
    "parameters that are not updated, though their gradients count in the global norm of "
    "clip_norm: regular expressions searched in their names; empty: none");
  f("preprocess", c.preprocess, "preprocessing of every image, in training and in evaluation");
  f("on_entry", c.on_entry, "changes to the network before the phase");
  f("evaluate", c.evaluate, "evaluation on the validation and test splits", common);
  f.choice("kind", c.kind, phase_kind_choices(), "kind of the phase: what a step computes");
}
ConfigProblem config_problem(const PhaseConfig& config);

/// Returns what is wrong with the syntax of the patterns of a setting, each of which stands at
/// "<key>.<place><below>".
ConfigProblem patterns_problem(const std::string& key, const std::vector<std::string>& patterns,
                               const std::string& below = "");

/// Returns the name of the phase's objective, "" where its kind has none.
std::string objective_name(const PhaseConfig& phase);

/// Returns the settings of a phase whose kind has settings of type Config, e.g. GradientConfig.
/// Throws Error for another kind.
template <class Config>
const Config& settings_of(const PhaseConfig& phase) {
  return phase.kind.as<Config>();
}

/// Runs `action` and adds the location of the setting to a usage error that it throws, and to any
/// error where the setting is an argument, which is what was changed last.
auto at_location(const std::string& place, auto&& action) try {
  return action();
} catch (const Error& error) {
  if (error.kind() != ErrorKind::usage && !place.starts_with("argument '")) throw;
  throw Error(error.kind(), fmt::format("{}: {}", place, error.what()));
}

/// Locations of the settings of a phase and of the model that it trains, for messages.
class SettingLocations {
 public:
  /// `model` is the model's configuration as written; null for the model of a checkpoint.
  SettingLocations(Value model, const PhaseConfig& phase)
      : model_(std::move(model)), phase_(phase) {}

  /// Returns the phase's settings.
  const PhaseConfig& phase() const { return phase_; }

  /// Returns the location of the first of these settings that the phase has, see location_of().
  std::string find(const std::vector<std::string>& settings) const {
    return location_of(phase_.source, settings);
  }
  /// Returns how a message about these settings begins: "LOCATION: phase 'NAME'".
  std::string at(const std::vector<std::string>& settings) const {
    return at_place(find(settings));
  }
  /// Returns the same for a location.
  std::string at_place(const std::string& place) const {
    return fmt::format("{}: phase '{}'", place, phase_.name);
  }
  /// Returns the location of a setting of the model or, without it, of the setting `otherwise` of
  /// the phase. A setting from the command line takes precedence.
  std::string find_in_model(const std::string& setting, const std::string& otherwise) const;

  /// Returns whether a setting of the model is not written, so that it has its default.
  bool is_default(const std::string& setting) const {
    return model_.is_object() && !setting.empty() && model_.find(setting) == nullptr;
  }

  /// Returns which of several locations to report: the one that the command line changed last.
  static std::string preferred(const std::vector<std::string>& locations);

 private:
  Value model_;
  const PhaseConfig& phase_;
};

}  // namespace moesaic
