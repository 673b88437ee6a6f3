// SPDX-License-Identifier: Apache-2.0
// One process or many: each writes its part, one publishes.
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "manifest.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/checkpoint/parts.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/parallel/processes.h"

namespace moesaic {
namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

/// Writes a document and adds it to the manifest.
void write_json(const fs::path& folder, const std::string& name, const Json& json,
                Manifest& manifest) {
  const fs::path path = folder / name;
  try {
    write_atomic(path, std::string_view(json.dump(2) + "\n"));
  } catch (const Json::exception& error) {
    fail("{}: cannot be written as JSON: {}", without_staging(path).string(), error.what());
  }
  manifest.files[name] = content_of(path);
}

/// Puts format and version first, so that a reader sees them before anything they determine.
Json with_format(const Json& config) {
  if (!config.is_object() || !config.contains("model")) {
    fail_usage("a checkpoint's config must be an object with the key 'model'");
  }
  Json full = {{"format", kCheckpointFormat}, {"version", kCheckpointVersion}};
  for (const auto& [key, value] : config.items()) {
    if (key != "format" && key != "version") full[key] = value;
  }
  return full;
}

/// Returns the name of one part's file; that of the whole file where it is the only part.
std::string part_name(const std::string& file, int64_t index, int64_t count) {
  if (count == 1) return file;
  const fs::path path(file);
  return fmt::format("{}-{:05}-of-{:05}{}", path.stem().string(), index + 1, count,
                     path.extension().string());
}

void check_place(int64_t index, int64_t count) {
  if (count >= 1 && index >= 0 && index < count) return;
  fail_usage("a checkpoint of {} parts has no part {}, counted from 0", count, index);
}

void check_whole(const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (parse_slice(name))
      fail_usage("'{}': the only part of a checkpoint has whole tensors", name);
  }
}

/// Returns the files of all parts, each of which is there once, and checks their sizes.
std::map<std::string, FileContent> files_of(const std::vector<WrittenPart>& parts,
                                            const fs::path& folder,
                                            const std::function<void()>& progress) {
  std::map<std::string, FileContent> files;
  std::vector<bool> there(parts.size());
  for (const WrittenPart& part : parts) {
    const auto count = static_cast<int64_t>(parts.size());
    if (part.count != count) {
      fail_usage("{}: {} parts to publish, one of which is of {}", folder.string(), count,
                 part.count);
    }
    check_place(part.index, count);
    const auto index = static_cast<size_t>(part.index);
    if (there[index]) fail_usage("{}: part {} is there twice", folder.string(), part.index);
    there[index] = true;
    for (const auto& [name, entry] : part.files) {
      check_file(folder, name, entry, false);
      if (progress) progress();
      files[name] = entry;
    }
  }
  return files;
}

/// Writes the index of one kind of tensors.
void write_index(const fs::path& folder, const std::string& file, Manifest& manifest) {
  const bool of_optimizer = is_of_optimizer(file);
  std::vector<std::string> names;
  for (const auto& [name, entry] : manifest.files) {
    if (name.ends_with(fs::path(file).extension().string()) &&
        is_of_optimizer(name) == of_optimizer) {
      names.push_back(name);
    }
  }
  if (names.empty() && of_optimizer) return;
  write_json(folder, index_name(file), checked_index(folder, names), manifest);
}

}  // namespace

WrittenPart write_part(const fs::path& staging, int64_t index, int64_t count,
                       const CheckpointPart& part, const std::function<void()>& progress) {
  check_place(index, count);
  WrittenPart written{.index = index, .count = count, .files = {}};
  const auto write = [&](const std::string& file, const TensorMap& tensors) {
    if (count == 1) check_whole(tensors);
    const std::string name = part_name(file, index, count);
    written.files[name] = write_tensors(staging / name, tensors, {}, progress);
  };
  if (count == 1 || !part.model.empty()) write(kModelFile, part.model);
  if (!part.optimizer.empty()) write(kOptimizerFile, part.optimizer);
  return written;
}

void publish(StagedDirectory& staged, const std::vector<WrittenPart>& parts, const Json& config,
             const Json& state, const std::function<void()>& progress) {
  const Json full = with_format(config);
  if (parts.empty()) fail_usage("{}: no part to publish", staged.path().string());
  Manifest manifest;
  manifest.files = files_of(parts, staged.path(), progress);
  if (parts.size() > 1) {
    for (const char* file : {kModelFile, kOptimizerFile}) {
      write_index(staged.path(), file, manifest);
      if (progress) progress();
    }
  }
  write_json(staged.path(), kStateFile, state, manifest);
  write_json(staged.path(), kConfigFile, full, manifest);
  write_manifest(staged.path(), manifest);
  staged.commit();
}

void save_checkpoint(const fs::path& folder, const Checkpoint& checkpoint,
                     const std::function<FileContent(const fs::path&)>& write_model) {
  with_format(checkpoint.config);  // Throws before anything large is written.
  StagedDirectory staged(folder);
  WrittenPart part;
  const auto write = [&](const char* file, const TensorMap& tensors) {
    check_whole(tensors);
    part.files[file] = write_tensors(staged.path() / file, tensors);
  };
  if (write_model) {
    part.files[kModelFile] = write_model(staged.path() / kModelFile);
  } else {
    write(kModelFile, checkpoint.model);
  }
  if (!checkpoint.optimizer.empty()) write(kOptimizerFile, checkpoint.optimizer);
  publish(staged, {part}, checkpoint.config, checkpoint.state);
}

void save_together(const Processes& processes, const fs::path& folder, const CheckpointPart& part,
                   const Json& config, const Json& state) {
  // Where a disk does not answer, one process stands still and is alive.
  const auto exchange = [&](const std::string& text) {
    return processes.exchange(text, std::chrono::seconds(processes.config().timeout));
  };
  const bool writes = processes.leads() || !part.model.empty() || !part.optimizer.empty();
  std::optional<StagedDirectory> staged;
  if (processes.leads()) staged.emplace(folder);
  // Process 0 says where to write, the others whether they do.
  const std::vector<std::string> said = exchange(staged   ? staged->path().string()
                                                 : writes ? "writes"
                                                          : "");
  if (without_staging(said[0]) != folder) {
    fail("process 0 saves to {}, this one to {}", without_staging(said[0]).string(),
         folder.string());
  }
  int64_t index = 0, count = 0;
  for (int64_t rank = 0; rank < processes.size(); ++rank) {
    if (rank == processes.rank()) index = count;
    if (!said[static_cast<size_t>(rank)].empty()) ++count;
  }
  const auto progress = [&] { processes.progress(); };
  const std::string written =
      writes ? text_of(write_part(said[0], index, count, part, progress)) : "";
  std::vector<WrittenPart> parts;
  for (const std::string& text : exchange(written)) {
    if (!text.empty()) parts.push_back(part_of(text));
  }
  if (staged) publish(*staged, parts, config, state, progress);
  exchange("");  // It is published.
}

}  // namespace moesaic
