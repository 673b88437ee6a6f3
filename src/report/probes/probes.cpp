// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "built_in.h"

namespace moesaic {

MeasuredTable measured_table(std::vector<std::string> rows, std::vector<std::string> columns,
                             const at::Tensor& numbers_RC) {
  const at::Tensor numbers = numbers_RC.to(at::kCPU, at::kDouble).contiguous();
  MeasuredTable table{std::move(rows), std::move(columns), {}};
  const auto* at = numbers.const_data_ptr<double>();
  for (int64_t r = 0; r < numbers.size(0); ++r, at += numbers.size(1)) {
    table.values.emplace_back(at, at + numbers.size(1));
  }
  return table;
}

Registry<Probe>& probes() {
  static Registry<Probe> registry = [] {
    Registry<Probe> made("probe", {{"alignment", alignment_probe()},
                                   {"dispatch", dispatch_probe()},
                                   {"entropy", entropy_probe()},
                                   {"flops", flops_probe()},
                                   {"load", load_probe()},
                                   {"parameters", parameters_probe()},
                                   {"relative_error", relative_error_probe()},
                                   {"steps", steps_probe()},
                                   {"success", success_probe()}});
    for (const std::string split : {"train", "validation", "test"}) {
      for (const std::string metric : {"accuracy", "loss"}) {
        made.add(split + "_" + metric, evaluation_probe(split, metric));
      }
    }
    return made;
  }();
  return registry;
}

}  // namespace moesaic
