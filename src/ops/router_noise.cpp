// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/router_noise.h"

#include <torch/torch.h>

#include <cmath>

#include "moesaic/ops/enum_names.h"

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

at::Tensor router_noise(int64_t tokens, int64_t experts, const at::TensorOptions& tensor,
                        const NoiseOptions& options, const at::Generator& generator) {
  constexpr const char* kOp = "router_noise";
  if (!(options.scale >= 0.0) || std::isinf(options.scale)) {
    fail("{}: scale must be 0 (no noise) or a positive number, found {}", kOp, options.scale);
  }
  if (!generator.defined()) fail("{}: noise needs a generator", kOp);
  const at::Device device = tensor.device();
  if (!device.is_meta() && generator.device().type() != device.type()) {
    fail("{}: the generator must be on {}, found {}", kOp, device.str(), generator.device().str());
  }
  at::Tensor noise_TE = at::empty({tokens, experts}, tensor.requires_grad(false));
  if (options.scale == 0.0) return noise_TE.zero_();
  if (options.kind == NoiseKind::gaussian) {
    return noise_TE.normal_(0.0, gaussian_noise_std(options, experts), generator);
  }
  noise_TE.uniform_(0.0, 1.0, generator);
  return options.scale == 1.0 ? noise_TE : noise_TE.mul_(options.scale);
}

}  // namespace moesaic
