// SPDX-License-Identifier: Apache-2.0
// Settings that are patterns searched in the names of parameters.
#pragma once

#include <string>
#include <vector>

#include "moesaic/config/problem.h"
#include "moesaic/models/model.h"
#include "moesaic/train/optimizer_config.h"
#include "moesaic/train/places.h"

namespace moesaic {

/// What is wrong with the patterns themselves.
ConfigProblem patterns_problem(const std::string& key, const std::vector<std::string>& patterns);
ConfigProblem patterns_problem(const std::string& key, const std::vector<PatternValue>& values);

/// Throws Error (usage) for a pattern of the list `setting` of the phase that is found in the name
/// of no parameter: with its place, and the parameters that are nearest to it.
void check_patterns(const Model& model, const PhasePlaces& places, const std::string& setting,
                    const std::vector<std::string>& patterns);
void check_patterns(const Model& model, const PhasePlaces& places, const std::string& setting,
                    const std::vector<PatternValue>& values);

/// The first of these that is one.
ConfigProblem first_problem(std::initializer_list<ConfigProblem> problems);

}  // namespace moesaic
