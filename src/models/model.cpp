// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/model.h"

#include <torch/torch.h>

namespace moesaic {

double layer_flops(const MoEBlock& block, int64_t tokens, const RowsPerToken& rows_per_token) {
  const nn::RouterOptions& options = block.layer->options();
  const auto found = rows_per_token.find(block.block);
  const double rows = found == rows_per_token.end()
                          ? nn::rows_per_token(options.rule, tokens, options.experts)
                          : found->second;
  const auto router = static_cast<double>(2 * options.width * options.experts);
  return static_cast<double>(tokens) * (router + rows * block.layer->experts->flops_per_row());
}

int64_t Model::parameter_count() const {
  int64_t count = 0;
  for (const auto& parameter : parameters()) count += parameter.numel();
  return count;
}

at::Device Model::device() const {
  return parameters().front().device();
}

}  // namespace moesaic
