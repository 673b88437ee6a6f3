// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/route_options.h"

#include <algorithm>
#include <cmath>

#include "moesaic/ops/enum_names.h"

namespace moesaic {
namespace {

/// Rounds to the nearest integer, halves to the even one, in any rounding mode of the process.
double rounded_half_even(double value) {
  const double down = std::floor(value), rest = value - down;
  const bool up = rest > 0.5 || (rest == 0.5 && std::fmod(down, 2.0) != 0.0);
  return up ? down + 1.0 : down;
}

}  // namespace

std::vector<std::string> capacity_rounding_names() {
  return {"ceil", "round"};
}

int64_t expert_capacity(int64_t tokens, int64_t k, const CapacityRule& rule, int64_t experts) {
  if (rule.rows > 0) return rule.rows;
  if (rule.multiple_of < 1) {
    fail("capacity: rows cannot be raised to a multiple of {}; choose 1 or more", rule.multiple_of);
  }
  const double exact = static_cast<double>(tokens) * static_cast<double>(k) * rule.factor /
                       static_cast<double>(experts);
  const double rows =
      rule.rounding == CapacityRounding::ceil ? std::ceil(exact) : rounded_half_even(exact);
  if (!(rows >= 1.0)) {
    fail("capacity: {} tokens x {} choices x factor {} over {} experts give no row to an expert",
         tokens, k, rule.factor, experts);
  }
  constexpr double kMax = 9007199254740992.0;  // 2^53: doubles skip integers above.
  const auto whole = static_cast<int64_t>(std::min(rows, kMax));
  return (whole + rule.multiple_of - 1) / rule.multiple_of * rule.multiple_of;
}

std::vector<std::string> gate_names() {
  return {"softmax_selected", "softmax_all", "logit", "one", "softmax_tokens"};
}
Gate gate_from_name(std::string_view name) {
  return ops::enum_from_name<Gate>("gate", name, gate_names());
}

std::vector<std::string> pruned_selection_names() {
  return {"zero", "reroute"};
}

}  // namespace moesaic
