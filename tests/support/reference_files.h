// SPDX-License-Identifier: Apache-2.0
// Tensors that google-research/vmoe made itself. They lie beside the project and are no part of it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#define NEEDS_REFERENCE()                                                          \
  if (!std::filesystem::exists(::moesaic::testing::reference_path("README.md"))) { \
    GTEST_SKIP() << "needs " << ::moesaic::testing::reference_path("").string();   \
  }

namespace moesaic::testing {

std::filesystem::path reference_path(const std::string& name);

/// A case's config.json.
nlohmann::ordered_json reference_config(const std::string& name);

}  // namespace moesaic::testing
