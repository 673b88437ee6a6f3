// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/shares_batch.h"

namespace moesaic::nn {

void share_batches(const torch::nn::Module& network, const BatchShare& share) {
  for (const auto& module : network.modules(/*include_self=*/false)) {
    if (auto* const shares = dynamic_cast<SharesBatch*>(module.get())) shares->share(share);
  }
}

}  // namespace moesaic::nn
