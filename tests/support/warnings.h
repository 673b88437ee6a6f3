// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moesaic/base/log.h"

namespace moesaic::testing {

/// The warnings that are given while it exists.
class Warnings {
 public:
  Warnings() {
    set_warning_handler([this](std::string_view text) { texts_.emplace_back(text); });
  }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  ~Warnings() { set_warning_handler({}); }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};

}  // namespace moesaic::testing
