// SPDX-License-Identifier: Apache-2.0
// The built-in tasks.
#pragma once

#include "moesaic/train/task.h"

namespace moesaic {

const Task& classification_task();
const Task& regression_task();

}  // namespace moesaic
