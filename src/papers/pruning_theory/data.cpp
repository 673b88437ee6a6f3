// SPDX-License-Identifier: Apache-2.0
// Data of the pruning paper's theory, generated: an endless training split and a test split.
#include <ATen/ATen.h>

#include "moesaic/base/random.h"
#include "moesaic/ops/normals.h"
#include "parts.h"

namespace moesaic {

DatasetInputs pattern_tokens(const PatternTokensConfig& config, const std::string& split,
                             int64_t first, int64_t count) {
  const SampleRng random(static_cast<uint64_t>(config.seed), stream_id("pattern_tokens." + split));
  const auto uniform = [&](int64_t block) {
    at::Tensor numbers = at::empty({count}, at::kFloat);
    random.uniforms(first, count, block, numbers.mutable_data_ptr<float>());
    return numbers;
  };
  const auto below = [&](int64_t block, int64_t bound) {
    return (uniform(block) * static_cast<double>(bound))
        .floor_()
        .clamp_max_(static_cast<double>(bound - 1));
  };
  const int64_t n = config.num_tokens;
  at::Tensor tokens_nN = at::empty({n, count}, at::kFloat);
  for (int64_t j = 0; j < n; ++j) tokens_nN[j].copy_(below(j, config.num_patterns - 2) + 2);
  const at::Tensor label = below(n, 2), place = below(n + 1, n).to(at::kLong);
  tokens_nN.scatter_(0, place.unsqueeze(0), label.unsqueeze(0));
  return {tokens_nN.t().contiguous().unsqueeze(1).unsqueeze(1), label.to(at::kLong)};
}

MakeInputs pattern_inputs(const PatternTokensConfig& config, DatasetInfo& info) {
  info.classes = {"with o1", "with o2"};
  info.directions = {{"pattern", at::eye(config.num_patterns)}};
  return [config, split = info.split](int64_t first, int64_t count) {
    return pattern_tokens(config, split, first, count);
  };
}

}  // namespace moesaic
