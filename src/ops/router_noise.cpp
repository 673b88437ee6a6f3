// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/router_noise.h"

#include <torch/torch.h>

#include <cmath>

#include "check.h"
#include "moesaic/base/error.h"
#include "names.h"
#include "widened.h"

namespace moesaic {

std::vector<std::string> noise_kind_names() {
  return {"gaussian", "uniform"};
}
NoiseKind noise_kind_from_name(std::string_view name) {
  return ops::enum_from_name<NoiseKind>("router noise", name, noise_kind_names());
}

double gaussian_noise_std(const NoiseOptions& options, int64_t experts) {
  return options.scale / static_cast<double>(experts);
}

at::Tensor add_router_noise(const at::Tensor& logits_in_TE, const NoiseOptions& options,
                            const at::Generator& generator) {
  constexpr const char* kOp = "add_router_noise";
  const at::Tensor logits_TE = ops::widened(logits_in_TE);
  ops::check_logits(kOp, logits_TE);
  if (!(options.scale >= 0.0) || std::isinf(options.scale)) {
    fail("{}: scale must be 0 (no noise) or a positive number, found {}", kOp, options.scale);
  }
  if (!generator.defined()) fail("{}: noise needs a generator", kOp);
  if (!logits_TE.is_meta() && generator.device().type() != logits_TE.device().type()) {
    fail("{}: the generator must be on {}, found {}", kOp, logits_TE.device().str(),
         generator.device().str());
  }
  if (options.scale == 0.0) return logits_TE;
  const at::Tensor noise = at::empty(logits_TE.sizes(), logits_TE.options());
  if (options.kind == NoiseKind::gaussian) {
    noise.normal_(0.0, gaussian_noise_std(options, logits_TE.size(1)), generator);
  } else {
    noise.uniform_(0.0, 1.0, generator);
    if (options.scale != 1.0) noise.mul_(options.scale);
  }
  return logits_TE + noise;
}

}  // namespace moesaic
