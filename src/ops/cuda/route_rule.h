// SPDX-License-Identifier: Apache-2.0
// Starts the kernels that turn a rule of kernels/route_rule.h into a routing.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>

#include "../kernels/route_rule.h"
#include "kept_scope.h"
#include "tensor_data.h"

namespace moesaic::ops {

template <class Scalar, class Rule, class Device>
void route_by_rule(const at::Tensor& logits, int64_t slots, const Rule& rule,
                   const kernels::RoutingArrays<Scalar>& arrays, const Device& device) {
  const Segments segments(TokenGroups(logits.size(0), 0), segment_length(slots));
  const int64_t count = segments.count();
  const auto experts = static_cast<int32_t>(slots);
  const int threads = static_cast<int>(segments.length);
  const auto index = logits.options().dtype(at::kInt);
  const at::Tensor before = at::empty({slots * count}, index);
  const at::Tensor totals = at::empty({slots}, index);
  const kernels::CountRule<Rule> counting{segments, count, experts, rule, out<int32_t>(before)};
  device.template start<256>(counting, count, threads, counting.shared_bytes(threads));
  const kernels::ScanRows scan{count, out<int32_t>(before), out<int32_t>(totals)};
  const int scanning = scan_threads(count);
  device.template start<kernels::kScanThreads>(scan, slots, scanning, scan.shared_bytes(scanning));
  const kernels::PlaceRule<Scalar, Rule> place{
      segments, {in<int32_t>(before), in<int32_t>(totals), count, experts}, rule, arrays};
  device.template start<256>(place, std::max<int64_t>(count, 1), threads,
                             place.shared_bytes(threads));
}

}  // namespace moesaic::ops
