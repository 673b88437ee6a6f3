// SPDX-License-Identifier: Apache-2.0
// Settings that are patterns of parameter names.
#pragma once

#include <string>
#include <vector>

#include "moesaic/config/problem.h"
#include "moesaic/models/model.h"
#include "moesaic/train/optimizer_config.h"
#include "moesaic/train/places.h"

namespace moesaic {

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
