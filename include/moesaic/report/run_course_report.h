// SPDX-License-Identifier: Apache-2.0
// What a run-course has to tell: tables and a figure.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "moesaic/report/experiment.h"
#include "moesaic/report/figure.h"
#include "moesaic/report/results.h"
#include "moesaic/report/run_course.h"

namespace moesaic {

/// report.md.
std::string run_course_markdown(const Experiment& experiment, const RunCourseConfig& config,
                                const std::vector<RunCourse>& courses, const Results& results);

/// The same in short, for a terminal; `out` is where the files are.
std::string run_course_summary(const Experiment& experiment, const RunCourseConfig& config,
                               const std::vector<RunCourse>& courses, const Results& results,
                               const std::filesystem::path& out);

/// What config.shows says: entropy over updates, a line a run; products over updates, a line for
/// each expert and vector; or the final dispatch, a bar for each expert.
Figure run_course_figure(const RunCourseConfig& config, const std::vector<RunCourse>& courses);

}  // namespace moesaic
