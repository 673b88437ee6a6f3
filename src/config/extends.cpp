// SPDX-License-Identifier: Apache-2.0
#include "extends.h"

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "json_reader.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/path.h"

namespace moesaic::config_detail {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKey = "extends";

/// Returns a canonical path of a file, so that different spellings compare equal.
fs::path identity(const fs::path& path) {
  std::error_code ignored;
  const fs::path found = fs::weakly_canonical(path, ignored);
  return found.empty() ? path : found;
}

/// Returns which file may be meant, named as `extends` names it: from the extending file's folder.
std::string file_instead(const fs::path& folder, const fs::path& path) {
  std::string hint = nearest_sibling(path);
  const std::string start = "; did you mean '", outer = (folder / "").string();
  if (hint.starts_with(start + outer)) hint.erase(start.size(), outer.size());
  return hint;
}

/// Resolves a chain of extended documents, the innermost last. Limits are those of all documents
/// together, since one that is small may be extended many times.
class Extension {
 public:
  explicit Extension(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  Value read(const fs::path& path, int64_t depth) {
    chain_.push_back(path);
    const std::string text = read_text(path, max_bytes_, "a configuration");
    bytes_ += text.size();
    if (bytes_ > max_bytes_) {
      fail_usage("{}: with what it extends the configuration has more than {} bytes",
                 chain_.front().string(), max_bytes_);
    }
    Value whole = resolved(read_json(text, path.string(), {.max_bytes = max_bytes_}), depth);
    chain_.pop_back();
    return whole;
  }

 private:
  Value resolved(const Value& value, int64_t depth) {
    if (++nodes_ > kMaxDocumentNodes) {
      fail_usage("{}: more than {} values in one configuration", value.where(), kMaxDocumentNodes);
    }
    if (depth > Value::kMaxDepth) {
      fail_usage("{}: lists and objects nest deeper than {}", value.where(), Value::kMaxDepth);
    }
    if (value.kind() == Value::Kind::array) {
      Value::Array items;
      for (const Value& item : value.items()) items.push_back(resolved(item, depth + 1));
      return Value(value.origin(), std::move(items));
    }
    if (!value.is_object()) return value;
    Value::Object members;
    for (const Value::Member& member : value.members()) {
      if (member.key == kKey) continue;
      members.push_back({member.key, member.origin, resolved(member.value, depth + 1)});
    }
    const Value own(value.origin(), std::move(members));
    const Value* name = value.find(kKey);
    return name == nullptr ? own : extended_file(*name, depth).merged(own);
  }

  Value extended_file(const Value& name, int64_t depth) {
    const fs::path path = chain_.back().parent_path() / name.as_string(kKey);
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      fail_usage("{}: extends '{}': no such file{}", name.where(), path.string(),
                 file_instead(chain_.back().parent_path(), path));
    }
    check_no_circle(name, path);
    if (++extends_ > kMaxExtends) {
      fail_usage("{}: more than {} 'extends' in one configuration", name.where(), kMaxExtends);
    }
    Value base = read(path, depth);
    if (base.is_object()) return base;
    fail_usage("{}: extends '{}', which is {} and no object", name.where(), path.string(),
               base.described());
  }

  void check_no_circle(const Value& name, const fs::path& path) const {
    const auto first = std::find_if(chain_.begin(), chain_.end(), [&](const fs::path& outer) {
      return identity(outer) == identity(path);
    });
    if (first == chain_.end()) return;
    std::string circle;
    for (auto file = first; file != chain_.end(); ++file) {
      circle += file->filename().string() + " -> ";
    }
    fail_usage("{}: 'extends' goes round in a circle: {}{}", name.where(), circle,
               path.filename().string());
  }

  uint64_t max_bytes_, bytes_ = 0;
  std::vector<fs::path> chain_;
  int64_t extends_ = 0, nodes_ = 0;
};

}  // namespace

Value read_extended(const fs::path& path, uint64_t max_bytes) {
  return Extension(max_bytes).read(path, 0);
}

}  // namespace moesaic::config_detail
