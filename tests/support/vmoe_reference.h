// SPDX-License-Identifier: Apache-2.0
// Cases that the reference implementation computed: networks, inputs and tensors.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <memory>

#include "moesaic/models/vmoe/vmoe.h"

namespace moesaic::testing {

/// Tensors of the reference by its names.
using Reference = std::map<std::string, at::Tensor>;

/// A configuration of the reference as one of this library.
nlohmann::ordered_json native_config(const nlohmann::ordered_json& case_config);

/// Views of native tensors (a network's parameters, or their gradients) under the reference's names
/// and in its shapes.
Reference as_reference(const std::map<std::string, at::Tensor>& native, const VMoEConfig& config);

/// One case: its network with its parameters.
class ReferenceCase {
 public:
  explicit ReferenceCase(const std::string& name);

  std::shared_ptr<VMoE> model(bool bfloat16 = false) const;
  /// "golden", "golden_bf16" or "golden_noisy".
  Reference tensors(const std::string& file) const;
  const nlohmann::ordered_json& config() const { return config_; }

 private:
  std::filesystem::path folder_;
  nlohmann::ordered_json config_;
};

}  // namespace moesaic::testing
