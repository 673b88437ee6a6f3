// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/device_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "moesaic/ops/device.h"

namespace moesaic {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double difference_of(const at::Tensor& found_in, const at::Tensor& wanted_in) {
  if (found_in.sizes() != wanted_in.sizes()) return kInfinity;
  if (wanted_in.numel() == 0) return 0;
  const at::Tensor found = found_in.detach().to(at::kCPU, at::kDouble);
  const at::Tensor wanted = wanted_in.detach().to(at::kCPU, at::kDouble);
  const double apart = (found - wanted).abs().max().item<double>();
  if (!(apart < kInfinity)) return kInfinity;  // NaN, too
  if (!wanted_in.is_floating_point() || apart == 0) return apart;
  return apart / std::max(wanted.abs().max().item<double>(), std::numeric_limits<double>::min());
}

void turn_off(const std::vector<std::string>& parts) {
  ::setenv("MOESAIC_CUDA_OFF", fmt::format("{}", fmt::join(parts, ",")).c_str(), 1);
}

/// Turns parts off until the case agrees.
Agreement settle(const DeviceCase& item, at::Device device) {
  Agreement first = compare_devices(item, device);
  const std::vector<std::string> before = cuda_parts_off();
  std::vector<std::string> off = before, added;
  for (const std::string& part : item.parts) {
    if (first.agrees()) break;
    if (std::ranges::count(before, part) > 0) continue;
    off.push_back(part);
    added.push_back(part);
    turn_off(off);
    if (!compare_devices(item, device).agrees()) continue;
    first.off = added;
    return first;
  }
  turn_off(before);
  return first;
}

}  // namespace

std::string Agreement::text() const {
  if (!error.empty()) return error;
  return fmt::format("differs by {:.2g}, at most {:.2g}", difference, tolerance);
}

Agreement compare_devices(const DeviceCase& item, at::Device device) {
  Agreement result{.name = item.name, .tolerance = item.tolerance};
  try {
    const auto wanted = item.run(at::kCPU, /*exact=*/true);
    const auto found = item.run(device, /*exact=*/false);
    if (found.size() != wanted.size()) result.difference = kInfinity;
    for (size_t i = 0; i < std::min(found.size(), wanted.size()); ++i) {
      result.difference = std::max(result.difference, difference_of(found[i], wanted[i]));
    }
  } catch (const std::exception& error) {
    const std::string message = error.what();
    result.error = message.substr(0, message.find('\n'));
  }
  return result;
}

std::vector<Agreement> settle_devices(const std::vector<DeviceCase>& cases, at::Device device) {
  std::vector<Agreement> results;
  for (const DeviceCase& item : cases) results.push_back(settle(item, device));
  return results;
}

}  // namespace moesaic
