// SPDX-License-Identifier: Apache-2.0
#include "built_in.h"

namespace moesaic {

Registry<Probe>& probes() {
  static Registry<Probe> registry("probe",
                                  {{"alignment", alignment_probe()},
                                   {"dispatch", dispatch_probe()},
                                   {"entropy", entropy_probe()},
                                   {"flops", flops_probe()},
                                   {"load", load_probe()},
                                   {"parameters", parameters_probe()},
                                   {"steps", steps_probe()},
                                   {"test_accuracy", evaluation_probe("test", "accuracy")},
                                   {"test_loss", evaluation_probe("test", "loss")},
                                   {"train_accuracy", evaluation_probe("train", "accuracy")},
                                   {"train_loss", evaluation_probe("train", "loss")}});
  return registry;
}

}  // namespace moesaic
