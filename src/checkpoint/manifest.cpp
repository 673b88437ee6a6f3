// SPDX-License-Identifier: Apache-2.0
#include "manifest.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "moesaic/base/hash.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"

namespace moesaic {

namespace {

/// Checks format and version first, since another version may have other keys.
void check_version(const Value& root) {
  const std::string& format = root.at("format").as_string("format");
  if (format != kCheckpointFormat) {
    fail("{}: the format is '{}', expected '{}'", root.where(), format, kCheckpointFormat);
  }
  const int64_t version = root.at("version").as_int("version");
  if (version != kCheckpointVersion) {
    fail("{}: the checkpoint has version {}, this program reads version {}", root.where(), version,
         kCheckpointVersion);
  }
}

/// Checks the tensors of one kind, which are in one file or in those of an index.
void check_tensors(const Manifest& manifest, const fs::path& folder, const std::string& file,
                   bool required) {
  const fs::path path = folder / kManifestFile;
  const std::string index = index_name(file);
  const bool whole = manifest.files.contains(file), parts = manifest.files.contains(index);
  if (whole && parts) fail("{}: '{}' and '{}' are both listed", path.string(), file, index);
  if (required && !whole && !parts) {
    fail("{}: neither '{}' nor '{}' is listed", path.string(), file, index);
  }
  for (const std::string& name : {file, index}) {
    if (manifest.files.contains(name) || !fs::exists(folder / name)) continue;
    fail("{}: '{}' is there but not listed", path.string(), name);
  }
}

void check_names(const Manifest& manifest, const fs::path& folder, const fs::path& path) {
  for (const char* name : {kStateFile, kConfigFile}) {
    if (!manifest.files.contains(name)) fail("{}: '{}' is not listed", path.string(), name);
  }
  for (const auto& [name, entry] : manifest.files) {
    if (is_portable_name(name) && name != kManifestFile) continue;
    fail("{}: '{}' is not a file name", path.string(), name);
  }
  check_tensors(manifest, folder, kModelFile, true);
  check_tensors(manifest, folder, kOptimizerFile, false);
}

}  // namespace

std::string listed_tensors(const Manifest& manifest, const std::string& file) {
  for (const std::string& name : {file, index_name(file)}) {
    if (manifest.files.contains(name)) return name;
  }
  return "";
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  if (!path_exists(path)) {
    throw DamagedCheckpointError(
        fmt::format("{}: {} is missing: not a checkpoint, or an incomplete one", folder.string(),
                    kManifestFile));
  }
  return with_errors_as_failures([&] {
    const Value root = read_stored(path);
    check_version(root);
    Manifest manifest = parse<Manifest>(root);
    check_names(manifest, folder, path);
    return manifest;
  });
}

void check_file(const fs::path& folder, const std::string& name, const FileContent& entry,
                bool hash) {
  const fs::path path = folder / name;
  std::error_code error;
  if (!path_exists(path) || fs::is_directory(path, error)) {
    throw DamagedCheckpointError(fmt::format("{}: the file is missing", path.string()));
  }
  const auto size = fs::file_size(path, error);
  if (error) fail("{}: {}", path.string(), error.message());
  if (size != static_cast<uintmax_t>(entry.size)) {
    throw DamagedCheckpointError(fmt::format("{}: the file has {} bytes, {} says {}", path.string(),
                                             size, kManifestFile, entry.size));
  }
  if (!hash) return;
  const std::string found = sha256_file_hex(path);
  if (found != entry.sha256) {
    throw DamagedCheckpointError(
        fmt::format("{}: the file was altered: its SHA-256 is {}, {} says {}", path.string(), found,
                    kManifestFile, entry.sha256));
  }
}

void check_files(const fs::path& folder, const Manifest& manifest,
                 const std::function<bool(const std::string& name)>& hash) {
  const std::vector<std::pair<std::string, FileContent>> files(manifest.files.begin(),
                                                               manifest.files.end());
  constexpr int64_t kWorthAThread = int64_t{1} << 20;
  int64_t bytes = 0;
  for (const auto& [name, entry] : files) bytes += std::min(entry.size, kWorthAThread);
  const int64_t count = std::ssize(files);
  std::vector<std::exception_ptr> errors(files.size());
  at::parallel_for(0, count, bytes < kWorthAThread ? count : 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      try {
        check_file(folder, files[i].first, files[i].second, hash(files[i].first));
      } catch (const Error&) {
        errors[i] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void describe(auto& f, WrittenShard& c) {
  f("index", c.index, "index of the shard, from 0", required, at_least(0));
  f("count", c.num_shards, "number of shards", required, at_least(1));
  f("files", c.files, "files written by the shard", required);
}

std::string slice_name(const TensorSlice& slice) {
  return fmt::format("{}[{}:{}]", slice.name, slice.first, slice.end);
}

std::optional<TensorSlice> parse_slice(std::string_view name) {
  const size_t open = name.rfind('['), colon = name.rfind(':');
  if (!name.ends_with(']') || open == name.npos || colon == name.npos || colon < open) return {};
  const auto first = parsed_number<int64_t>(name.substr(open + 1, colon - open - 1));
  const auto end = parsed_number<int64_t>(name.substr(colon + 1, name.size() - colon - 2));
  if (!first || !end || *first < 0 || *end <= *first) return {};
  TensorSlice slice{std::string(name.substr(0, open)), *first, *end};
  // A slice has one name, so "w[00:2]" is not another one of w[0:2].
  return slice_name(slice) == name ? std::optional(std::move(slice)) : std::nullopt;
}

std::string to_text(const WrittenShard& shard) {
  return to_json(shard).dump();
}

WrittenShard parse_written_shard(const std::string& text) {
  return with_errors_as_failures(
      [&] { return parse<WrittenShard>(parse_stored(text, "a shard of a checkpoint")); });
}

}  // namespace moesaic
