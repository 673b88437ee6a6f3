// SPDX-License-Identifier: Apache-2.0
// The experts that leave the smallest error of a layer's output.
#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "moesaic/prune/criteria.h"

namespace moesaic {
namespace {

using Ids = std::vector<int64_t>;

constexpr double kMaxSubsets = 1e6;

/// Experts that are removed one by one, and the error without them.
class Removal {
 public:
  explicit Removal(const at::Tensor& products_EE) : products_EE_(products_EE.contiguous()) {}

  /// Returns what removing one more expert adds to the error.
  double cost(int64_t expert) const {
    const double* row = products_EE_.const_data_ptr<double>() + expert * products_EE_.size(1);
    double sum = row[expert];
    for (const int64_t other : removed_) sum += 2.0 * row[other];
    return sum;
  }
  void remove(int64_t expert) {
    error_ += cost(expert);
    removed_.push_back(expert);
  }
  double error() const { return error_; }

 private:
  at::Tensor products_EE_;
  Ids removed_;
  double error_ = 0.0;
};

/// Tries all subsets, those with low indices first.
Ids least_error_subset(const Ids& present, const Removal& before, size_t count) {
  std::vector<bool> stays(present.size());
  std::fill_n(stays.begin(), count, true);
  Ids best;
  double least = 0.0;
  do {
    Removal removal = before;
    Ids kept;
    for (size_t i = 0; i < present.size(); ++i) {
      stays[i] ? kept.push_back(present[i]) : removal.remove(present[i]);
    }
    if (!best.empty() && removal.error() >= least) continue;
    least = removal.error();
    best = std::move(kept);
  } while (std::prev_permutation(stays.begin(), stays.end()));
  return best;
}

/// Removes the expert that costs least, the last of equal ones, until `count` are left.
Ids greedy_subset(Ids kept, Removal removal, size_t count) {
  while (kept.size() > count) {
    auto cheapest = kept.begin();
    double least = std::numeric_limits<double>::infinity();
    for (auto expert = kept.begin(); expert != kept.end(); ++expert) {
      const double cost = removal.cost(*expert);
      if (cost > least) continue;
      least = cost;
      cheapest = expert;
    }
    removal.remove(*cheapest);
    kept.erase(cheapest);
  }
  return kept;
}

double subsets(size_t of, size_t count) {
  double number = 1.0;
  for (size_t i = 1; i <= count; ++i) {
    number *= static_cast<double>(of - count + i) / static_cast<double>(i);
  }
  return number;
}

}  // namespace

std::vector<int64_t> best_subset(const at::Tensor& products_EE, int64_t begin, int64_t end,
                                 const std::vector<int64_t>& present, int64_t count) {
  const auto size = static_cast<size_t>(count);
  if (size >= present.size()) return present;
  Removal removal(products_EE);
  for (int64_t id = begin; id < end; ++id) {
    if (!std::ranges::binary_search(present, id)) removal.remove(id);
  }
  if (subsets(present.size(), size) > kMaxSubsets) return greedy_subset(present, removal, size);
  return least_error_subset(present, removal, size);
}

}  // namespace moesaic
