// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <unordered_map>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/config/document.h"

namespace moesaic {
namespace {

KeepRule ids_rule(const Value& list, const std::string& name) {
  std::vector<int64_t> ids;
  for (const Value& item : list.items(name)) {
    const int64_t id = item.as_int(name);
    if (id < 0) fail_usage("{}: experts are numbered from 0, found {}", item.where(), id);
    if (std::ranges::count(ids, id) > 0) {
      fail_usage("{}: expert {} is named twice", item.where(), id);
    }
    ids.push_back(id);
  }
  if (ids.empty()) fail_usage("{}: at least 1 expert must be kept", list.where());
  std::sort(ids.begin(), ids.end());
  return {std::move(ids), list.where()};
}

/// Returns the number that text in another notation than ours stands for: "50%", "0,25", "0x2"; ""
/// for all else.
std::string number_meant(const std::string& text) {
  std::string decimal = text;
  std::replace(decimal.begin(), decimal.end(), ',', '.');
  const bool percent = decimal.ends_with('%');
  if (percent) decimal.pop_back();
  char* end = nullptr;
  const double number = std::strtod(decimal.c_str(), &end);
  if (decimal.empty() || *end != '\0' || !(number > 0.0) || !std::isfinite(number)) {
    return "";
  }
  return fmt::format("{}", percent ? number / 100.0 : number);
}

/// A rule for all layers, written as an object.
struct KeepSettings {
  std::optional<double> fraction, parameters;
  std::optional<int64_t> count;
  std::string scope = "layer";
  std::vector<int64_t> exclude_blocks;
};
void describe(auto& f, KeepSettings& c) {
  f("fraction", c.fraction, "fraction of experts kept", above(0.0), at_most(1.0));
  f("count", c.count, "number of experts kept, instead of fraction", at_least(1));
  f("parameters", c.parameters, "fraction of the network's parameters kept, instead of fraction",
    above(0.0), at_most(1.0));
  f("scope", c.scope, "scope of the ranking: within each layer, or over the whole network",
    one_of(keep_scope_names()));
  f("exclude_blocks", c.exclude_blocks, "blocks that keep all experts", at_least(0),
    renamed_from("whole"));
}
ConfigProblem config_problem(const KeepSettings& settings) {
  const int given = int{settings.fraction.has_value()} + int{settings.count.has_value()} +
                    int{settings.parameters.has_value()};
  if (given == 1) return {};
  return {fmt::format("'keep' needs one of fraction, count and parameters, found {}", given),
          {"fraction", "count", "parameters"}};
}

/// Whether the object has rules for blocks.
bool names_blocks(const Value& object) {
  const auto& members = object.members("keep");
  return !members.empty() && std::ranges::all_of(members, [](const Value::Member& member) {
    return !member.key.empty() && member.key.find_first_not_of("-0123456789") == std::string::npos;
  });
}

const MoEBlock* find_block(const std::vector<MoEBlock>& blocks, int64_t block) {
  const auto found = std::ranges::find(blocks, block, &MoEBlock::block);
  return found == blocks.end() ? nullptr : &*found;
}

bool is_ascending(const std::vector<int64_t>& ids) {
  return std::is_sorted(ids.begin(), ids.end(), std::less_equal<>());
}

/// Throws Error (failure) for a number that is not finite, wherever it is: no criterion would see
/// all. Values apart from the network, those of a file, were checked when they were read.
void check_finite(const Model& model, const TensorMap* values, const char* which) {
  if (values != nullptr) return;
  for (const auto& [name, tensor] : state_of(model)) {
    if (!all_finite(tensor)) {
      fail("prune: '{}' of the {} network holds NaN or infinity", name, which);
    }
  }
}

/// Returns what ParameterReader of a network finds: the tensors of `values` by the names of the
/// network's parameters, or its own where `values` is null.
nn::ParameterReader values_for(const Model& model, const TensorMap* values) {
  if (values == nullptr) return nn::read_parameter;
  std::unordered_map<const void*, at::Tensor> found;
  for (const auto& item : model.named_parameters()) {
    found[item.value().unsafeGetTensorImpl()] = values->at(item.key());
  }
  return [found = std::move(found)](const at::Tensor& parameter) {
    return found.at(parameter.unsafeGetTensorImpl());
  };
}

const LayerStatistics* statistics_of(const ExpertStatistics* statistics, int64_t block) {
  if (statistics == nullptr) return nullptr;
  const auto found = statistics->find(block);
  return found == statistics->end() ? nullptr : &found->second;
}

/// Sets what the removed experts of each layer leave behind, or are merged by.
void add_means(PrunePlan& plan, const ExpertStatistics* statistics) {
  if (!replacement_needs_images(plan.replace)) return;
  for (PruneLayerPlan& layer : plan.layers) {
    const LayerStatistics* found = statistics_of(statistics, layer.block);
    if (found == nullptr || !found->outputs_Eo.defined()) {
      fail_usage("prune: --replace {}: block {} needs calibration images", *plan.replace,
                 layer.block);
    }
    layer.means_Eo = found->mean_outputs_Eo();
    layer.rows_E = found->sums.at({0, 0});
  }
}

/// What is wrong with the plan for a layer of this network, "" if nothing is.
std::string layer_problem(const std::vector<MoEBlock>& blocks, const PruneLayerPlan& layer) {
  const MoEBlock* block = find_block(blocks, layer.block);
  if (block == nullptr) return fmt::format("block {} has no experts", layer.block);
  const int64_t experts = block->layer->options().num_experts;
  if (experts != layer.num_experts) {
    return fmt::format("block {} has {} experts, the plan was made for {}", layer.block, experts,
                       layer.num_experts);
  }
  const std::vector<int64_t> present = block->layer->kept();
  if (layer.kept.empty() || !is_ascending(layer.kept) ||
      !std::includes(present.begin(), present.end(), layer.kept.begin(), layer.kept.end())) {
    return fmt::format("block {} cannot keep the experts {}; it has {}", layer.block,
                       fmt::join(layer.kept, ", "), fmt::join(present, ", "));
  }
  if (layer.kept.size() == present.size()) return "";
  return too_few_problem(*block, layer.kept);
}

}  // namespace

int64_t KeepRule::count(int64_t experts) const {
  if (const auto* fraction = std::get_if<KeepFraction>(&amount)) {
    const double exact = fraction->fraction * static_cast<double>(experts);
    return std::max<int64_t>(1, std::llround(exact));
  }
  if (const auto* number = std::get_if<int64_t>(&amount)) return *number;
  if (ids() != nullptr) return static_cast<int64_t>(ids()->size());
  fail("{}: a bound on parameters has no count of its own", where);
}

const double* KeepRule::parameters() const {
  const auto* bound = std::get_if<KeepParameters>(&amount);
  return bound == nullptr ? nullptr : &bound->fraction;
}

std::vector<std::string> keep_scope_names() {
  return {"layer", "network"};
}

KeepSpec KeepSpec::parse(const std::string& text, const std::string& place) {
  const std::string where = fmt::format("{}keep '{}'", place.empty() ? "--" : place + ": ", text);
  if (const auto number = parsed_number<int64_t>(text)) return count(*number, where);
  if (const auto number = parsed_number<double>(text)) return fraction(*number, where);
  if (path_exists(text)) return of_blocks(Document::from_file(text).root());
  const std::string meant = number_meant(text);
  fail_usage("{}: neither a fraction like 0.25, nor a count like 4, nor a JSON file that exists{}",
             where, meant.empty() ? nearest_sibling(text) : "; did you mean '" + meant + "'?");
}

KeepSpec KeepSpec::from_value(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::integer:
      return count(value.as_int("keep"), value.where());
    case Value::Kind::number:
      return fraction(value.as_double("keep"), value.where());
    case Value::Kind::string:
      return parse(value.as_string("keep"), value.where());
    default:
      if (!value.is_object()) {
        fail_usage(
            "{}: 'keep' must be a fraction (0.25), a count (4), a file, or an object "
            "{{\"<block>\": count or [ids]}}, found {}",
            value.where(), value.described());
      }
      return names_blocks(value) ? of_blocks(value) : of_settings(value);
  }
}

KeepSpec KeepSpec::of_blocks(const Value& object) {
  KeepSpec spec;
  for (const auto& [key, origin, value] : object.members("keep")) {
    const auto block = parsed_number<int64_t>(key);
    if (!block || *block < 0) {
      fail_usage("{}: '{}' is not the number of a block", origin.text(), key);
    }
    const bool has_ids = value.kind() == Value::Kind::array;
    const KeepSpec rule = has_ids ? ids_rule(value, key) : count(value.as_int(key), value.where());
    if (!spec.blocks_.emplace(*block, *rule.every_).second) {
      fail_usage("{}: block {} is named twice", origin.text(), *block);
    }
  }
  return spec;
}

KeepSpec KeepSpec::of_settings(const Value& object) {
  const auto settings = moesaic::parse<KeepSettings>(object, "keep");
  KeepSpec spec;
  if (settings.fraction) spec = fraction(*settings.fraction, object.where());
  if (settings.count) spec = count(*settings.count, object.where());
  if (settings.parameters) spec = parameters(*settings.parameters, object.where());
  spec.set_scope(settings.scope == "network" ? KeepScope::network : KeepScope::layer);
  spec.exclude_blocks(settings.exclude_blocks);
  return spec;
}

KeepSpec KeepSpec::fraction(double fraction, const std::string& where) {
  if (!(fraction > 0.0 && fraction <= 1.0)) {
    fail_usage(
        "{}: a fraction must be above 0 and at most 1, found {}; write a count without a decimal "
        "point",
        where, fraction);
  }
  return KeepRule{KeepFraction{fraction}, where};
}

KeepSpec KeepSpec::count(int64_t count, const std::string& where) {
  if (count < 1) fail_usage("{}: at least 1 expert must be kept, found {}", where, count);
  return KeepRule{count, where};
}

KeepSpec KeepSpec::parameters(double fraction, const std::string& where) {
  if (!(fraction > 0.0 && fraction <= 1.0)) {
    fail_usage("{}: the fraction of parameters must be above 0 and at most 1, found {}", where,
               fraction);
  }
  return KeepRule{KeepParameters{fraction}, where};
}

void KeepSpec::set_scope(KeepScope scope) {
  if (scope == KeepScope::network && !every_) {
    fail_usage(
        "--scope: 'network' is for a fraction or a count, not for rules of blocks; choose 'layer'");
  }
  scope_ = scope;
}

void KeepSpec::exclude_blocks(std::vector<int64_t> blocks) {
  if (!blocks.empty() && !every_) {
    fail_usage("--exclude-blocks: these keep all experts; leave {} {} out of --keep's file",
               blocks.size() == 1 ? "block" : "blocks", fmt::join(blocks, " and "));
  }
  excluded_blocks_ = std::move(blocks);
}

const KeepRule* KeepSpec::rule_of_network() const {
  return every_ && scope_ == KeepScope::network ? &*every_ : nullptr;
}

const KeepRule* KeepSpec::rule_of(int64_t block) const {
  if (std::ranges::count(excluded_blocks_, block) > 0) return nullptr;
  if (every_) return &*every_;
  const auto found = blocks_.find(block);
  return found == blocks_.end() ? nullptr : &found->second;
}

void KeepSpec::check_blocks(const std::vector<int64_t>& blocks) const {
  for (const int64_t block : excluded_blocks_) {
    if (std::ranges::count(blocks, block) > 0) continue;
    fail_usage("keep: block {} in 'exclude_blocks' has no experts; choose among the blocks {}",
               block, fmt::join(blocks, ", "));
  }
  const auto changes = [&](int64_t block) { return rule_of(block) != nullptr; };
  if (every_ && !blocks.empty() && std::ranges::none_of(blocks, changes)) {
    fail_usage("{}: 'exclude_blocks' names every block, so no expert would be pruned",
               every_->where);
  }
  for (const auto& [block, rule] : blocks_) {
    if (std::ranges::count(blocks, block) > 0) continue;
    fail_usage("{}: block {} has no experts; choose among the blocks {}", rule.where, block,
               fmt::join(blocks, ", "));
  }
}

ConfigProblem config_problem(const PruneLayerPlan& layer) {
  if (layer.kept.empty() || !is_ascending(layer.kept) || layer.kept.back() >= layer.num_experts) {
    std::set<int64_t> valid(layer.kept.begin(), layer.kept.end());
    valid.erase(valid.lower_bound(layer.num_experts), valid.end());
    if (valid.empty()) valid.insert(0);
    return {fmt::format("'kept' must be ascending experts below {}, such as [{}], found [{}]",
                        layer.num_experts, fmt::join(valid, ", "), fmt::join(layer.kept, ", ")),
            {"kept"}};
  }
  if (!layer.scores.empty() && std::ssize(layer.scores) != layer.num_experts) {
    return {fmt::format("'scores' has {} numbers for {} experts", layer.scores.size(),
                        layer.num_experts),
            {"scores"}};
  }
  return {};
}

ConfigProblem config_problem(const PrunePlan& plan) {
  std::vector<int64_t> blocks;
  for (const PruneLayerPlan& layer : plan.layers) blocks.push_back(layer.block);
  if (is_ascending(blocks)) return {};
  return {"'layers' must ascend by 'layer', each once", {"layers"}};
}

PrunePlan read_plan(const fs::path& path) {
  check_input_file(path);
  auto plan = parse<PrunePlan>(Document::from_file(path, kMaxListBytes).root());
  plan.where = path.string();
  return plan;
}

PrunePlan plan_pruning(const PruneInput& input, const PruneOptions& options) {
  const std::vector<MoEBlock> blocks = input.finetuned.moe_blocks();
  check_keep(input.finetuned, options.keep);
  check_finite(input.finetuned, input.finetuned_values, "fine-tuned");
  const Criterion& criterion = criterion_of(options.criterion);
  const bool compares = criterion.needs_pretrained;
  std::vector<MoEBlock> before;
  nn::ParameterReader old_values;
  if (input.pretrained != nullptr) {
    check_finite(*input.pretrained, input.pretrained_values, "pretrained");
    before = input.pretrained->moe_blocks();
    old_values = values_for(*input.pretrained, input.pretrained_values);
  }
  const nn::ParameterReader values = values_for(input.finetuned, input.finetuned_values);
  ExpertRankings rankings;
  for (const MoEBlock& block : blocks) {
    const MoEBlock* old = compares ? find_block(before, block.block) : nullptr;
    if (compares && input.pretrained != nullptr && old == nullptr) {
      fail_usage(
          "prune: the pretrained network has no experts in block {}; choose one with experts in "
          "the same blocks, or a criterion without one, such as router-magnitude",
          block.block);
    }
    const LayerStatistics* statistics = statistics_of(input.statistics, block.block);
    ExpertRanking& ranking = rankings[block.block];
    ranking.scores = expert_scores(options.criterion, {.finetuned = block,
                                                       .pretrained = old,
                                                       .statistics = statistics,
                                                       .seed = options.seed,
                                                       .finetuned_values = values,
                                                       .pretrained_values = old_values});
    if (criterion.selects_subset) ranking.products_EE = statistics->products_EE;
  }
  const KeptExperts kept = choose_experts(input.finetuned, options.keep, rankings);
  PrunePlan plan{
      options.criterion, {}, options.replace.value_or(default_replacement(input.finetuned))};
  for (const MoEBlock& block : blocks) {
    const ExpertRanking& ranking = rankings.at(block.block);
    plan.layers.push_back({.block = block.block,
                           .num_experts = block.layer->options().num_experts,
                           .kept = kept.at(block.block),
                           .scores = ranking.scores,
                           .num_groups = block.num_ranked_groups(),
                           .products_EE = ranking.products_EE});
  }
  add_means(plan, input.statistics);
  warn_of_ties(plan);
  return plan;
}

void complete_plan(PrunePlan& plan, const Model& model, const ExpertStatistics* statistics) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  for (PruneLayerPlan& layer : plan.layers) {
    const MoEBlock* block = find_block(blocks, layer.block);
    if (block != nullptr) layer.num_groups = block->num_ranked_groups();
  }
  if (!plan.replace) plan.replace = default_replacement(model);
  add_means(plan, statistics);
}

void warn_of_ties(const PrunePlan& plan) {
  // A plan's file may name any criterion.
  const auto criterion = std::ranges::find(criteria(), plan.criterion, &Criterion::name);
  const bool compares = criterion != criteria().end() && criterion->needs_pretrained;
  for (const PruneLayerPlan& layer : plan.layers) {
    const bool whole = std::ssize(layer.kept) == layer.num_experts;
    if (whole || layer.scores.empty()) continue;
    const int64_t each = layer.num_experts / layer.num_groups;
    for (int64_t first = 0; first < layer.num_experts; first += each) {
      const auto begin = layer.scores.begin() + first;
      const auto [min, max] = std::minmax_element(begin, begin + each);
      if (*min < *max) continue;
      log_warning("prune: block {}: {} gives every expert {}, so the first ones are kept{}",
                  layer.block, plan.criterion, *min,
                  compares ? "; check that the pretrained and the fine-tuned network differ" : "");
      break;
    }
  }
}

CriterionChoice CriterionChoice::parse(const std::string& text) {
  const size_t dot = text.find('.');
  if (dot == text.npos) return {text, std::nullopt};
  return {text.substr(0, dot), text.substr(dot + 1)};
}

std::string plan_problem(const Model& model, const PrunePlan& plan) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  bool removes = false;
  for (const PruneLayerPlan& layer : plan.layers) {
    const std::string problem = layer_problem(blocks, layer);
    if (!problem.empty()) return problem;
    removes |= layer.kept.size() < find_block(blocks, layer.block)->layer->kept().size();
  }
  // Tokens are rerouted from experts too that were removed before.
  if (!removes && plan.replace != kReroute) return "";
  return replacement_problem(model, plan.replace.value_or(default_replacement(model)));
}

}  // namespace moesaic
