// SPDX-License-Identifier: Apache-2.0
#include "shards.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "files.h"
#include "moesaic/base/error.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/path.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/data/image_walk.h"
#include "moesaic/formats/archive.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxLabelBytes = 1024;

/// A range of numbers in a name: "{0000..0127}".
struct NameRange {
  std::string before, after;
  int64_t first = 0, last = -1;
  size_t digits = 0;
};

std::optional<int64_t> number_in(std::string_view text) {
  return text.starts_with('-') ? std::nullopt : parsed_number<int64_t>(text);
}

/// Returns the range in a name without other braces, or nothing.
std::optional<NameRange> range_in(const std::string& name) {
  const size_t open = name.find('{'), dots = name.find("..", open), close = name.find('}', open);
  if (open == std::string::npos || dots == std::string::npos || close == std::string::npos ||
      close < dots || name.find_first_of("{}", close + 1) != std::string::npos) {
    return std::nullopt;
  }
  const auto first = number_in(name.substr(open + 1, dots - open - 1));
  const auto last = number_in(name.substr(dots + 2, close - dots - 2));
  if (!first || !last || *first > *last) return std::nullopt;
  return NameRange{name.substr(0, open), name.substr(close + 1), *first, *last, dots - open - 1};
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank(" \t\r\n\0", 5);
  text = without_byte_order_mark(text);
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  return text.substr(0, text.find_last_not_of(kBlank) + 1);
}

/// The name of a member in two: up to the first dot after its folder, and what follows that dot.
struct MemberName {
  std::string sample, extension;
};

MemberName split_name(const std::string& name) {
  const size_t file = name.rfind('/') == std::string::npos ? 0 : name.rfind('/') + 1;
  const size_t dot = name.find('.', file);
  if (dot == std::string::npos || dot == file) return {};
  std::string extension = name.substr(dot + 1);
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return {name.substr(0, dot), std::move(extension)};
}

/// Returns whether a member is its sample's image. One of several endings, such as the mask
/// 0001.seg.png, is something else about it.
bool is_image(const std::string& extension) {
  return extension.find('.') == std::string::npos && has_image_name("a." + extension);
}

class ShardListing {
 public:
  ShardListing(const fs::path& path, const ShardFile& described, const ClassNumbers& classes)
      : path_(path),
        described_(described),
        classes_(classes),
        fd_(open_file(path, O_RDONLY)),
        tar_(index_tar(path)) {}

  ShardIndex run() && {
    for (const TarProblem& problem : tar_.problems) {
      note(problem.text);
      if (is_image(split_name(problem.member).extension)) ++index_.skipped;
    }
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(path_, error));
    if (!error && described_.size > 0 && bytes != described_.size) {
      note(fmt::format("{} bytes, expected {}", bytes, described_.size));
    }
    for (const TarMember& member : tar_.members) {
      const MemberName name = split_name(member.name);
      if (name.extension == "cls") labels_.emplace(name.sample, &member);
    }
    for (const TarMember& member : tar_.members) take(member);
    compare_count();
    if (problems_ > 0) {
      index_.problem = fmt::format("{}: {}{}", path_.string(), first_problem_,
                                   problems_ > 1 ? fmt::format(" ({} more)", problems_ - 1) : "");
    }
    return std::move(index_);
  }

 private:
  void note(const std::string& problem) {
    if (problems_++ == 0) first_problem_ = problem;
  }

  void compare_count() {
    const auto found = static_cast<int64_t>(index_.images.size());
    if (found == 0) {
      note("no image with a label in it" +
           (other_.empty() ? ""
                           : fmt::format("; {} is none: an image is called KEY.jpg or the like, "
                                         "KEY without a dot",
                                         printable(other_))));
    }
    if (described_.num_images == 0 || found == described_.num_images) return;
    note(fmt::format("{}, expected {}", count_text(found, "image"), described_.num_images));
    if (found > described_.num_images)
      index_.images.resize(static_cast<size_t>(described_.num_images));
  }

  void take(const TarMember& member) {
    const MemberName name = split_name(member.name);
    if (name.extension == "cls") return;
    if (!is_image(name.extension)) {
      const bool like_one = has_image_name(member.name);
      if (other_.empty() || (like_one && !has_image_name(other_))) other_ = member.name;
      return;
    }
    try {
      if (member.size > kMaxImageFileBytes) fail("{} bytes are too many for an image", member.size);
      const int32_t label = label_of(name.sample);
      index_.images.push_back({member.offset, static_cast<uint32_t>(member.size),
                               static_cast<uint32_t>(index_.names.size()), label});
      index_.names += member.name;
      index_.names += '\0';
    } catch (const IoError&) {
      throw;  // The shard may be sound.
    } catch (const Error& error) {
      note(fmt::format("{}: {}", printable(member.name), error.what()));
      ++index_.skipped;
    }
  }

  /// Returns the label of a sample, which is one image's only.
  int32_t label_of(const std::string& sample) {
    const auto found = labels_.find(sample);
    if (found == labels_.end()) fail("no {}.cls with its class", sample);
    if (found->second == nullptr) fail("a second image of the same name");
    const TarMember& label = *std::exchange(found->second, nullptr);
    if (label.size > kMaxLabelBytes) fail("its .cls has {} bytes", label.size);
    const std::string text = read_at(fd_.get(), label.offset, label.size, path_);
    if (const auto number = classes_.find(text)) return *number;
    fail("{}", problems_ == 0 ? classes_.problem(text) : "");  // Only the first one is told.
  }

  const fs::path& path_;
  const ShardFile& described_;
  const ClassNumbers& classes_;
  UniqueFd fd_;
  TarIndex tar_;
  std::unordered_map<std::string, const TarMember*> labels_;  ///< By sample; null once taken.
  ShardIndex index_;
  std::string first_problem_, other_;  ///< `other_`: no image, if possible one called like one.
  int64_t problems_ = 0;
};

}  // namespace

std::string config_problem(const ShardFile& file) {
  if (!is_file_name(file.name)) return file_name_problem("name", file.name);
  if (!file.name.ends_with(".tar")) {
    return fmt::format("'{}': a shard is an uncompressed tar archive, NAME.tar", file.name);
  }
  const bool has_braces = file.name.find_first_of("{}") != std::string::npos;
  if (has_braces && !range_in(file.name)) {
    return fmt::format("'{}': a range is written {{0000..0127}}, once in a name", file.name);
  }
  if (has_braces && (file.size > 0 || !file.sha256.empty())) {
    return "size and sha256 belong to one file, not to a range";
  }
  return hash_problem("sha256", file.sha256, 64);
}

std::vector<ShardFile> expand_range(const ShardFile& file) {
  const auto range = range_in(file.name);
  if (!range) return {file};
  std::vector<ShardFile> files;
  const int64_t more = std::min(range->last - range->first, kMaxShards);
  for (int64_t i = 0; i <= more; ++i) {
    ShardFile one = file;
    one.name =
        fmt::format("{}{:0{}}{}", range->before, range->first + i, range->digits, range->after);
    files.push_back(std::move(one));
  }
  return files;
}

ClassNumbers::ClassNumbers(const std::vector<std::string>& classes, std::string texts)
    : texts_(std::move(texts)), classes_(classes) {
  for (size_t i = 0; i < classes.size(); ++i) numbers_.emplace(classes[i], static_cast<int32_t>(i));
}

std::optional<int32_t> ClassNumbers::numbered(std::string_view word) const {
  const auto number = texts_ == "name" ? std::nullopt : number_in(word);
  const bool known = number && std::cmp_less(*number, classes_.size());
  return known ? std::optional(static_cast<int32_t>(*number)) : std::nullopt;
}

std::optional<int32_t> ClassNumbers::named(std::string_view word) const {
  if (texts_ == "number") return std::nullopt;
  const auto found = numbers_.find(std::string(word));
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<int32_t> ClassNumbers::find(std::string_view text) const {
  const std::string_view word = trimmed(text);
  const auto number = numbered(word), name = named(word);
  if (number && name && *number != *name) return std::nullopt;
  return number ? number : name;
}

std::string ClassNumbers::problem(std::string_view text) const {
  const std::string_view word = trimmed(text);
  const auto number = texts_ == "name" ? std::nullopt : number_in(word);
  if (numbered(word) && named(word)) return ambiguity();
  if (number) {
    return fmt::format("class {} does not exist: the {} are numbered 0 to {}", *number,
                       count_text(std::ssize(classes_), "class"), classes_.size() - 1);
  }
  if (texts_ == "number") return fmt::format("class {} is not a number", printable(word));
  return fmt::format("unknown class {}{}", printable(word),
                     nearest(word, classes_) ? "; " + did_you_mean(word, classes_) : "");
}

std::string ClassNumbers::ambiguity() const {
  for (const std::string& name : classes_) {
    const auto number = numbered(name), own = named(name);
    if (!number || !own || *number == *own) continue;
    return fmt::format(
        "class {} has the number of class {} for its name; set \"labels\" to \"number\" or "
        "\"name\", what .cls holds",
        printable(name), printable(classes_[static_cast<size_t>(*number)]));
  }
  return "";
}

ShardIndex index_shard(const fs::path& path, const ShardFile& described,
                       const ClassNumbers& classes) {
  return ShardListing(path, described, classes).run();
}

std::string shard_problem(const fs::path& path, const ShardFile& described) try {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (error) return fmt::format("{}: {}", path.string(), error.message());
  if (described.size > 0 && std::cmp_not_equal(bytes, described.size)) {
    return fmt::format("{}: {} bytes, expected {}", path.string(), bytes, described.size);
  }
  if (described.sha256.empty()) {
    const TarIndex tar = index_tar(path);
    const std::string why = tar.problems.empty() ? "no file in it" : tar.problems.back().text;
    if (tar.members.empty() || tar.is_truncated) return fmt::format("{}: {}", path.string(), why);
    const auto images = std::ranges::count_if(tar.members, [](const TarMember& member) {
      return is_image(split_name(member.name).extension);
    });
    if (images >= described.num_images) return "";  // Some may be without a label.
    return fmt::format("{}: {}, expected {}", path.string(), count_text(images, "image"),
                       described.num_images);
  }
  const std::string hash = sha256_file_hex(path);
  if (hash == described.sha256) return "";
  return fmt::format("{}: SHA-256 is {}, expected {}", path.string(), hash, described.sha256);
} catch (const Error& error) {
  return error.what();
}

std::string shard_doubt(const ShardFile& described) {
  if (!described.sha256.empty()) return "";
  const char* const compared = described.size > 0 && described.num_images > 0
                                   ? "size and number of images are right"
                               : described.size > 0       ? "its size is right"
                               : described.num_images > 0 ? "its number of images is right"
                                                          : "it is a whole archive";
  return fmt::format("no SHA-256 is described; {}", compared);
}

std::string read_at(int fd, int64_t offset, int64_t size, const fs::path& path) {
  std::string bytes(static_cast<size_t>(size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count =
        TEMP_FAILURE_RETRY(::pread(fd, bytes.data() + done, bytes.size() - done,
                                   static_cast<off_t>(offset) + static_cast<off_t>(done)));
    if (count < 0) fail_errno(path, "cannot be read");
    if (count == 0) {  // Another file may have taken its place.
      throw TransientError(path.string() + ": it has become shorter since it was opened");
    }
    done += static_cast<size_t>(count);
  }
  return bytes;
}

}  // namespace moesaic
