// SPDX-License-Identifier: Apache-2.0
// What lists the files of a checkpoint, its manifest, and the named tensors as they lie in one
// safetensors file, or in several that an index lists; what `moesaic export` writes, read as a
// checkpoint.
#pragma once

#include "moesaic/checkpoint/save.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/schema.h"
#include "moesaic/formats/safetensors.h"

namespace moesaic {

inline constexpr const char* kCheckpointFormat = "moesaic-checkpoint";
inline constexpr int64_t kCheckpointVersion = 1;
inline constexpr const char* kManifestFile = "MANIFEST.json";
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kConfigFile = "config.json";

struct Manifest {
  std::string format = kCheckpointFormat;
  int64_t version = kCheckpointVersion;
  std::map<std::string, FileContent> files;
};
void describe(auto& f, Manifest& c) {
  f("format", c.format, "kind of the folder's content", required);
  f("version", c.version, "version of that format", required);
  f("files", c.files, "all other files of the folder", required);
}

void describe(auto& f, FileContent& c) {
  f("size", c.size, "size in bytes", required, at_least(0));
  f("sha256", c.sha256, "checksum (SHA-256) of the content, as hexadecimal digits", required);
}

/// Reads the MANIFEST.json of a directory. Throws DamagedCheckpointError if it is missing; Error
/// (failure) if it cannot be read, is of another format or version, or does not list the files that
/// every checkpoint has.
Manifest read_manifest(const fs::path& folder);

/// Returns what the manifest lists of model.safetensors or optimizer.safetensors: the file, its
/// index, or "" for neither.
std::string listed_tensors(const Manifest& manifest, const std::string& file);

/// Returns whether a file of a checkpoint holds tensors of the optimizer, or is their index.
inline bool is_of_optimizer(std::string_view name) {
  return name.starts_with("optimizer-") || name.starts_with(kOptimizerFile);
}

/// Throws DamagedCheckpointError unless a listed file exists with its size and, if `hash`, its
/// SHA-256; Error (failure) where that cannot be known.
void check_file(const fs::path& folder, const std::string& name, const FileContent& entry,
                bool hash);

/// Checks all listed files in parallel, and hashes those for which `hash` returns true. Throws the
/// error of the first one by name.
void check_files(const fs::path& folder, const Manifest& manifest,
                 const std::function<bool(const std::string& name)>& hash);

/// Returns the name of the index of files that stand for the one named so.
inline std::string index_name(const std::string& file) {
  return file + ".index.json";
}
/// Returns whether a path is named as an index is.
bool is_index(const fs::path& path);

/// Returns the path of `file` in a folder, or of its index where the folder has that instead.
fs::path tensors_path(const fs::path& folder, const std::string& file);

/// Returns the name of the file of each tensor, by name, that an index lists. A stranger may have
/// written it: throws Error (failure) for a corrupt index and names of files that lead elsewhere.
std::map<std::string, std::string> read_index(const fs::path& path);

/// One entry of a file.
struct TensorPiece {
  std::shared_ptr<const safetensors::File> file;
  safetensors::Entry entry;
  fs::path path;

  std::span<const std::byte> bytes() const { return file->bytes(entry); }
  std::string where() const { return path.string() + ": " + entry.name; }
};

/// A tensor that is one entry, or slices along dimension 0 in the order of their rows.
struct StoredTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;  ///< Of the whole.
  std::vector<TensorPiece> pieces;
};

struct TensorFiles {
  std::vector<fs::path> paths;                       ///< Without the index.
  std::vector<StoredTensor> tensors;                 ///< In the order of one file, else by name.
  std::map<std::string, std::string> metadata = {};  ///< Of one file.
};

/// Opens a safetensors file, or those of an index, and reads the headers. Throws Error (failure)
/// for whatever formats/safetensors.h rejects, unless the index lists exactly what the files hold,
/// and where slices do not make up a tensor: a gap, an overlap, other dtypes or other shapes.
TensorFiles open_tensors(const fs::path& path);

/// Opens files of a folder that have no index yet, in the same way, and returns their index.
Json checked_index(const fs::path& folder, const std::vector<std::string>& names);

/// Returns the name of a dtype in safetensors; `where` is named in the Error (failure) for others.
const char* dtype_name(at::ScalarType type, const std::string& where);

/// Returns the number of bytes of these files.
uint64_t file_bytes(const std::vector<fs::path>& paths);

/// Returns whether a path is a file that ends in .safetensors, an index of such files, a
/// TorchScript file, or a folder of an export.
bool is_export(const fs::path& path);

/// Returns whether a file is an archive as TorchScript's are.
bool is_torchscript(const fs::path& file);

/// Returns whether a TorchScript file has its tensors as a pickle alone.
bool is_pickled(const fs::path& file);

/// Reads an export; of a TorchScript file the safetensors that it carries, and no pickle. Throws
/// Error (failure) where it lacks a model's configuration, Error (usage) for a TorchScript file
/// that carries none, unless the options say that it is trusted.
Checkpoint load_export(const fs::path& path, const LoadOptions& options);

/// Returns where a part of an export is, for messages: "config", "labels", "preprocess" or
/// "evaluation", beside the weights or in their file.
std::string part_of_export(const fs::path& path, const std::string& name);

/// Returns the network that a stored configuration describes, on the meta device. Throws Error
/// (failure) where this program cannot build it.
std::shared_ptr<Model> stored_meta_model(const Value& config);

/// Returns the file with a loaded checkpoint's weights, or their index.
fs::path weights_file(const Checkpoint& checkpoint);

}  // namespace moesaic
