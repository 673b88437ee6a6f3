// SPDX-License-Identifier: Apache-2.0
// Checks of a phase's settings against its network and data. All throw Error (usage) with the place
// of the setting to blame.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "moesaic/config/problem.h"
#include "moesaic/models/model.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/optimizer_config.h"
#include "moesaic/train/phase_config.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {

/// Routes so many tokens without numbers: whatever a block's router refuses with this rule, that of
/// training or of evaluation, it refuses here.
void check_tokens(const PhasePlaces& places, const Model& model, const MoEBlock& block,
                  const nn::RoutingRule& rule, int64_t tokens);

/// Checks that the data have images of the shape that the network takes.
void check_images(const PhasePlaces& places, const Model& model, const Dataset& dataset);

/// Returns how many numbers of the network the phase trains, at least one where it has steps.
int64_t trained_numbers(const Model& model, const PhasePlaces& places);

/// Checks that phase `index` restores an earlier one.
void check_restored(const RunConfig& config, size_t index, const PhasePlaces& places);

/// Checks the network that pruning on entry of phase `index` compares `model` with.
void check_pretrained(const RunConfig& config, size_t index, const Model& model,
                      MissingFiles missing);

/// Checks the batches of an evaluation, whose last one may be smaller.
void check_evaluation(const RunConfig& config, const PhasePlaces& places, const Model& model,
                      int64_t images);

/// Checks that the network of phase `index` has outputs for the data, unless it gets a new head.
void check_outputs(const PhasePlaces& places, size_t index, const Model& model,
                   const DatasetInfo& data);

/// Checks that the network's outputs, `classes`, are called as those of the data.
void check_class_names(const PhasePlaces& places, const std::vector<std::string>& classes,
                       Datasets& datasets);

/// Checks that processes can share the experts that a phase has. What `keep` leaves of a layer may
/// be known only when it prunes.
void check_shares(const RunConfig& config, const PhasePlaces& places, const Model& model);

/// Returns the preprocessed training data. Completes `preprocess` by what the network takes.
std::shared_ptr<const Dataset> open_data(const PhasePlaces& places, Datasets& datasets,
                                         const Model& model, PreprocessConfig& preprocess);

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
