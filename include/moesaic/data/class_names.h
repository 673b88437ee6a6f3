// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/data/dataset.h"

namespace moesaic {

/// Returns `data` with the labels of a network whose outputs are called `outputs`, in this order:
/// a class is matched by its name, whatever its number, and info().classes is `outputs`. Data may
/// have fewer classes. Without names on either side, and where nothing changes, that is `data`.
/// Throws Error (usage) for a class that the outputs lack or name twice, with the nearest one and
/// `way_out`, what to do instead.
std::shared_ptr<const Dataset> with_classes_of(std::shared_ptr<const Dataset> data,
                                               const std::vector<std::string>& outputs,
                                               std::string_view way_out = {});

}  // namespace moesaic
