// SPDX-License-Identifier: Apache-2.0
// Checks of settings that the plan of a run and that of a kind of phases share. They throw Error
// (usage) with the place of the setting to blame.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "moesaic/config/problem.h"
#include "moesaic/models/model.h"
#include "moesaic/train/gradient_config.h"
#include "moesaic/train/phase_config.h"

namespace moesaic {

/// Routes so many tokens without numbers: whatever a block's router refuses with this rule, that of
/// training or of evaluation, it refuses here.
void check_tokens(const PhasePlaces& places, const Model& model, const MoEBlock& block,
                  const nn::RoutingRule& rule, int64_t tokens);

/// Returns what is wrong with the syntax of the patterns.
ConfigProblem patterns_problem(const std::string& key, const std::vector<std::string>& patterns);
ConfigProblem patterns_problem(const std::string& key, const std::vector<PatternValue>& values);

/// Throws Error (usage) for a pattern of the list `setting` of the phase that matches no parameter,
/// with its location and the nearest parameters.
void check_patterns(const Model& model, const PhasePlaces& places, const std::string& setting,
                    const std::vector<std::string>& patterns);
void check_patterns(const Model& model, const PhasePlaces& places, const std::string& setting,
                    const std::vector<PatternValue>& values);

/// Returns the first problem that is not empty.
ConfigProblem first_problem(std::initializer_list<ConfigProblem> problems);

}  // namespace moesaic
