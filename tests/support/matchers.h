// SPDX-License-Identifier: Apache-2.0
// GoogleTest, with matchers by their own names.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moesaic {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

}  // namespace moesaic
