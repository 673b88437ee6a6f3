// SPDX-License-Identifier: Apache-2.0
#include "built_in.h"

namespace moesaic {
namespace {

/// Returns a probe of one number that every network has.
Probe number_probe(std::string name, std::string label, std::string meaning,
                   std::function<double(ProbeSubject&)> measure) {
  return {
      .meaning = std::move(meaning),
      .metrics =
          [=](const Model&, const DataSplits&) {
            return std::vector<Metric>{{name, label, 0}};
          },
      .measure = [=](ProbeSubject& subject,
                     Measurement& measurement) { measurement.numbers[name] = measure(subject); }};
}

}  // namespace

Probe steps_probe() {
  return number_probe("steps", "updates", "number of updates that were made",
                      [](ProbeSubject& subject) { return static_cast<double>(subject.step()); });
}

Probe parameters_probe() {
  return number_probe(
      "parameters", "parameters", "number of parameters that the network has",
      [](ProbeSubject& subject) { return static_cast<double>(subject.model().parameter_count()); });
}

Probe flops_probe() {
  return number_probe("flops", "FLOPs an image", "FLOPs of one image, by the test data's routing",
                      [](ProbeSubject& subject) {
                        return subject.model().flops_per_image(subject.on("test").rows_per_token());
                      });
}

}  // namespace moesaic
