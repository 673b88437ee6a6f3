// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

/// Where a key or a value was written: `recipe.json:12:7`, or the source alone where it has no
/// lines (an argument).
struct Origin {
  std::shared_ptr<const std::string> source;
  int64_t line = 0;    // from 1; 0: the source has no lines
  int64_t column = 0;  // from 1, in characters
  std::string text() const;
};

/// An immutable JSON value that remembers where it was written. Copies share their content and cost
/// a pointer.
class Value {
 public:
  enum class Kind { null, boolean, integer, number, string, array, object };
  struct Member;
  using Array = std::vector<Value>;
  using Object = std::vector<Member>;  // in the order of the text; keys are unique

  /// How deep arrays and objects may nest, so that no input can exhaust the stack.
  static constexpr int64_t kMaxDepth = 200;

  Value();  // null
  Value(Origin origin, std::nullptr_t);
  Value(Origin origin, bool boolean);
  Value(Origin origin, int64_t integer);
  Value(Origin origin, double number);
  Value(Origin origin, std::string string);
  Value(Origin origin, const char* string) = delete;  // would else become a bool
  Value(Origin origin, Array items);
  Value(Origin origin, Object members);

  /// The same content; every part of it says `where`. Throws Error(usage) for NaN, infinity and
  /// nesting beyond kMaxDepth.
  static Value from_json(const nlohmann::ordered_json& json, const std::string& where);
  nlohmann::ordered_json to_json() const;

  Kind kind() const;
  bool is_null() const { return kind() == Kind::null; }
  bool is_object() const { return kind() == Kind::object; }
  const Origin& origin() const;
  std::string where() const { return origin().text(); }

  /// Each throws Error(usage) for another kind: "<where>: '<name>' must be a number, found the
  /// string "fast"". An integer may be written 1e3 but not 1.5; any integer is also a number.
  bool as_bool(std::string_view name = {}) const;
  int64_t as_int(std::string_view name = {}) const;
  double as_double(std::string_view name = {}) const;
  const std::string& as_string(std::string_view name = {}) const;
  const Array& items(std::string_view name = {}) const;
  const Object& members(std::string_view name = {}) const;

  /// The member of an object, or nullptr when it has none of that name or is no object.
  const Value* find(std::string_view key) const;
  /// The object's member, or Error(usage) "missing key".
  const Value& at(std::string_view key) const;

  /// A copy in which an object's member is replaced, or added at the end; a new key takes the
  /// member's origin.
  Value with(std::string_view key, Value member) const;
  /// A copy in which an array's item is replaced.
  Value with(size_t index, Value item) const;
  /// Both objects: member by member, `over` wins, and the whole says the place of `over`;
  /// otherwise `over`.
  Value merged(const Value& over) const;

  int64_t depth() const;          // 0 for a scalar, 1 + the deepest member else
  std::string described() const;  // for messages: 'the string "fast"', 'the number 1.5', 'a list'

  /// Equal content, wherever it was written; 1 and 1.0 differ, the order of keys does not matter.
  friend bool operator==(const Value& a, const Value& b);

 private:
  struct Node;
  [[noreturn]] void refuse(std::string_view name, std::string_view wanted) const;
  std::shared_ptr<const Node> node_;
};

struct Value::Member {
  std::string key;
  Origin origin;  // of the key
  Value value;

  friend bool operator==(const Member& a, const Member& b) {
    return a.key == b.key && a.value == b.value;
  }
};

}  // namespace moesaic
