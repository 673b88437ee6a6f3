// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/shares_batch.h"

#include "moesaic/parallel/processes.h"

namespace moesaic::nn {

std::shared_ptr<const Group> BatchShare::parts() const {
  if (!processes || !parted || processes->size() == 1) return nullptr;
  return {processes, &processes->world()};
}

void share_batches(torch::nn::Module& network, const BatchShare& share) {
  if (auto* const shares = dynamic_cast<SharesBatch*>(&network)) shares->share(share);
  for (const auto& module : network.modules(/*include_self=*/false)) {
    if (auto* const shares = dynamic_cast<SharesBatch*>(module.get())) shares->share(share);
  }
}

}  // namespace moesaic::nn
