// SPDX-License-Identifier: Apache-2.0
#include "manifest.h"

#include <string_view>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/config/schema.h"

namespace moesaic {
namespace fs = std::filesystem;

template <class Fields>
void describe(Fields& f, ManifestEntry& c) {
  f("size", c.size, "bytes", required, at_least(0));
  f("sha256", c.sha256, "of the content, as hexadecimal digits", required);
}

template <class Fields>
void describe(Fields& f, Manifest& c) {
  f("format", c.format, "what the folder is", required);
  f("version", c.version, "of that format", required);
  f("files", c.files, "all other files of the folder", required);
}

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

/// Returns whether the name is a plain file name that cannot leave the directory.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name != kManifestFile;
}

void check_names(const Manifest& manifest, const fs::path& folder, const fs::path& path) {
  for (const char* name : {kModelFile, kStateFile, kConfigFile}) {
    if (!manifest.files.contains(name)) fail("{}: '{}' is not listed", path.string(), name);
  }
  for (const auto& [name, entry] : manifest.files) {
    if (!is_plain_name(name)) fail("{}: '{}' is no file name", path.string(), name);
  }
  if (!manifest.files.contains(kOptimizerFile) && fs::exists(folder / kOptimizerFile)) {
    fail("{}: '{}' is there but not listed", path.string(), kOptimizerFile);
  }
}

}  // namespace

void write_manifest(const fs::path& folder) {
  Manifest manifest;
  for (const auto& file : fs::directory_iterator(folder)) {
    manifest.files[file.path().filename().string()] = {static_cast<int64_t>(file.file_size()),
                                                       sha256_file_hex(file.path())};
  }
  // Written without a final newline, so that any truncated manifest is invalid JSON.
  write_atomic(folder / kManifestFile, std::string_view(to_json(manifest).dump(2)));
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    fail("{}: no {}: it is no checkpoint, or one that was not written to its end", folder.string(),
         kManifestFile);
  }
  try {
    const Document document = stored_document(path);
    check_version(document.root());
    Manifest manifest = parse<Manifest>(document.root());
    check_names(manifest, folder, path);
    return manifest;
  } catch (const Error& error) {
    throw Error(ErrorKind::failure, error.what());  // Not written by users: it is damaged.
  }
}

void check_file(const fs::path& folder, const std::string& name, const ManifestEntry& entry,
                bool hash) {
  const fs::path path = folder / name;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) fail("{}: the file is missing", path.string());
  const auto size = fs::file_size(path, error);
  if (error) fail("{}: {}", path.string(), error.message());
  if (size != static_cast<uintmax_t>(entry.size)) {
    fail("{}: the file has {} bytes, {} says {}", path.string(), size, kManifestFile, entry.size);
  }
  if (!hash) return;
  const std::string found = sha256_file_hex(path);
  if (found != entry.sha256) {
    fail("{}: the file was altered: its SHA-256 is {}, {} says {}", path.string(), found,
         kManifestFile, entry.sha256);
  }
}

}  // namespace moesaic
