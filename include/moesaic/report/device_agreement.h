// SPDX-License-Identifier: Apache-2.0
// Whether a device computes what the CPU computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace moesaic {

/// A small computation to compare between devices.
struct DeviceCase {
  std::string name;
  double tolerance = 0;
  /// Those of cuda_features() to turn off where it disagrees, in this order.
  std::vector<std::string> cuda_features;
  /// Computes on a device, from the same inputs at every call; with `uses_float64` in float64 what
  /// does not decide about indices.
  std::function<std::vector<at::Tensor>(at::Device device, bool uses_float64)> run;
};

/// How far a device is from the CPU.
struct Agreement {
  std::string name;
  /// Largest difference of a tensor relative to its largest number, of indices the difference
  /// itself; infinite for NaN and other shapes.
  double difference = 0;
  double tolerance = 0;
  std::string error;  ///< Message of an exception; empty without one.
  /// Features turned off before the case agreed.
  std::vector<std::string> disabled_features;

  /// Returns whether the difference is within the tolerance.
  bool agrees() const { return error.empty() && difference <= tolerance; }
  /// Returns a line such as "differs by 0.3, at most 0.02".
  std::string text() const;
};

/// Runs a case on the device and, exactly, on the CPU.
Agreement compare_devices(const DeviceCase& item, at::Device device);

/// Compares every case in turn. Where one disagrees, its features are turned off for this process
/// (MOESAIC_CUDA_OFF) until it agrees, and on again if that does not help; later cases run with
/// what is off.
std::vector<Agreement> disable_failing_features(const std::vector<DeviceCase>& cases,
                                                at::Device device);

/// Returns the cases of all operators that have a kernel for a GPU, in every type, and a training
/// step of the network of each recipe models/*/recipes/smoke.json.
std::vector<DeviceCase> device_cases();

}  // namespace moesaic
