// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/task.h"

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "tasks/tasks.h"

namespace moesaic {

const Task& task_of(const DatasetInfo& data) {
  return data.targets.empty() ? classification_task() : regression_task();
}

MetricInfo metric_of(const DatasetInfo& data, const std::string& name) {
  const std::vector<MetricInfo> known = task_of(data).metrics(data);
  if (name.empty()) return known.front();
  std::vector<std::string> names;
  for (const MetricInfo& metric : known) {
    if (metric.name == name) return metric;
    names.push_back(metric.name);
  }
  fail_usage("unknown metric '{}'; {}", name, did_you_mean(name, names));
}

nlohmann::ordered_json to_json(const Metrics& metrics) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : metrics) {
    const size_t dot = name.find('.');
    if (dot == std::string::npos) {
      json[name] = value;
    } else {
      json[name.substr(0, dot)][name.substr(dot + 1)] = value;
    }
  }
  return json;
}

}  // namespace moesaic
