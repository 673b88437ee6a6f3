// SPDX-License-Identifier: Apache-2.0
// Confusion matrices as files: numbers of images with the true classes as rows and the predicted
// ones as columns.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "moesaic/data/dataset.h"
#include "moesaic/report/figure.h"
#include "moesaic/train/task.h"

namespace moesaic {

/// More classes are written as CSV only.
inline constexpr size_t kMaxFigureClasses = 200;

/// Throws Error (usage) unless `file` ends in .png, .svg or .csv and is new, with the script and
/// data of a figure; Error (failure) if it could not be written.
void check_new_confusion(const std::filesystem::path& file, const std::string& what);

/// Throws Error (usage) where the data have no classes, or too many for such a file.
void check_confusion_classes(const DatasetInfo& data, const std::filesystem::path& file);

/// Returns the matrix with a heading line and the names of the classes in the first column.
std::string confusion_csv(const Confusion& confusion, const std::vector<std::string>& classes);

Figure confusion_figure(const Confusion& confusion, const std::vector<std::string>& classes,
                        const std::string& title, const std::string& stem);

/// Writes the matrix as `file`, whole or not at all; a figure with its script and data beside it
/// (draw_figure_file()).
void write_confusion(const Confusion& confusion, const std::vector<std::string>& classes,
                     const std::string& title, const std::filesystem::path& file);

}  // namespace moesaic
