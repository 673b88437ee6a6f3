// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/config/document.h"
#include "moesaic/config/schema.h"

namespace moesaic {
namespace {

KeepRule fraction_rule(double fraction, const std::string& where) {
  if (!(fraction > 0.0 && fraction <= 1.0)) {
    fail_usage("{}: a fraction must be above 0 and at most 1, found {}; a count has no point",
               where, fraction);
  }
  return {KeepFraction{fraction}, where};
}

KeepRule parameters_rule(double fraction, const std::string& where) {
  if (!(fraction > 0.0 && fraction <= 1.0)) {
    fail_usage("{}: the fraction of parameters must be above 0 and at most 1, found {}", where,
               fraction);
  }
  return {KeepParameters{fraction}, where};
}

KeepRule count_rule(int64_t count, const std::string& where) {
  if (count < 1) fail_usage("{}: at least 1 expert must stay, found {}", where, count);
  return {KeepCount{count}, where};
}

KeepRule ids_rule(const Value& list, const std::string& name) {
  std::vector<int64_t> ids;
  for (const Value& item : list.items(name)) {
    const int64_t id = item.as_int(name);
    if (id < 0) fail_usage("{}: experts count from 0, found {}", item.where(), id);
    if (std::find(ids.begin(), ids.end(), id) != ids.end()) {
      fail_usage("{}: expert {} is named twice", item.where(), id);
    }
    ids.push_back(id);
  }
  if (ids.empty()) fail_usage("{}: at least 1 expert must stay", list.where());
  std::sort(ids.begin(), ids.end());
  return {KeepIds{std::move(ids)}, list.where()};
}

KeepRule block_rule(const Value& value, const std::string& name) {
  if (value.kind() == Value::Kind::array) return ids_rule(value, name);
  return count_rule(value.as_int(name), value.where());
}

template <class Number>
std::optional<Number> whole_number(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
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
  std::vector<int64_t> whole;
};
template <class Fields>
void describe(Fields& f, KeepSettings& c) {
  f("fraction", c.fraction, "of the experts that stay", above(0.0), at_most(1.0));
  f("count", c.count, "or their number", at_least(1));
  f("parameters", c.parameters, "or how much of the network's parameters may stay", above(0.0),
    at_most(1.0));
  f("scope", c.scope, "experts are chosen within each layer, or among all of the network",
    one_of(keep_scope_names()));
  f("whole", c.whole, "blocks that keep all experts", at_least(0));
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
  const auto members = object.members("keep");
  return std::all_of(members.begin(), members.end(), [](const Value::Member& member) {
    return !member.key.empty() && member.key.find_first_not_of("-0123456789") == std::string::npos;
  });
}

}  // namespace

int64_t KeepRule::count(int64_t experts) const {
  if (const auto* fraction = std::get_if<KeepFraction>(&amount)) {
    const double exact = fraction->fraction * static_cast<double>(experts);
    return std::max<int64_t>(1, std::llround(exact));
  }
  if (const auto* number = std::get_if<KeepCount>(&amount)) return number->count;
  if (ids() != nullptr) return static_cast<int64_t>(ids()->size());
  fail("{}: a bound on parameters has no count of its own", where);
}

const std::vector<int64_t>* KeepRule::ids() const {
  const auto* list = std::get_if<KeepIds>(&amount);
  return list == nullptr ? nullptr : &list->ids;
}

const double* KeepRule::parameters() const {
  const auto* bound = std::get_if<KeepParameters>(&amount);
  return bound == nullptr ? nullptr : &bound->fraction;
}

std::vector<std::string> keep_scope_names() {
  return {"layer", "network"};
}

KeepSpec KeepSpec::parse(const std::string& text, const std::string& place) {
  const std::string where = fmt::format("{}{}keep '{}'", place, place.empty() ? "" : ": ", text);
  if (const auto count = whole_number<int64_t>(text)) return count_rule(*count, where);
  if (const auto fraction = whole_number<double>(text)) return fraction_rule(*fraction, where);
  if (path_exists(text)) return of_blocks(Document::from_file(text).root());
  const std::string meant = number_meant(text);
  fail_usage("{}: neither a fraction like 0.25, nor a count like 4, nor a JSON file that exists{}",
             where, meant.empty() ? nearest_sibling(text) : "; did you mean '" + meant + "'?");
}

KeepSpec KeepSpec::from_value(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::integer:
      return count_rule(value.as_int("keep"), value.where());
    case Value::Kind::number:
      return fraction_rule(value.as_double("keep"), value.where());
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
    const auto block = whole_number<int64_t>(key);
    if (!block || *block < 0) {
      fail_usage("{}: '{}' is not the number of a block", origin.text(), key);
    }
    if (!spec.blocks_.emplace(*block, block_rule(value, key)).second) {
      fail_usage("{}: block {} is named twice", origin.text(), *block);
    }
  }
  return spec;
}

KeepSpec KeepSpec::of_settings(const Value& object) {
  const auto settings = moesaic::parse<KeepSettings>(object, "keep");
  KeepSpec spec;
  if (settings.fraction) spec.every_ = fraction_rule(*settings.fraction, object.where());
  if (settings.count) spec.every_ = count_rule(*settings.count, object.where());
  if (settings.parameters) spec.every_ = parameters_rule(*settings.parameters, object.where());
  spec.set_scope(settings.scope == "network" ? KeepScope::network : KeepScope::layer);
  spec.leave_whole(settings.whole);
  return spec;
}

KeepSpec KeepSpec::fraction(double fraction) {
  return fraction_rule(fraction, "keep");
}

KeepSpec KeepSpec::count(int64_t count) {
  return count_rule(count, "keep");
}

KeepSpec KeepSpec::parameters(double fraction, const std::string& where) {
  return parameters_rule(fraction, where);
}

void KeepSpec::set_scope(KeepScope scope) {
  if (scope == KeepScope::network && !every_) {
    fail_usage("keep: the scope 'network' is for a fraction or a count, not for rules of blocks");
  }
  scope_ = scope;
}

void KeepSpec::leave_whole(std::vector<int64_t> blocks) {
  if (!blocks.empty() && !every_) {
    fail_usage("keep: blocks that stay whole need no rule: leave {} out of the file",
               fmt::join(blocks, " and "));
  }
  whole_ = std::move(blocks);
}

const KeepRule* KeepSpec::rule_of_network() const {
  return every_ && scope_ == KeepScope::network ? &*every_ : nullptr;
}

const KeepRule* KeepSpec::rule_of(int64_t block) const {
  if (std::find(whole_.begin(), whole_.end(), block) != whole_.end()) return nullptr;
  if (every_) return &*every_;
  const auto found = blocks_.find(block);
  return found == blocks_.end() ? nullptr : &found->second;
}

void KeepSpec::check_blocks(const std::vector<int64_t>& blocks) const {
  for (const int64_t block : whole_) {
    if (std::find(blocks.begin(), blocks.end(), block) != blocks.end()) continue;
    fail_usage("keep: block {}, which is to stay whole, has no experts; blocks that have: {}",
               block, fmt::join(blocks, ", "));
  }
  if (every_ && !blocks.empty() && std::all_of(blocks.begin(), blocks.end(), [&](int64_t block) {
        return rule_of(block) == nullptr;
      })) {
    fail_usage("{}: every block stays whole, so nothing would be pruned", every_->where);
  }
  for (const auto& [block, rule] : blocks_) {
    if (std::find(blocks.begin(), blocks.end(), block) == blocks.end()) {
      fail_usage("{}: block {} has no experts; blocks that have: {}", rule.where, block,
                 fmt::join(blocks, ", "));
    }
  }
}

}  // namespace moesaic
