// SPDX-License-Identifier: Apache-2.0
// One process or many: each writes its shard, one publishes. Then the thread that does it behind
// training.
#include "moesaic/checkpoint/save.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <chrono>
#include <span>
#include <utility>

#include "manifest.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/text.h"
#include "moesaic/parallel/process_mesh.h"

namespace moesaic {

namespace {

/// Writes a document and adds it to the manifest.
void write_json(const fs::path& folder, const std::string& name, const Json& json,
                Manifest& manifest) {
  const fs::path path = folder / name;
  try {
    const std::string text = json.dump(2) + "\n";
    write_atomic(path, text);
    manifest.files[name] = {std::ssize(text), sha256_hex(std::as_bytes(std::span(text)))};
  } catch (const Json::exception& error) {
    fail("{}: cannot be written as JSON: {}", without_staging(path).string(), error.what());
  }
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

/// Returns the name of one shard's file; that of the whole file where it is the only shard.
std::string shard_name(const std::string& file, int64_t index, int64_t count) {
  if (count == 1) return file;
  const fs::path path(file);
  return fmt::format("{}-{:05}-of-{:05}{}", path.stem().string(), index + 1, count,
                     path.extension().string());
}

void check_place(int64_t index, int64_t count) {
  if (count >= 1 && index >= 0 && index < count) return;
  fail_usage("a checkpoint of {} shards has no shard {}, counted from 0", count, index);
}

/// Returns the files of all shards, each of which is there once, and checks their sizes.
std::map<std::string, FileContent> files_of(const std::vector<WrittenShard>& shards,
                                            const fs::path& folder,
                                            const std::function<void()>& progress) {
  std::map<std::string, FileContent> files;
  std::vector<bool> there(shards.size());
  for (const WrittenShard& shard : shards) {
    const int64_t count = std::ssize(shards);
    if (shard.num_shards != count) {
      fail_usage("{}: {} to publish, one of which is of {}", folder.string(),
                 count_text(count, "shard"), shard.num_shards);
    }
    check_place(shard.index, count);
    const auto index = static_cast<size_t>(shard.index);
    if (there[index]) fail_usage("{}: shard {} is there twice", folder.string(), shard.index);
    there[index] = true;
    for (const auto& [name, entry] : shard.files) {
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

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

bool takes(const at::Tensor& copy, const at::Tensor& tensor) {
  return copy.defined() && copy.layout() == at::kStrided && copy.sizes() == tensor.sizes() &&
         copy.scalar_type() == tensor.scalar_type();
}

/// Copies a tensor and returns whether it is finite: in pieces, which are summed while they are in
/// the cache.
bool copy_finite(const at::Tensor& from, at::Tensor& to) {
  constexpr int64_t kPiece = int64_t{1} << 17;
  if (!from.is_cpu() || !from.is_contiguous()) return all_finite(to.copy_(from));
  const at::Tensor source = from.view({-1}), target = to.view({-1});
  bool finite = true;
  for (int64_t first = 0; first < source.numel(); first += kPiece) {
    at::Tensor piece = target.slice(0, first, first + kPiece);
    finite = all_finite(piece.copy_(source.slice(0, first, first + kPiece))) && finite;
  }
  return finite;
}

}  // namespace

WrittenShard write_shard(const fs::path& staging, int64_t index, int64_t count,
                         const CheckpointShard& shard, const std::function<void()>& progress) {
  check_place(index, count);
  WrittenShard written{.index = index, .num_shards = count, .files = {}};
  const auto write = [&](const std::string& file, const TensorMap& tensors) {
    for (const auto& [tensor, unused] : tensors) {
      if (count > 1 || !parse_slice(tensor)) continue;
      fail_usage("'{}': the only shard of a checkpoint has whole tensors", tensor);
    }
    const std::string name = shard_name(file, index, count);
    written.files[name] = write_tensors(staging / name, tensors, {}, progress);
  };
  if (count == 1 || !shard.model.empty()) write(kModelFile, shard.model);
  if (!shard.optimizer.empty()) write(kOptimizerFile, shard.optimizer);
  return written;
}

void publish(StagedDirectory& staged, const std::vector<WrittenShard>& shards, const Json& config,
             const Json& state, const std::function<void()>& progress) {
  const Json full = with_format(config);
  if (shards.empty()) fail_usage("{}: no shard to publish", staged.path().string());
  Manifest manifest{.files = files_of(shards, staged.path(), progress)};
  if (shards.size() > 1) {
    for (const char* file : {kModelFile, kOptimizerFile}) {
      write_index(staged.path(), file, manifest);
      if (progress) progress();
    }
  }
  write_json(staged.path(), kStateFile, state, manifest);
  write_json(staged.path(), kConfigFile, full, manifest);
  // Without a final newline, so that any truncated manifest is invalid JSON.
  write_atomic(staged.path() / kManifestFile, to_json(manifest).dump(2));
  staged.commit();
}

void save_checkpoint(const fs::path& folder, const Checkpoint& checkpoint, const TensorMaker& make,
                     const std::function<void(uint64_t done, uint64_t total)>& progress) {
  with_format(checkpoint.config);  // Throws before anything large is written.
  StagedDirectory staged(folder);
  WrittenShard shard;
  if (make) {
    if (!checkpoint.optimizer.empty())
      fail_usage("a model that is written by a function has no optimizer");
    uint64_t done = 0, total = 0;
    for (const auto& [unused, shape] : checkpoint.model) total += shape.nbytes();
    const auto next = [&](const std::string& name) {
      if (progress) progress(done, total);
      at::Tensor tensor = make(name);
      done += tensor.nbytes();
      return tensor;
    };
    shard.files[kModelFile] =
        write_tensors(staged.path() / kModelFile, checkpoint.model, {}, {}, next);
    if (progress) progress(done, total);
  } else {
    shard = write_shard(staged.path(), 0, 1, {checkpoint.model, checkpoint.optimizer});
  }
  publish(staged, {shard}, checkpoint.config, checkpoint.state);
}

void save_distributed(const ProcessMesh* together, const fs::path& folder,
                      const CheckpointShard& shard, const Json& config, const Json& state) {
  if (together == nullptr) {
    return save_checkpoint(folder, {config, state, shard.model, shard.optimizer});
  }
  const ProcessMesh& processes = *together;
  // Where a disk does not answer, one process stands still and is alive.
  const auto exchange = [&](const std::string& text) {
    return processes.all_gather_text(text, std::chrono::seconds(processes.config().timeout));
  };
  const bool writes = processes.is_rank_zero() || !shard.model.empty() || !shard.optimizer.empty();
  std::optional<StagedDirectory> staged;
  if (processes.is_rank_zero()) staged.emplace(folder);
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
  const auto progress = [&] { processes.report_progress(); };
  const std::string written =
      writes ? to_text(write_shard(said[0], index, count, shard, progress)) : "";
  std::vector<WrittenShard> shards;
  for (const std::string& text : exchange(written)) {
    if (!text.empty()) shards.push_back(parse_written_shard(text));
  }
  if (staged) publish(*staged, shards, config, state, progress);
  exchange("");  // It is published.
}

std::string snapshot(const TensorMap& tensors, TensorMap& copy, bool checks_finite) {
  const at::NoGradGuard no_grad;
  std::string bad;
  std::erase_if(copy, [&](const auto& item) { return !tensors.contains(item.first); });
  for (const auto& [name, tensor] : tensors) {
    at::Tensor& own = copy[name];
    if (!tensor.defined() || tensor.layout() != at::kStrided) {
      own = tensor;  // Writing it says what is wrong with it.
      continue;
    }
    if (!takes(own, tensor)) own = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    if (!checks_finite) {
      own.copy_(tensor);
    } else if (!copy_finite(tensor, own)) {
      bad = name;
    }
  }
  return bad;
}

std::optional<SaveTimes> AsyncSave::start(CheckpointShard shard, Write write,
                                          const std::function<void()>& wait_first) {
  const Clock::time_point begin = Clock::now();
  if (wait_first) wait_first();
  const std::optional<SaveTimes> before = wait();
  times_ = {.wait = seconds_since(begin)};
  std::promise<bool> copied;
  copied_ = copied.get_future();
  // A task that is copied holds the promise by a pointer.
  task_.start([this, shard = std::move(shard), write = std::move(write),
               copied = std::make_shared<std::promise<bool>>(std::move(copied))] {
    try {
      copy(shard);
    } catch (...) {
      copied->set_value(false);
      throw;
    }
    copied->set_value(true);  // Training may have waited for the copy, so that came first.
    task_.lower_thread_priority();
    const Clock::time_point copied_at = Clock::now();
    write(copy_);
    write_ = seconds_since(copied_at);
  });
  return before;
}

void AsyncSave::copy(const CheckpointShard& shard) {
  const std::string bad = snapshot(shard.model, copy_.model, true);
  if (!bad.empty()) throw NonFiniteError(fmt::format("'{}' holds NaN or infinity", bad));
  snapshot(shard.optimizer, copy_.optimizer);
}

void AsyncSave::wait_for_copy() {
  if (!copied_.valid()) return;
  const Clock::time_point begin = Clock::now();
  const bool whole = copied_.get();
  times_.copy = seconds_since(begin);
  if (!whole) task_.wait();  // Throws what made it fail.
}

std::optional<SaveTimes> AsyncSave::poll() {
  return task_.poll() ? take_times() : std::nullopt;
}

std::optional<SaveTimes> AsyncSave::wait() {
  task_.wait();
  return take_times();
}

std::optional<SaveTimes> AsyncSave::take_times() {
  const std::optional<double> write = std::exchange(write_, std::nullopt);
  if (!write) return std::nullopt;
  times_.write = *write;
  return times_;
}

}  // namespace moesaic
