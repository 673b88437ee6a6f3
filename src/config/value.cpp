// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic {

struct Value::List {
  Array items;
  int64_t depth = 0;
};

struct Value::Table {
  Object members;
  std::vector<uint32_t> by_key;  // Places of the members, sorted by key.
  int64_t depth = 0;

  /// Returns the place of the member of that key in `members`, or nothing.
  std::optional<size_t> find(std::string_view key) const {
    const auto found = std::lower_bound(
        by_key.begin(), by_key.end(), key,
        [&](uint32_t place, std::string_view other) { return members[place].key < other; });
    if (found == by_key.end() || members[*found].key != key) return std::nullopt;
    return *found;
  }
};

namespace {

constexpr double kExactIntegers = 9007199254740992.0;  // 2^53: doubles are exact up to it.

/// Returns whether this is text of a number beyond every double: an argument that is no JSON is
/// text.
bool overflows(const auto& content) {
  const auto* string = std::get_if<std::shared_ptr<const std::string>>(&content);
  if (string == nullptr) return false;
  const char* const end = (*string)->data() + (*string)->size();
  double number = 0.0;
  const auto [stop, error] = std::from_chars((*string)->data(), end, number);
  return stop == end && error == std::errc::result_out_of_range;
}

void check_depth(int64_t depth, const Origin& origin) {
  if (depth > Value::kMaxDepth) {
    fail_usage("{}: lists and objects nest deeper than {}", origin.text(), Value::kMaxDepth);
  }
}

/// Returns the places of members, sorted by key. Throws Error for a key that is there twice.
std::vector<uint32_t> sorted_by_key(const Value::Object& members) {
  std::vector<uint32_t> places(members.size());
  std::iota(places.begin(), places.end(), 0u);
  const auto key = [&](uint32_t place) -> const std::string& { return members[place].key; };
  std::sort(places.begin(), places.end(), [&](uint32_t a, uint32_t b) {
    const int order = key(a).compare(key(b));
    return order < 0 || (order == 0 && a < b);
  });
  const auto twice = std::adjacent_find(places.begin(), places.end(),
                                        [&](uint32_t a, uint32_t b) { return key(a) == key(b); });
  if (twice != places.end()) {
    const Value::Member& second = members[*(twice + 1)];
    fail_usage("{}: the key {} is given twice", second.origin.text(), printable(second.key));
  }
  return places;
}

Value convert(const Json& json, const Origin& origin, int64_t depth) {
  check_depth(depth, origin);
  if (json.is_null()) return Value(origin, nullptr);
  if (json.is_boolean()) return Value(origin, json.get<bool>());
  if (json.is_number_unsigned()) return Value(origin, json.get<uint64_t>());
  if (json.is_number_integer()) return Value(origin, json.get<int64_t>());
  if (json.is_number_float()) return Value(origin, json.get<double>());
  if (json.is_string()) return Value(origin, json.get<std::string>());
  if (json.is_array()) {
    Value::Array items;
    for (const Json& item : json) items.push_back(convert(item, origin, depth + 1));
    return Value(origin, std::move(items));
  }
  if (json.is_object()) {
    Value::Object members;
    for (const auto& [key, item] : json.items()) {
      members.push_back({key, origin, convert(item, origin, depth + 1)});
    }
    return Value(origin, std::move(members));
  }
  fail_usage("{}: JSON text cannot hold the value", origin.text());
}

}  // namespace

std::string Origin::text() const {
  const std::string name = source ? source->name : std::string("config");
  if (line == 0) return name;
  return name + ":" + std::to_string(line) + ":" + std::to_string(column);
}

Value::Value() : Value(Origin{}, nullptr) {}
Value::Value(Origin origin, std::nullptr_t) : content_(nullptr), origin_(std::move(origin)) {}
Value::Value(Origin origin, bool boolean) : content_(boolean), origin_(std::move(origin)) {}
Value::Value(Origin origin, int64_t integer) : content_(integer), origin_(std::move(origin)) {}

Value::Value(Origin origin, uint64_t integer) : content_(integer), origin_(std::move(origin)) {
  constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (integer <= kLargest) content_ = static_cast<int64_t>(integer);
}

Value::Value(Origin origin, double number) : content_(number), origin_(std::move(origin)) {
  if (!std::isfinite(number))
    fail_usage("{}: found {}, which JSON cannot represent", where(), number);
}

Value::Value(Origin origin, std::string string)
    : content_(std::make_shared<const std::string>(std::move(string))),
      origin_(std::move(origin)) {}

Value::Value(Origin origin, Array items) : origin_(std::move(origin)) {
  int64_t depth = 1;
  for (const Value& item : items) depth = std::max(depth, 1 + item.depth());
  check_depth(depth, origin_);
  content_ = std::make_shared<const List>(List{std::move(items), depth});
}

Value::Value(Origin origin, Object members) : origin_(std::move(origin)) {
  int64_t depth = 1;
  for (const Member& member : members) depth = std::max(depth, 1 + member.value.depth());
  check_depth(depth, origin_);
  std::vector<uint32_t> by_key = sorted_by_key(members);
  content_ = std::make_shared<const Table>(Table{std::move(members), std::move(by_key), depth});
}

Value Value::from_json(const Json& json, const std::string& where) {
  return convert(
      json,
      Origin{std::make_shared<const Origin::Source>(Origin::Source{where, /*is_stored=*/true})}, 0);
}

Json Value::to_json() const {
  if (kind() == Kind::array) {
    Json::array_t list;
    list.reserve(items().size());
    for (const Value& item : items()) list.push_back(item.to_json());
    return list;
  }
  if (is_object()) {
    // Members are appended without the search for an equal key that operator[] makes.
    Json::object_t object;
    object.reserve(members().size());
    for (const Member& member : members()) object.emplace_back(member.key, member.value.to_json());
    return object;
  }
  if (kind() == Kind::boolean) return as_bool();
  if (kind() == Kind::integer) return as_int();
  if (kind() == Kind::number) return as_double();
  if (kind() == Kind::unsigned_integer) return std::get<uint64_t>(content_);
  return kind() == Kind::string ? Json(as_string()) : Json(nullptr);
}

int64_t Value::depth() const {
  if (const auto* list = std::get_if<std::shared_ptr<const List>>(&content_)) return (*list)->depth;
  const auto* table = std::get_if<std::shared_ptr<const Table>>(&content_);
  return table != nullptr ? (*table)->depth : 0;
}

void Value::refuse(std::string_view name, std::string_view wanted) const {
  const std::string subject = name.empty() ? std::string() : fmt::format("'{}' ", name);
  fail_usage("{}: {}must be {}, found {}", where(), subject, wanted, described());
}

bool Value::as_bool(std::string_view name) const {
  if (const bool* boolean = std::get_if<bool>(&content_)) return *boolean;
  refuse(name, "true or false");
}

int64_t Value::as_int(std::string_view name) const {
  if (const int64_t* integer = std::get_if<int64_t>(&content_)) return *integer;
  const double* number = std::get_if<double>(&content_);
  const bool is_exact = number != nullptr && std::abs(*number) <= kExactIntegers;
  if (is_exact && std::trunc(*number) == *number) return static_cast<int64_t>(*number);
  const bool too_big =
      kind() == Kind::unsigned_integer || (number != nullptr && !is_exact) || overflows(content_);
  refuse(name, too_big ? "an integer of 64 bits" : "an integer");
}

double Value::as_double(std::string_view name) const {
  if (const double* number = std::get_if<double>(&content_)) return *number;
  if (const int64_t* integer = std::get_if<int64_t>(&content_)) {
    return static_cast<double>(*integer);
  }
  if (const uint64_t* integer = std::get_if<uint64_t>(&content_)) {
    return static_cast<double>(*integer);
  }
  refuse(name, overflows(content_) ? kRangeOfNumbers : "a number");
}

const std::string& Value::as_string(std::string_view name) const {
  if (const auto* string = std::get_if<std::shared_ptr<const std::string>>(&content_)) {
    return **string;
  }
  refuse(name, "a string");
}

const Value::Array& Value::items(std::string_view name) const {
  if (const auto* list = std::get_if<std::shared_ptr<const List>>(&content_)) return (*list)->items;
  refuse(name, "a list");
}

const Value::Object& Value::members(std::string_view name) const {
  if (const auto* table = std::get_if<std::shared_ptr<const Table>>(&content_)) {
    return (*table)->members;
  }
  refuse(name, "an object");
}

const Value* Value::find(std::string_view key) const {
  const auto* table = std::get_if<std::shared_ptr<const Table>>(&content_);
  const auto place = table != nullptr ? (*table)->find(key) : std::nullopt;
  return place ? &(*table)->members[*place].value : nullptr;
}

const Value& Value::at(std::string_view key) const {
  members();
  if (const Value* value = find(key)) return *value;
  fail_usage("{}: missing key '{}'", where(), key);
}

Value Value::with(std::string_view key, Value value) const {
  Object copy = members();
  if (const auto place = std::get<std::shared_ptr<const Table>>(content_)->find(key)) {
    copy[*place].value = std::move(value);
  } else {
    copy.push_back({std::string(key), value.origin(), value});
  }
  return Value(origin(), std::move(copy));
}

Value Value::with(size_t index, Value item) const {
  Array copy = items();
  copy.at(index) = std::move(item);
  return Value(origin(), std::move(copy));
}

Value Value::merged(const Value& over) const {
  if (!is_object() || !over.is_object()) return over;
  const Table& mine = *std::get<std::shared_ptr<const Table>>(content_);
  Object sum = mine.members;
  for (const Member& member : over.members()) {
    if (const auto place = mine.find(member.key)) {
      sum[*place] = {member.key, member.origin, sum[*place].value.merged(member.value)};
    } else {
      sum.push_back(member);
    }
  }
  return Value(over.origin(), std::move(sum));
}

std::string Value::described() const {
  if (is_null()) return "null";
  if (kind() == Kind::array) return "a list";
  if (is_object()) return "an object";
  if (kind() == Kind::boolean) return as_bool() ? "true" : "false";
  if (kind() == Kind::string) return fmt::format("the string \"{}\"", one_line(as_string()));
  if (kind() == Kind::number) return fmt::format("the number {}", as_double());
  if (kind() == Kind::integer) return fmt::format("the integer {}", as_int());
  return fmt::format("the integer {}", std::get<uint64_t>(content_));
}

bool operator==(const Value& a, const Value& b) {
  if (a.content_ == b.content_) return true;  // Also where both share a list or an object.
  if (a.kind() != b.kind()) return false;
  if (a.kind() == Value::Kind::string) return a.as_string() == b.as_string();
  if (a.kind() == Value::Kind::array) return a.items() == b.items();
  if (!a.is_object() || a.members().size() != b.members().size()) return false;
  return std::all_of(a.members().begin(), a.members().end(), [&](const Value::Member& member) {
    const Value* other = b.find(member.key);
    return other != nullptr && *other == member.value;
  });
}

}  // namespace moesaic
