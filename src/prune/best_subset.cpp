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
  void push(int64_t expert) {
    errors_.push_back(error() + cost(expert));
    removed_.push_back(expert);
  }
  void pop() {
    errors_.pop_back();
    removed_.pop_back();
  }
  double error() const { return errors_.empty() ? 0.0 : errors_.back(); }

 private:
  at::Tensor products_EE_;
  Ids removed_;
  std::vector<double> errors_;
};

/// Tries all subsets, those with low indices first.
class SubsetSearch {
 public:
  SubsetSearch(const Ids& present, Removal removal)
      : present_(present), removal_(std::move(removal)) {}

  Ids best(size_t count) {
    search(0, count);
    return best_;
  }

 private:
  void search(size_t place, size_t count) {
    if (place == present_.size()) {
      if (!best_.empty() && removal_.error() >= least_) return;
      least_ = removal_.error();
      best_ = kept_;
      return;
    }
    if (count > 0) {
      kept_.push_back(present_[place]);
      search(place + 1, count - 1);
      kept_.pop_back();
    }
    if (present_.size() - place == count) return;  // The others must stay.
    removal_.push(present_[place]);
    search(place + 1, count);
    removal_.pop();
  }

  const Ids& present_;
  Removal removal_;
  Ids kept_, best_;
  double least_ = std::numeric_limits<double>::infinity();
};

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
    removal.push(*cheapest);
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
    if (!std::ranges::binary_search(present, id)) removal.push(id);
  }
  if (subsets(present.size(), size) > kMaxSubsets) return greedy_subset(present, removal, size);
  return SubsetSearch(present, removal).best(size);
}

}  // namespace moesaic
