// SPDX-License-Identifier: Apache-2.0
#include "same_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "moesaic/base/text.h"

namespace moesaic {

void SameFiles::add(const ImageFile& file, int64_t index) {
  if (file.inode == 0) return;
  entries_.push_back({file.device, file.inode, index, splits_.size() - 1});
}

std::string SameFiles::named(const Entry& entry) const {
  const Dataset& split = *splits_[entry.split];
  return fmt::format("{}: {}", split.info().split, split.file(entry.index)->name);
}

std::string SameFiles::text() && {
  const auto file_of = [](const Entry& entry) { return std::tie(entry.device, entry.inode); };
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.device, a.inode, a.split, a.index) <
           std::tie(b.device, b.inode, b.split, b.index);
  });
  constexpr size_t kNamed = 5;
  int64_t count = 0;
  std::vector<std::string> names;
  for (auto first = entries_.begin(); first != entries_.end();) {
    const auto end = std::find_if(first, entries_.end(), [&](const Entry& entry) {
      return file_of(entry) != file_of(*first);
    });
    const auto other = std::find_if(first + 1, end, [&](const Entry& entry) {
      return entry.split != first->split ||
             splits_[entry.split]->label(entry.index) != splits_[first->split]->label(first->index);
    });
    if (other != end && ++count <= static_cast<int64_t>(kNamed)) {
      names.push_back(named(*first) + " and " + named(*other));
    }
    first = end;
  }
  if (count == 0) return "";
  return fmt::format(
      "dataset '{}': {} read under two names, in different splits or classes: {}{}; remove one "
      "name of each, since results on images that were trained on say nothing and an image has one "
      "class",
      splits_.front()->info().name, count == 1 ? "1 file is" : fmt::format("{} files are", count),
      quoted_names(names), count > static_cast<int64_t>(kNamed) ? " and more" : "");
}

}  // namespace moesaic
