// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/vmoe/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/pattern.h"

namespace moesaic {
namespace {

using vmoe_checkpoint::Entry;

constexpr std::string_view kParams = "params/";
constexpr const char* kExpandTile = "expand_tile";

struct TransformName {
  const char* name;
  VMoETransform transform;
};
constexpr std::array kTransforms = {TransformName{"vit_zoom", VMoETransform::vit_zoom},
                                    TransformName{"reshape", VMoETransform::reshape},
                                    TransformName{kExpandTile, VMoETransform::expand_tile}};

VMoETransform transform_from_value(const Value& value) {
  const std::string& given = value.as_string("the third item of a rule");
  std::vector<std::string> names;
  for (const auto& [name, transform] : kTransforms) {
    if (given == name) return transform;
    names.emplace_back(name);
  }
  fail_usage("{}: unknown transformation '{}'; {}", value.where(), given,
             did_you_mean(given, names));
}

/// A match: the whole text, then its groups.
using Found = std::vector<std::string_view>;

Pattern compiled(const std::string& pattern, const std::string& where) {
  const std::string problem = Pattern::problem(pattern);
  if (!problem.empty()) fail_usage("{}: {}", where, problem);
  return Pattern(pattern);
}

/// A replacement in Python's notation: \1 and \g<1> are groups, \\ is a backslash.
class Replacement {
 public:
  Replacement(const std::string& text, size_t groups, const std::string& where) {
    static const Pattern kGroup(R"(\\(?:g<(\d{1,2})>|(\d{1,2})|(\\)))");
    size_t end = 0;
    for (Found found; !(found = kGroup.find(text, end)).empty();) {
      const auto begin = static_cast<size_t>(found[0].data() - text.data());
      add_text(text.substr(end, begin - end), where);
      end = begin + found[0].size();
      if (!found[3].empty()) {
        parts_.push_back({"\\", std::nullopt});
        continue;
      }
      const size_t group = std::stoul(std::string(found[1].empty() ? found[2] : found[1]));
      if (group > groups) {
        fail_usage("{}: '{}' names group {}, the pattern has {}", where, text, group, groups);
      }
      parts_.push_back({"", group});
    }
    add_text(text.substr(end), where);
  }

  std::string of(const Found& found) const {
    std::string text;
    for (const Part& part : parts_) text += part.group ? found[*part.group] : part.text;
    return text;
  }

 private:
  struct Part {
    std::string text;
    std::optional<size_t> group;
  };
  void add_text(const std::string& text, const std::string& where) {
    if (text.find('\\') != std::string::npos) {
      fail_usage("{}: a '\\' in a replacement must come before a group's number or another '\\'",
                 where);
    }
    if (!text.empty()) parts_.push_back({text, std::nullopt});
  }

  std::vector<Part> parts_;
};

struct CompiledRule {
  const VMoERule* rule;
  Pattern pattern;
  Replacement replacement;
};

std::vector<CompiledRule> compiled_rules(const VMoERules& rules) {
  std::vector<CompiledRule> list;
  for (const VMoERule& rule : rules) {
    Pattern pattern = compiled(rule.pattern, "rules");
    Replacement replacement(rule.replacement, pattern.groups(), "rules");
    list.push_back({&rule, std::move(pattern), std::move(replacement)});
  }
  return list;
}

/// Replaces every match of the pattern.
std::string renamed(const CompiledRule& rule, const std::string& name) {
  std::string text;
  size_t end = 0, next = 0;
  for (Found found; !(found = rule.pattern.find(name, next)).empty();) {
    const auto place = static_cast<size_t>(found[0].data() - name.data());
    text += name.substr(end, place - end) + rule.replacement.of(found);
    end = place + found[0].size();
    next = found[0].empty() ? end + 1 : end;
  }
  return text + name.substr(end);
}

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

struct Grid {
  int64_t side = 0;
  bool token = false;
};

std::optional<Grid> grid_of(int64_t tokens) {
  int64_t side = 0;
  while ((side + 1) * (side + 1) <= tokens) ++side;
  if (side > 0 && side * side == tokens) return Grid{side, false};
  if (side > 0 && side * side + 1 == tokens) return Grid{side, true};
  return std::nullopt;
}

/// Returns why the embedding cannot be resized, "" if it can.
std::string zoom_problem(const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  if (from.size() != 3 || to.size() != 3 || from[0] != 1 || from[2] != to[2]) {
    return "vit_zoom takes [1, tokens, width] to other tokens of the same width";
  }
  if (from == to) return "";
  const auto source = grid_of(from[1]), target = grid_of(to[1]);
  if (!source || !target) {
    return fmt::format("vit_zoom: {} tokens are no square grid, with a class token or without",
                       source ? to[1] : from[1]);
  }
  if (target->token && !source->token) {
    return fmt::format("vit_zoom: {} tokens have no class token, {} have one", from[1], to[1]);
  }
  return "";
}

/// Returns the index of `axis`, which counts from the end if negative; nothing if out of range.
std::optional<size_t> new_axis(const VMoERule& rule, size_t rank) {
  const auto max = static_cast<int64_t>(rank);
  const int64_t axis = rule.axis < 0 ? rule.axis + max + 1 : rule.axis;
  if (axis < 0 || axis > max) return std::nullopt;
  return static_cast<size_t>(axis);
}

std::string expand_problem(const VMoERule& rule, std::vector<int64_t> from,
                           const std::vector<int64_t>& to) {
  const auto axis = new_axis(rule, from.size());
  if (!axis) return fmt::format("expand_tile: no axis {} among {}", rule.axis, from.size() + 1);
  from.insert(from.begin() + static_cast<long>(*axis), rule.repeats);
  if (from == to) return "";
  return fmt::format("expand_tile {} {} makes it [{}]", rule.axis, rule.repeats,
                     fmt::join(from, ", "));
}

std::string shape_problem(const VMoERule& rule, const std::vector<int64_t>& from,
                          const std::vector<int64_t>& to) {
  switch (rule.transform) {
    case VMoETransform::copy:
      return from == to ? "" : "the shapes differ";
    case VMoETransform::vit_zoom:
      return zoom_problem(from, to);
    case VMoETransform::reshape:
      return elements(from) == elements(to) ? "" : "reshape keeps the number of elements";
    case VMoETransform::expand_tile:
      break;
  }
  return expand_problem(rule, from, to);
}

/// Throws Error where the shape of a move does not fit: "size 12 x 3 instead of 12 x 4".
void check_move(const VMoEMove& move, const VMoEArray& target, const std::string& from) {
  const Entry& source = move.source;
  static constexpr std::array kFloats = {"float16", "bfloat16", "float32", "float64"};
  if (std::ranges::find(kFloats, source.dtype) == kFloats.end()) {
    fail("{}: array '{}' is {}; a parameter is one of {}", from, source.name, source.dtype,
         fmt::join(kFloats, ", "));
  }
  const std::string problem = shape_problem(move.rule, source.shape, target.shape);
  if (problem.empty()) return;
  const std::string as = source.name == target.name ? "" : fmt::format(" '{}'", target.name);
  fail("{}: array '{}' is [{}], the network's{} is [{}]: {}", from, source.name,
       fmt::join(source.shape, ", "), as, fmt::join(target.shape, ", "), problem);
}

/// The two rows that an output reads, and the second's weight; nothing where it is 0.
struct Tap {
  int64_t row = 0;
  double weight = 0.0;
};

std::vector<std::optional<Tap>> taps(int64_t from, int64_t to) {
  const double step = to > 1 ? static_cast<double>(from - 1) / static_cast<double>(to - 1) : 1.0;
  std::vector<std::optional<Tap>> list;
  for (int64_t k = 0; k < to; ++k) {
    const double place = static_cast<double>(k) * step;
    if (place > static_cast<double>(from - 1)) {
      list.emplace_back();
      continue;
    }
    const auto row = static_cast<int64_t>(place);
    list.push_back(Tap{row, place - static_cast<double>(row)});
  }
  return list;
}

/// Interpolates source [s, s, d] -> target [n, n, d].
void zoom_grid(const float* source, int64_t from, float* target, int64_t to, int64_t width) {
  const auto all = taps(from, to);
  for (int64_t y = 0; y < to; ++y) {
    for (int64_t x = 0; x < to; ++x) {
      float* const out = target + (y * to + x) * width;
      const auto &v = all[static_cast<size_t>(y)], &u = all[static_cast<size_t>(x)];
      for (int64_t c = 0; c < width; ++c) {
        double sum = 0.0;
        for (int64_t corner = 0; v && u && corner < 4; ++corner) {
          const int64_t down = corner / 2, right = corner % 2;
          const double weight =
              (down ? v->weight : 1.0 - v->weight) * (right ? u->weight : 1.0 - u->weight);
          if (weight == 0.0) continue;  // The row may be past the last one.
          const int64_t row = (v->row + down) * from + u->row + right;
          sum += weight * static_cast<double>(source[row * width + c]);
        }
        out[c] = static_cast<float>(sum);
      }
    }
  }
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
    const bool tile = parts.size() > 2 && parts[2] == Value({}, std::string(kExpandTile));
    const size_t max = tile ? 5 : 3;
    if (parts.size() < 2 || parts.size() > max || (tile && parts.size() < max)) {
      fail_usage(
          "{}: a rule is [pattern, replacement], with a transformation [..., \"vit_zoom\"], "
          "[..., \"reshape\"] or [..., \"expand_tile\", axis, repeats]",
          item.where());
    }
    VMoERule rule;
    rule.pattern = parts[0].as_string("a rule's pattern");
    if (!parts[1].is_null()) rule.replacement = parts[1].as_string("a rule's replacement");
    const Pattern pattern = compiled(rule.pattern, parts[0].where());
    const Replacement checked(rule.replacement, pattern.groups(), parts[1].where());
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

at::Tensor vit_zoom(const at::Tensor& embedding_1Td, int64_t tokens) {
  const std::vector<int64_t> from = embedding_1Td.sizes().vec();
  const std::vector<int64_t> to = {1, tokens, from.back()};
  const std::string problem = zoom_problem(from, to);
  if (!problem.empty()) fail_usage("{}", problem);
  if (from == to) return embedding_1Td.to(at::kFloat).contiguous();
  const Grid source = *grid_of(from[1]), target = *grid_of(tokens);
  const at::Tensor rows = embedding_1Td.to(at::kFloat).contiguous();
  const int64_t grid_start = source.token ? 1 : 0;
  if (source.side == target.side) return rows.narrow(1, from[1] - tokens, tokens).contiguous();
  at::Tensor out = at::empty(to, at::kFloat);
  const int64_t out_start = target.token ? 1 : 0;
  if (target.token) out.narrow(1, 0, 1).copy_(rows.narrow(1, 0, 1));
  zoom_grid(rows.const_data_ptr<float>() + grid_start * from[2], source.side,
            out.mutable_data_ptr<float>() + out_start * from[2], target.side, from[2]);
  return out;
}

bool VMoEMove::transforms(const VMoEArray& target) const {
  return rule.transform != VMoETransform::copy && source.shape != target.shape;
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
  VMoEPlan plan;
  const std::vector<CompiledRule> compiled = compiled_rules(rules);
  for (const Entry& entry : source) {
    const auto rule = std::ranges::find_if(compiled, [&](const CompiledRule& candidate) {
      return candidate.pattern.found_in(entry.name);
    });
    if (rule == compiled.end()) {
      const std::string in = rules_from.empty() ? "" : " in " + rules_from;
      fail("{}: no rule for array '{}'{}", from, entry.name, in);
    }
    if (rule->rule->replacement.empty()) {
      plan.dropped.push_back(entry.name);
      continue;
    }
    const std::string given = renamed(*rule, entry.name);
    const std::string name =
        given.starts_with(kParams) ? given.substr(kParams.size()) : std::string();
    const auto place = places.find(name);
    if (place == places.end()) {
      const std::string as = name == entry.name ? "" : fmt::format(", renamed '{}',", given);
      const auto near = nearest(name, names);
      fail("{}: array '{}'{} has no place in the network{}{}", from, entry.name, as, by,
           near ? fmt::format("; did you mean '{}'?", *near) : "");
    }
    const VMoEMove move{entry, *rule->rule};
    const auto [first, is_first] = plan.moves.emplace(name, move);
    if (!is_first) {
      fail("{}: arrays '{}' and '{}' both become '{}'{}", from, first->second.source.name,
           entry.name, name, by);
    }
    check_move(move, *place->second, from);
  }
  for (const std::string& name : names) {
    if (!plan.moves.contains(name)) plan.fresh.push_back(name);
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
  const auto axis = static_cast<int64_t>(*new_axis(move.rule, move.source.shape.size()));
  return values.unsqueeze(axis).expand(target.shape);
}

}  // namespace moesaic
