// SPDX-License-Identifier: Apache-2.0
// What register.cpp adds to the registries.
#pragma once

#include "moesaic/data/format.h"

namespace moesaic {

DatasetFormat clusters_format();

}  // namespace moesaic
