// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/shares_batch.h"

#include "moesaic/parallel/processes.h"

namespace moesaic::nn {

std::shared_ptr<const Group> BatchShare::parts() const {
  if (!processes || !parted) return nullptr;
  const Group& group = of_shared_experts ? processes->replicas() : processes->world();
  return group.size() == 1 ? nullptr : std::shared_ptr<const Group>(processes, &group);
}

void share_batches(torch::nn::Module& network, const BatchShare& share) {
  if (auto* const shares = dynamic_cast<SharesBatch*>(&network)) shares->share(share);
  for (const auto& module : network.modules(/*include_self=*/false)) {
    if (auto* const shares = dynamic_cast<SharesBatch*>(module.get())) shares->share(share);
  }
}

}  // namespace moesaic::nn
