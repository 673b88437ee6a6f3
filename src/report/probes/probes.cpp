// SPDX-License-Identifier: Apache-2.0
#include "built_in.h"

namespace moesaic {

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
