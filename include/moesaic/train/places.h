// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/train/phase_config.h"

namespace moesaic {

/// Does `action`; a usage error of it also says where the setting was written.
template <class F>
auto at_place(const std::string& place, F&& action) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    fail_usage("{}: {}", place, error.what());
  }
}

/// Where the settings of a phase, and of the model that it trains, were written: for messages.
class PhasePlaces {
 public:
  /// `model`: as it was written; null where the model is that of a checkpoint.
  PhasePlaces(Value model, const PhaseConfig& phase) : model_(std::move(model)), phase_(phase) {}

  const PhaseConfig& phase() const { return phase_; }

  /// The place of the first of these settings of the phase that is there, see place_of().
  std::string of(const std::vector<std::string>& settings) const {
    return place_of(phase_.source, settings);
  }
  /// The place of a setting of the model; where the model does not have it, that of the setting
  /// `otherwise` of the phase. Of both, the one that was given on the command line.
  std::string of_model(const std::string& setting, const std::string& otherwise) const;

  /// Of settings that do not fit together, the one on the command line changed last.
  static std::string blame(const std::vector<std::string>& places);

 private:
  Value model_;
  const PhaseConfig& phase_;
};

}  // namespace moesaic
