// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/save_together.h"

#include <chrono>
#include <optional>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/parallel/processes.h"

namespace moesaic {
namespace fs = std::filesystem;

void save_together(const Processes& processes, const fs::path& folder, const CheckpointPart& part,
                   const nlohmann::ordered_json& config, const nlohmann::ordered_json& state) {
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
    fail("process 0 saves to {}, this one to {}", without_staging(said[0]).string(), folder.string());
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
