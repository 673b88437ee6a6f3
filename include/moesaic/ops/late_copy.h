// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace moesaic {

/// Values of a device on their way to the host. The copy is one more work of the device's current
/// stream, for which nothing waits before take().
class LateCopy {
 public:
  /// Starts the copy. `values` must not change before take().
  explicit LateCopy(const at::Tensor& values);

  /// Waits until the values are here and returns them, on the CPU.
  at::Tensor take() const;

 private:
  at::Tensor host_;
  std::optional<c10::Event> event_;  ///< End of the copy; none where values were here already.
};

}  // namespace moesaic
