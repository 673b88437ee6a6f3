// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace moesaic {

/// JSON whose objects keep the order of their members.
using Json = nlohmann::ordered_json;

/// Where a key or a value was written: `recipe.json:12:7`, or the source alone if it has no lines
/// (a command-line argument).
struct Origin {
  /// A file, a text or an argument.
  struct Source {
    std::string name;
    bool is_stored = false;  // Whether a program wrote it, which is no user's to change.
  };

  std::shared_ptr<const Source> source;
  int32_t line = 0;          // Line, 1-based; 0 if the source has no lines.
  int32_t column = 0;        // Column in characters, 1-based.
  std::string text() const;  ///< "FILE:LINE:COLUMN", or the source alone.
};

/// What a number has to be that is beyond every double.
inline constexpr const char* kRangeOfNumbers = "a number between -1.8e308 and 1.8e308";

/// An immutable JSON value that remembers where it was written. Copies share strings, arrays and
/// objects, so copying is cheap; other content lies in the Value itself, since a document may have
/// a million numbers.
class Value {
 public:
  enum class Kind { null, boolean, integer, number, string, array, object, unsigned_integer };
  struct Member;
  using Array = std::vector<Value>;
  using Object = std::vector<Member>;  // Members in text order.

  /// Max nesting depth of arrays and objects, so that no input can overflow the stack.
  static constexpr int64_t kMaxDepth = 200;

  Value();  ///< Constructs null.
  /// Constructs null.
  Value(Origin origin, std::nullptr_t);
  /// Constructs a boolean.
  Value(Origin origin, bool boolean);
  /// Constructs an integer.
  Value(Origin origin, int64_t integer);
  /// Constructs a number.
  Value(Origin origin, double number);
  /// An integer, of the kind `unsigned_integer` where an int64_t does not hold it.
  Value(Origin origin, uint64_t integer);
  /// Constructs a string.
  Value(Origin origin, std::string string);
  Value(Origin origin, const char* string) = delete;  // Would convert to bool.
  /// Constructs an array.
  Value(Origin origin, Array items);
  /// Throws Error (usage), at the origin of the second one, for a key that is given twice.
  Value(Origin origin, Object members);

  /// Returns a Value with the content of `json`, all of whose parts have the stored origin `where`.
  /// Throws Error (usage) for NaN, infinity and nesting beyond kMaxDepth.
  static Value from_json(const Json& json, const std::string& where);
  /// Returns the content as JSON, without origins.
  Json to_json() const;

  /// Returns the kind of the content.
  Kind kind() const { return static_cast<Kind>(content_.index()); }
  /// Returns whether this is null.
  bool is_null() const { return kind() == Kind::null; }
  /// Returns whether this is an object.
  bool is_object() const { return kind() == Kind::object; }
  /// Returns where this was written.
  const Origin& origin() const { return origin_; }
  /// Returns origin() as text.
  std::string where() const { return origin().text(); }

  /// Each throws Error (usage) for another kind: "<where>: '<name>' must be a number, found the
  /// string "fast"". An integer may be written 1e3 but not 1.5; any integer is also a number. One
  /// that is large is written as it was read, and read as a number only.
  bool as_bool(std::string_view name = {}) const;
  /// As as_bool(), for an integer.
  int64_t as_int(std::string_view name = {}) const;
  /// As as_bool(), for a number.
  double as_double(std::string_view name = {}) const;
  /// As as_bool(), for a string.
  const std::string& as_string(std::string_view name = {}) const;
  /// As as_bool(), for an array.
  const Array& items(std::string_view name = {}) const;
  /// As as_bool(), for an object.
  const Object& members(std::string_view name = {}) const;

  /// Returns the member of that key, or nullptr if there is none or this is not an object. The time
  /// grows with the logarithm of the number of members.
  const Value* find(std::string_view key) const;
  /// Returns the member of that key. Throws Error (usage), "missing key", if there is none.
  const Value& at(std::string_view key) const;

  /// Returns a copy of an object in which the member is replaced, or appended; a new key takes the
  /// member's origin.
  Value with(std::string_view key, Value member) const;
  /// Returns a copy of an array in which this item, which exists, is replaced.
  Value with(size_t index, Value item) const;
  /// Returns this object with the members of `over` merged over it recursively, at the origin of
  /// `over`; returns `over` unless both are objects.
  Value merged(const Value& over) const;

  int64_t depth() const;  ///< Nesting depth: 0 for a scalar, else 1 + that of the deepest member.
  std::string described() const;  ///< Text for messages: 'the string "fast"', 'a list'.

  /// Compares content, not origins; 1 and 1.0 differ, the order of keys does not matter.
  friend bool operator==(const Value& a, const Value& b);

 private:
  struct List;
  struct Table;
  [[noreturn]] void refuse(std::string_view name, std::string_view wanted) const;

  std::variant<std::nullptr_t, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Table>, uint64_t>
      content_;  // Alternatives in the order of Kind.
  Origin origin_;
};

/// A key of an object with its value.
struct Value::Member {
  std::string key;
  Origin origin;  // Origin of the key.
  Value value;

  friend bool operator==(const Member& a, const Member& b) {
    return a.key == b.key && a.value == b.value;
  }
};

}  // namespace moesaic
