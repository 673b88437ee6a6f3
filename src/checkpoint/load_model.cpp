// SPDX-License-Identifier: Apache-2.0
#include "manifest.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/models/registry.h"

namespace moesaic {

std::shared_ptr<Model> load_model(const std::filesystem::path& run_or_checkpoint) {
  const std::filesystem::path folder = resolve_checkpoint(run_or_checkpoint);
  const bool verified = folder != run_or_checkpoint;  // finding it in a run did that
  const Checkpoint checkpoint = load_checkpoint(folder, {.verify = !verified, .optimizer = false});
  // From the file rather than from `checkpoint`, for errors with line and column.
  const Document config = Document::from_file(folder / kConfigFile);
  std::shared_ptr<Model> model = build_model(config.root().at("model"), 0);
  load_state(*model, checkpoint.model, (folder / kModelFile).string());
  return model;
}

}  // namespace moesaic
