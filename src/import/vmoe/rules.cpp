// SPDX-License-Identifier: Apache-2.0
#include "reference.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "moesaic/base/pattern.h"
#include "moesaic/models/vmoe/vmoe.h"

namespace moesaic {
namespace {

using vmoe_checkpoint::Entry;

constexpr std::string_view kParams = "params/";
/// In the order of VMoETransform.
const std::vector<std::string> kTransforms = {"", "vit_zoom", "reshape", "expand_tile"};

VMoETransform transform_from_value(const Value& value) {
  const std::string& given = value.as_string("the third item of a rule");
  const auto found = std::find(kTransforms.begin() + 1, kTransforms.end(), given);
  if (found != kTransforms.end()) return static_cast<VMoETransform>(found - kTransforms.begin());
  fail_usage("{}: unknown transformation '{}'; {}", value.where(), given,
             did_you_mean(given, std::span(kTransforms).subspan(1)));
}

std::string shape_problem(const VMoERule& rule, std::vector<int64_t> from,
                          const std::vector<int64_t>& to) {
  switch (rule.transform) {
    case VMoETransform::copy:
      return from == to ? "" : "the shapes differ";
    case VMoETransform::vit_zoom:
      return vit_zoom_problem(from, to);
    case VMoETransform::reshape:
      return c10::multiply_integers(from) == c10::multiply_integers(to)
                 ? ""
                 : "reshape keeps the number of elements";
    case VMoETransform::expand_tile:
      break;
  }
  const int64_t count = std::ssize(from) + 1;  // Axes with the new one; negative: from the end.
  const int64_t axis = rule.axis < 0 ? rule.axis + count : rule.axis;
  if (axis < 0 || axis >= count) {
    return fmt::format("expand_tile: no axis {} among {}", rule.axis, count);
  }
  from.insert(from.begin() + axis, rule.repeats);
  if (from == to) return "";
  return fmt::format("expand_tile {} {} makes it {}", rule.axis, rule.repeats, shape_text(from));
}

/// Throws Error where an array cannot become the target's.
void check_move(const Entry& source, const VMoERule& rule, const VMoEArray& target,
                const std::string& from) {
  if (!is_float(source.dtype)) {
    fail("{}: array '{}' is {}; a parameter is one of float16, bfloat16, float32, float64", from,
         source.name, source.dtype);
  }
  const std::string problem = shape_problem(rule, source.shape, target.shape);
  if (problem.empty()) return;
  const std::string as = source.name == target.name ? "" : fmt::format(" '{}'", target.name);
  fail("{}: array '{}' is {}, the network's{} is {}: {}", from, source.name,
       shape_text(source.shape), as, shape_text(target.shape), problem);
}

}  // namespace

VMoERules identity_rules() {
  return {{"^(.*)$", R"(params/\1)"}};
}

VMoERules fine_tuning_rules() {
  return {{"head", ""},
          {"^(.*/pos_embedding)$", R"(params/\1)", VMoETransform::vit_zoom},
          {"^(.*/Moe/Router/dense/.*)$", R"(params/\1)", VMoETransform::reshape},
          {"^(.*)$", R"(params/\1)"}};
}

VMoERules rules_from_value(const Value& value) {
  VMoERules rules;
  for (const Value& item : value.items("rules")) {
    const Value::Array& parts = item.items("a rule");
    const bool tile = parts.size() > 2 && parts[2] == Value({}, kTransforms.back());
    if (tile ? parts.size() != 5 : parts.size() != 2 && parts.size() != 3) {
      fail_usage(
          "{}: a rule is [pattern, replacement], with a transformation [..., \"vit_zoom\"], "
          "[..., \"reshape\"] or [..., \"expand_tile\", axis, repeats]",
          item.where());
    }
    VMoERule rule{.pattern = parts[0].as_string("a rule's pattern")};
    if (!parts[1].is_null()) rule.replacement = parts[1].as_string("a rule's replacement");
    const std::string problem = Pattern::problem(rule.pattern);
    if (!problem.empty()) fail_usage("{}: {}", parts[0].where(), problem);
    substitute_groups(rule.replacement, MatchGroups(Pattern(rule.pattern).num_groups() + 1),
                      parts[1].where());
    if (parts.size() > 2) rule.transform = transform_from_value(parts[2]);
    if (tile) {
      constexpr int64_t kMaxRepeats = 1 << 20;
      rule.axis = parts[3].as_int("the axis of expand_tile");
      rule.repeats = parts[4].as_int("the repeats of expand_tile");
      if (rule.repeats < 1 || rule.repeats > kMaxRepeats) {
        fail_usage("{}: the repeats of expand_tile must be between 1 and {}, found {}",
                   parts[4].where(), kMaxRepeats, rule.repeats);
      }
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

VMoEPlan plan_moves(const std::vector<Entry>& source, const std::vector<VMoETensor>& target,
                    const VMoERules& rules, const std::string& from,
                    const std::string& rules_from) {
  const std::string by = rules_from.empty() ? "" : fmt::format(" by the rules of {}", rules_from);
  std::map<std::string, const VMoEArray*> places;
  std::vector<std::string> names;
  for (const VMoETensor& tensor : target) {
    for (const VMoEArray& array : tensor.arrays) {
      places[array.name] = &array;
      names.push_back(array.name);
    }
  }
  std::vector<Pattern> patterns;
  for (const VMoERule& rule : rules) patterns.emplace_back(rule.pattern);
  VMoEPlan plan;
  for (const Entry& entry : source) {
    const auto first = std::ranges::find_if(
        patterns, [&](const Pattern& pattern) { return pattern.matches(entry.name); });
    if (first == patterns.end()) {
      const std::string in = rules_from.empty() ? "" : " in " + rules_from;
      fail("{}: no rule for array '{}'{}", from, entry.name, in);
    }
    const VMoERule& rule = rules[static_cast<size_t>(first - patterns.begin())];
    if (rule.replacement.empty()) {
      plan.dropped.push_back(entry.name);
      continue;
    }
    const std::string given = renamed(*first, rule.replacement, entry.name);
    const std::string name = given.starts_with(kParams) ? given.substr(kParams.size()) : "";
    const auto place = places.find(name);
    if (place == places.end()) {
      const std::string as = name == entry.name ? "" : fmt::format(", renamed '{}',", given);
      const auto near = nearest(name, names);
      fail("{}: array '{}'{} has no place in the network{}{}", from, entry.name, as, by,
           near ? fmt::format("; did you mean '{}'?", *near) : "");
    }
    const bool transforms =
        rule.transform != VMoETransform::copy && entry.shape != place->second->shape;
    const auto [other, is_first] = plan.moves.emplace(name, VMoEMove{entry, rule, transforms});
    if (!is_first) {
      fail("{}: arrays '{}' and '{}' both become '{}'{}", from, other->second.source.name,
           entry.name, name, by);
    }
    check_move(entry, rule, *place->second, from);
  }
  for (const std::string& name : names) {
    const auto move = plan.moves.find(name);
    if (move == plan.moves.end()) {
      plan.fresh.push_back(name);
    } else if (move->second.transforms) {
      plan.transformed.push_back(name);
    }
  }
  return plan;
}

at::Tensor moved(const VMoEMove& move, const at::Tensor& values, const VMoEArray& target) {
  switch (move.rule.transform) {
    case VMoETransform::copy:
      return values;
    case VMoETransform::vit_zoom:
      return vit_zoom(values, target.shape[1]);
    case VMoETransform::reshape:
      return values.reshape(target.shape);
    case VMoETransform::expand_tile:
      break;
  }
  return values.unsqueeze(move.rule.axis).expand(target.shape);
}

}  // namespace moesaic
