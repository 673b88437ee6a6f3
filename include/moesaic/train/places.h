// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/train/phase_config.h"

namespace moesaic {

/// Runs `action` and adds the location of the setting to a usage error that it throws, and to any
/// error where the setting is an argument, which is what was changed last.
template <class F>
auto at_place(const std::string& place, F&& action) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage && !place.starts_with("argument '")) throw;
    throw Error(error.kind(), fmt::format("{}: {}", place, error.what()));
  }
}

/// Locations of the settings of a phase and of the model that it trains, for messages.
class PhasePlaces {
 public:
  /// `model` is the model's configuration as written; null for the model of a checkpoint.
  PhasePlaces(Value model, const PhaseConfig& phase) : model_(std::move(model)), phase_(phase) {}

  const PhaseConfig& phase() const { return phase_; }

  /// Returns the location of the first of these settings that the phase has, see place_of().
  std::string of(const std::vector<std::string>& settings) const {
    return place_of(phase_.source, settings);
  }
  /// Returns the location of a setting of the model or, without it, of the setting `otherwise` of
  /// the phase. A setting from the command line takes precedence.
  std::string of_model(const std::string& setting, const std::string& otherwise) const;

  /// Returns whether a setting of the model is not written, so that it has its default.
  bool leaves(const std::string& setting) const;

  /// Returns which of several locations to blame: the one that the command line changed last.
  static std::string blame(const std::vector<std::string>& places);

 private:
  Value model_;
  const PhaseConfig& phase_;
};

}  // namespace moesaic
