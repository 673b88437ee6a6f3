// SPDX-License-Identifier: Apache-2.0
#include "built_in.h"

namespace moesaic {

Probe evaluation_probe(const std::string& split, const std::string& metric) {
  const std::string name = split + "_" + metric;
  const bool percent = metric.ends_with("accuracy");
  return {.meaning = metric + " on the " + split + " split",
          .metrics =
              [=](const Model&, const Dataset&) {
                return std::vector<Metric>{
                    {name, split + " " + metric + (percent ? ", %" : ""), percent ? 2 : 4}};
              },
          .measure =
              [=](ProbeSubject& subject, Measurement& measurement) {
                const Evaluation& on = split == "test" ? subject.on_test() : subject.on_train();
                measurement.numbers[name] = on.metric(metric);
              }};
}

}  // namespace moesaic
