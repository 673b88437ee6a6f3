// SPDX-License-Identifier: Apache-2.0
// Which experts stay, given their scores or the error that the others leave.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>

#include "moesaic/base/error.h"
#include "moesaic/prune/plan.h"

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

/// Returns the `count` present experts of highest score, ascending; the lower index wins a tie.
Ids best(const std::vector<double>& scores, Ids present, int64_t count) {
  std::ranges::stable_sort(present, std::greater<>(), [&](int64_t id) { return scores[id]; });
  present.resize(static_cast<size_t>(count));
  std::sort(present.begin(), present.end());
  return present;
}

/// Experts that are ranked together: of a layer, or of one of its groups, of which each owns E / G
/// experts in turn.
struct RankedGroup {
  const MoEBlock* block;
  std::string where;
  int64_t begin, end;  ///< Ids of its experts.
  Ids present;

  bool owns(int64_t id) const { return id >= begin && id < end; }
  int64_t size() const { return std::ssize(present); }
  int64_t experts() const {
    return block->layer->options().num_experts / block->num_ranked_groups();
  }
  /// A token selects k experts whether they are present or not; the paper forbids fewer than k.
  int64_t least() const {
    const int64_t selected = block->layer->options().rule.num_selected_experts();
    return std::min(std::max<int64_t>(selected, 1), size());
  }
  int64_t count_of(const Ids& ids) const {
    return std::count_if(ids.begin(), ids.end(), [&](int64_t id) { return owns(id); });
  }
  /// Returns the number of experts that the rule keeps, unchecked.
  int64_t kept_by(const KeepRule& rule) const {
    return rule.ids() != nullptr ? count_of(*rule.ids()) : rule.count(experts());
  }
};

/// Returns a layer's groups with those of these experts that each has.
std::vector<RankedGroup> groups_of(const MoEBlock& block, const Ids& present) {
  const int64_t count = block.num_ranked_groups(), experts = block.layer->options().num_experts;
  const int64_t each = experts / count;
  std::vector<RankedGroup> groups;
  for (int64_t i = 0; i < count; ++i) {
    RankedGroup group{&block, fmt::format("block {}", block.block), i * each,
                      i + 1 == count ? experts : (i + 1) * each};
    const char* what = block.num_groups > 0 ? "group" : "member";
    if (count > 1) group.where += fmt::format(", {} {}", what, i);
    std::copy_if(present.begin(), present.end(), std::back_inserter(group.present),
                 [&](int64_t id) { return group.owns(id); });
    groups.push_back(std::move(group));
  }
  return groups;
}
std::vector<RankedGroup> groups_of(const MoEBlock& block) {
  return groups_of(block, block.layer->kept());
}

/// Returns the smallest amount that a rule may keep, in its own measure.
std::string least_text(const KeepRule& rule, int64_t least, int64_t experts) {
  if (!std::holds_alternative<KeepFraction>(rule.amount)) {
    const auto* count = std::get_if<int64_t>(&rule.amount);
    const bool meant_all = count != nullptr && *count == 1;
    return fmt::format("keep at least {}{}", least,
                       meant_all ? "; 1 is a count, and 1.0 the fraction that keeps all" : "");
  }
  return fmt::format("keep at least {:.4g}",
                     static_cast<double>(least) / static_cast<double>(experts));
}

/// Checks the number of experts that a rule keeps of a group.
void check_count(const KeepRule& rule, const RankedGroup& group) {
  const int64_t count = group.kept_by(rule);
  if (count > group.size()) {
    fail_usage("{}: {} cannot keep {} experts, it has {}", rule.where, group.where, count,
               group.size());
  }
  const int64_t selected = group.block->layer->options().rule.num_selected_experts();
  if (count < std::min(selected, group.size())) {
    fail_usage("{}: {} would keep {} of {} experts, fewer than the {} that a token selects; {}",
               rule.where, group.where, count, group.experts(), selected,
               least_text(rule, group.least(), group.experts()));
  }
}

void check_present(const KeepRule& rule, const MoEBlock& block) {
  const Ids present = block.layer->kept();
  for (const int64_t id : *rule.ids()) {
    if (!std::binary_search(present.begin(), present.end(), id)) {
      fail_usage("{}: block {} has no expert {}; it has {}", rule.where, block.block, id,
                 fmt::join(present, ", "));
    }
  }
}

/// Returns the `count(group)` best experts of each group, or all that it has.
Ids best_of_groups(const std::vector<RankedGroup>& groups, const ExpertRanking& ranking,
                   const auto& count) {
  Ids kept;
  for (const RankedGroup& group : groups) {
    const int64_t number = std::min<int64_t>(count(group), group.size());
    const Ids own = ranking.products_EE.defined() ? best_subset(ranking.products_EE, group.begin,
                                                                group.end, group.present, number)
                                                  : best(ranking.scores, group.present, number);
    kept.insert(kept.end(), own.begin(), own.end());
  }
  return kept;
}

int64_t parameters_of_expert(const MoEBlock& block) {
  int64_t num_parameters = 0;
  for (const at::Tensor& parameter : block.layer->experts->parameters())
    num_parameters += parameter.numel();
  return num_parameters / block.layer->experts->num_experts();
}

/// Chooses among the experts of all blocks that a rule for all of them covers.
class NetworkChoice {
 public:
  NetworkChoice(const Model& model, const KeepSpec& keep, const std::vector<MoEBlock>& blocks)
      : parameters_(model.num_parameters()) {
    for (const MoEBlock& block : blocks) {
      if (keep.rule_of(block.block) == nullptr) continue;
      experts_ += block.layer->options().num_experts;
      for (RankedGroup& group : groups_of(block)) groups_.push_back(std::move(group));
    }
  }

  /// Returns the largest count of every group whose network is within the bound.
  int64_t count_within(const KeepRule& bound) const {
    int64_t count = 1;
    for (const RankedGroup& group : groups_) count = std::max(count, group.size());
    const auto fits = [&](int64_t kept) {
      int64_t removed = 0;
      for (const RankedGroup& group : groups_) {
        const int64_t stays = std::max(group.least(), std::min(kept, group.size()));
        removed += (group.size() - stays) * parameters_of_expert(*group.block);
      }
      return within(bound, parameters_ - removed);
    };
    for (; count > 0; --count) {
      if (fits(count)) return count;
    }
    fail_too_small(bound);
  }

  KeptExperts best_of_all(const KeepRule& rule, const ExpertRankings& rankings) const {
    KeptExperts kept;
    std::vector<Candidate> rest;
    int64_t chosen = 0, parameters = parameters_;
    for (const RankedGroup& group : groups_) {
      const std::vector<double>& own = rankings.at(group.block->block).scores;
      const Ids first = best(own, group.present, group.least());
      chosen += group.least();
      for (const int64_t id : group.present) {
        if (std::binary_search(first.begin(), first.end(), id)) {
          kept[group.block->block].push_back(id);
          continue;
        }
        const int64_t size = parameters_of_expert(*group.block);
        rest.push_back({group.block->block, id, own[static_cast<size_t>(id)], size});
        parameters -= size;
      }
    }
    std::ranges::stable_sort(rest, std::greater<>(), &Candidate::score);
    const bool bounded = rule.parameters() != nullptr;
    const int64_t wanted = bounded ? 0 : checked_total(rule, chosen, rest.size());
    if (bounded && !within(rule, parameters)) fail_too_small(rule);
    for (const Candidate& candidate : rest) {
      parameters += candidate.parameters;
      if (bounded ? !within(rule, parameters) : chosen == wanted) break;
      kept[candidate.block].push_back(candidate.id);
      ++chosen;
    }
    for (auto& [block, ids] : kept) std::sort(ids.begin(), ids.end());
    return kept;
  }

 private:
  struct Candidate {
    int64_t block, id;
    double score;
    int64_t parameters;
  };

  bool within(const KeepRule& bound, int64_t parameters) const {
    // A bound of exactly what some experts leave holds in spite of rounding.
    return static_cast<double>(parameters) <=
           *bound.parameters() * static_cast<double>(parameters_) * (1 + 1e-12);
  }

  int64_t checked_total(const KeepRule& rule, int64_t least, size_t others) const {
    const int64_t wanted = rule.count(experts_), present = least + static_cast<int64_t>(others);
    if (wanted > present) {
      fail_usage("{}: the network cannot keep {} experts, it has {}", rule.where, wanted, present);
    }
    if (wanted < least) {
      fail_usage(
          "{}: the network would keep {} of {} experts, fewer than the {} that tokens select; {}",
          rule.where, wanted, experts_, least, least_text(rule, least, experts_));
    }
    return wanted;
  }

  [[noreturn]] void fail_too_small(const KeepRule& bound) const {
    int64_t smallest = parameters_;
    for (const RankedGroup& group : groups_) {
      smallest -= (group.size() - group.least()) * parameters_of_expert(*group.block);
    }
    fail_usage(
        "{}: at least {} of {} parameters remain, since a token needs as many experts as it "
        "selects; choose at least {:.4f}",
        bound.where, smallest, parameters_,
        static_cast<double>(smallest) / static_cast<double>(parameters_) + 5e-5);
  }

  int64_t parameters_, experts_ = 0;
  std::vector<RankedGroup> groups_;
};

}  // namespace

std::string too_few_problem(const MoEBlock& block, const std::vector<int64_t>& kept) {
  for (const RankedGroup& group : groups_of(block)) {
    const int64_t count = group.count_of(kept);
    if (count >= group.least()) continue;
    return fmt::format("{} would keep {} experts, fewer than the {} that a token selects",
                       group.where, count, group.least());
  }
  return "";
}

std::vector<int64_t> first_experts(const KeepRule& rule, const MoEBlock& block) {
  const std::vector<double> equal(static_cast<size_t>(block.layer->options().num_experts), 0.0);
  return best_of_groups(groups_of(block), {equal},
                        [&](const RankedGroup& group) { return group.kept_by(rule); });
}

std::vector<int64_t> best_experts(const MoEBlock& block, const ExpertRanking& ranking,
                                  int64_t count) {
  return best_of_groups(groups_of(block), ranking,
                        [&](const RankedGroup& group) { return std::max(group.least(), count); });
}

CountRange count_range(const Model& model, const KeepSpec& keep) {
  CountRange range{0, 0};
  const bool together = keep.scope() == KeepScope::network;
  for (const MoEBlock& block : model.moe_blocks()) {
    if (keep.rule_of(block.block) == nullptr) continue;
    for (const RankedGroup& group : groups_of(block)) {
      range.min = together ? range.min + group.least() : std::max(range.min, group.least());
      range.max = together ? range.max + group.size() : std::max(range.max, group.size());
    }
  }
  return range;
}

std::optional<std::vector<int64_t>> without_worst(const MoEBlock& block,
                                                  const std::vector<int64_t>& kept,
                                                  const ExpertRanking& ranking) {
  const Ids left = best_of_groups(groups_of(block, kept), ranking, [](const RankedGroup& group) {
    return std::max(group.least(), group.size() - 1);
  });
  if (left.size() == kept.size()) return std::nullopt;
  return left;
}

KeptExperts choose_experts(const Model& model, const KeepSpec& keep,
                           const ExpertRankings& rankings) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  if (blocks.empty()) {
    fail_usage(
        "prune: the network has no layer with experts; give a mixture of experts (moesaic inspect "
        "CHECKPOINT lists the layers)");
  }
  Ids numbers;
  for (const MoEBlock& block : blocks) numbers.push_back(block.block);
  keep.check_blocks(numbers);
  const NetworkChoice network(model, keep, blocks);
  KeptExperts kept;
  if (keep.rule_of_network() != nullptr) {
    kept = network.best_of_all(*keep.rule_of_network(), rankings);
  }
  for (const MoEBlock& block : blocks) {
    if (kept.contains(block.block)) continue;
    const KeepRule* rule = keep.rule_of(block.block);
    Ids& own = kept[block.block];
    if (rule == nullptr) {
      own = block.layer->kept();
    } else if (rule->parameters() != nullptr) {
      own = best_experts(block, rankings.at(block.block), network.count_within(*rule));
    } else {
      if (rule->ids() != nullptr) check_present(*rule, block);
      const std::vector<RankedGroup> groups = groups_of(block);
      for (const RankedGroup& group : groups) check_count(*rule, group);
      own = rule->ids() != nullptr
                ? *rule->ids()
                : best_of_groups(groups, rankings.at(block.block),
                                 [&](const RankedGroup& group) { return group.kept_by(*rule); });
    }
  }
  return kept;
}

KeptExperts check_keep(const Model& model, const KeepSpec& keep) {
  ExpertRankings equal;
  for (const MoEBlock& block : model.moe_blocks()) {
    equal[block.block].scores.assign(static_cast<size_t>(block.layer->options().num_experts), 0.0);
  }
  return choose_experts(model, keep, equal);
}

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
