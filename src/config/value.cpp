// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/value.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <variant>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic {

using Json = nlohmann::ordered_json;

struct Value::Node {
  Origin origin;
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object>
      content;  // Alternatives in the order of Kind.
  int64_t depth = 0;
};

namespace {

constexpr double kExactIntegers = 9007199254740992.0;  // 2^53: doubles are exact up to it.

bool is_exact_integer(double number) {
  return std::trunc(number) == number && std::abs(number) <= kExactIntegers;
}

void check_depth(int64_t depth, const Origin& origin) {
  if (depth > Value::kMaxDepth) {
    fail_usage("{}: lists and objects nest deeper than {}", origin.text(), Value::kMaxDepth);
  }
}

Value convert(const Json& json, const Origin& origin, int64_t depth) {
  check_depth(depth, origin);
  switch (json.type()) {
    case Json::value_t::null:
      return Value(origin, nullptr);
    case Json::value_t::boolean:
      return Value(origin, json.get<bool>());
    case Json::value_t::number_integer:
      return Value(origin, json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Value(origin, static_cast<int64_t>(number));
      }
      return Value(origin, static_cast<double>(number));
    }
    case Json::value_t::number_float:
      return Value(origin, json.get<double>());
    case Json::value_t::string:
      return Value(origin, json.get<std::string>());
    case Json::value_t::array: {
      Value::Array items;
      for (const Json& item : json) items.push_back(convert(item, origin, depth + 1));
      return Value(origin, std::move(items));
    }
    case Json::value_t::object: {
      Value::Object members;
      for (const auto& [key, item] : json.items()) {
        members.push_back({key, origin, convert(item, origin, depth + 1)});
      }
      return Value(origin, std::move(members));
    }
    case Json::value_t::binary:
    case Json::value_t::discarded:
      break;
  }
  fail_usage("{}: a value that JSON text cannot hold", origin.text());
}

}  // namespace

std::string Origin::text() const {
  const std::string name = source ? *source : std::string("config");
  if (line == 0) return name;
  return name + ":" + std::to_string(line) + ":" + std::to_string(column);
}

Value::Value() : Value(Origin{}, nullptr) {}
Value::Value(Origin origin, std::nullptr_t)
    : node_(std::make_shared<const Node>(Node{std::move(origin), nullptr})) {}
Value::Value(Origin origin, bool boolean)
    : node_(std::make_shared<const Node>(Node{std::move(origin), boolean})) {}
Value::Value(Origin origin, int64_t integer)
    : node_(std::make_shared<const Node>(Node{std::move(origin), integer})) {}

Value::Value(Origin origin, double number) {
  if (!std::isfinite(number))
    fail_usage("{}: found {}, which is no JSON number", origin.text(), number);
  node_ = std::make_shared<const Node>(Node{std::move(origin), number});
}

Value::Value(Origin origin, std::string string)
    : node_(std::make_shared<const Node>(Node{std::move(origin), std::move(string)})) {}

Value::Value(Origin origin, Array items) {
  int64_t depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  check_depth(depth + 1, origin);
  node_ = std::make_shared<const Node>(Node{std::move(origin), std::move(items), depth + 1});
}

Value::Value(Origin origin, Object members) {
  int64_t depth = 0;
  for (const Member& member : members) depth = std::max(depth, member.value.depth());
  check_depth(depth + 1, origin);
  node_ = std::make_shared<const Node>(Node{std::move(origin), std::move(members), depth + 1});
}

Value Value::from_json(const Json& json, const std::string& where) {
  return convert(json, Origin{std::make_shared<const std::string>(where)}, 0);
}

Json Value::to_json() const {
  switch (kind()) {
    case Kind::null:
      return nullptr;
    case Kind::boolean:
      return std::get<bool>(node_->content);
    case Kind::integer:
      return std::get<int64_t>(node_->content);
    case Kind::number:
      return std::get<double>(node_->content);
    case Kind::string:
      return std::get<std::string>(node_->content);
    case Kind::array: {
      Json list = Json::array();
      for (const Value& item : items()) list.push_back(item.to_json());
      return list;
    }
    case Kind::object:
      break;
  }
  Json object = Json::object();
  for (const Member& member : members()) object[member.key] = member.value.to_json();
  return object;
}

Value::Kind Value::kind() const {
  return static_cast<Kind>(node_->content.index());
}
const Origin& Value::origin() const {
  return node_->origin;
}
int64_t Value::depth() const {
  return node_->depth;
}

void Value::refuse(std::string_view name, std::string_view wanted) const {
  const std::string subject = name.empty() ? std::string() : fmt::format("'{}' ", name);
  fail_usage("{}: {}must be {}, found {}", where(), subject, wanted, described());
}

bool Value::as_bool(std::string_view name) const {
  if (const bool* boolean = std::get_if<bool>(&node_->content)) return *boolean;
  refuse(name, "true or false");
}

int64_t Value::as_int(std::string_view name) const {
  if (const int64_t* integer = std::get_if<int64_t>(&node_->content)) return *integer;
  const double* number = std::get_if<double>(&node_->content);
  if (number != nullptr && is_exact_integer(*number)) return static_cast<int64_t>(*number);
  const bool too_big = number != nullptr && std::abs(*number) > kExactIntegers;
  refuse(name, too_big ? "an integer of 64 bits" : "an integer");
}

double Value::as_double(std::string_view name) const {
  if (const double* number = std::get_if<double>(&node_->content)) return *number;
  if (const int64_t* integer = std::get_if<int64_t>(&node_->content)) {
    return static_cast<double>(*integer);
  }
  refuse(name, "a number");
}

const std::string& Value::as_string(std::string_view name) const {
  if (const auto* string = std::get_if<std::string>(&node_->content)) return *string;
  refuse(name, "a string");
}

const Value::Array& Value::items(std::string_view name) const {
  if (const auto* array = std::get_if<Array>(&node_->content)) return *array;
  refuse(name, "a list");
}

const Value::Object& Value::members(std::string_view name) const {
  if (const auto* object = std::get_if<Object>(&node_->content)) return *object;
  refuse(name, "an object");
}

const Value* Value::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const Member& member : members()) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

const Value& Value::at(std::string_view key) const {
  members();
  if (const Value* value = find(key)) return *value;
  fail_usage("{}: missing key '{}'", where(), key);
}

Value Value::with(std::string_view key, Value value) const {
  Object copy = members();
  const auto found =
      std::find_if(copy.begin(), copy.end(), [&](const Member& m) { return m.key == key; });
  if (found == copy.end()) {
    const Origin place = value.origin();
    copy.push_back({std::string(key), place, std::move(value)});
  } else {
    found->value = std::move(value);
  }
  return Value(origin(), std::move(copy));
}

Value Value::with(size_t index, Value item) const {
  Array copy = items();
  if (index >= copy.size()) {
    fail_usage("{}: there is no item {}: the list holds {}", where(), index, copy.size());
  }
  copy[index] = std::move(item);
  return Value(origin(), std::move(copy));
}

Value Value::merged(const Value& over) const {
  if (!is_object() || !over.is_object()) return over;
  Object sum = members();
  for (const Member& member : over.members()) {
    const auto mine =
        std::find_if(sum.begin(), sum.end(), [&](const Member& m) { return m.key == member.key; });
    if (mine == sum.end()) {
      sum.push_back(member);
    } else {
      *mine = {member.key, member.origin, mine->value.merged(member.value)};
    }
  }
  return Value(over.origin(), std::move(sum));
}

std::string Value::described() const {
  switch (kind()) {
    case Kind::null:
      return "null";
    case Kind::boolean:
      return as_bool() ? "true" : "false";
    case Kind::integer:
      return fmt::format("the integer {}", as_int());
    case Kind::number:
      return fmt::format("the number {}", as_double());
    case Kind::string:
      return fmt::format("the string \"{}\"", one_line(as_string()));
    case Kind::array:
      return "a list";
    case Kind::object:
      break;
  }
  return "an object";
}

bool operator==(const Value& a, const Value& b) {
  if (a.node_ == b.node_) return true;
  if (a.kind() != b.kind()) return false;
  if (!a.is_object()) return a.node_->content == b.node_->content;
  if (a.members().size() != b.members().size()) return false;
  return std::all_of(a.members().begin(), a.members().end(), [&](const Value::Member& member) {
    const Value* other = b.find(member.key);
    return other != nullptr && *other == member.value;
  });
}

}  // namespace moesaic
