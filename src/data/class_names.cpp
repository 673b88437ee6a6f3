// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/class_names.h"

#include <ATen/ATen.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <unordered_map>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/text.h"
#include "subset.h"

namespace moesaic {
namespace {

/// All examples of another dataset under other labels.
class Relabelled final : public Renamed {
 public:
  Relabelled(DatasetInfo info, std::shared_ptr<const Dataset> base, std::vector<int64_t> labels)
      : Renamed(std::move(info), std::move(base)), labels_(std::move(labels)) {}

  int64_t label(int64_t index) const override {
    return labels_[static_cast<size_t>(Renamed::label(index))];
  }
  DatasetInputs inputs() const override { return relabelled(Renamed::inputs()); }
  DatasetInputs generate(int64_t first, int64_t count) const override {
    return relabelled(Renamed::generate(first, count));
  }

 private:
  DatasetInputs relabelled(DatasetInputs inputs) const {
    if (!inputs.labels_N.defined()) return inputs;
    inputs.labels_N = at::tensor(labels_, at::kLong).index_select(0, inputs.labels_N);
    return inputs;
  }

  std::vector<int64_t> labels_;  ///< By the base's.
};

/// Returns the first few names.
std::string first_names(const std::vector<std::string>& names) {
  constexpr size_t kListed = 8;
  const auto shown = std::span(names).first(std::min(kListed, names.size()));
  return fmt::format("{}{}", fmt::join(shown, ", "), shown.size() < names.size() ? ", ..." : "");
}

[[noreturn]] void fail_unknown(const std::string& data, const std::string& name,
                               const std::vector<std::string>& outputs, std::string_view way_out) {
  const std::string meant =
      nearest(name, outputs) ? did_you_mean(name, outputs) : "it has " + first_names(outputs);
  fail_usage("'{}' has a class {}, which the network does not have; {}{}{}", one_line(data),
             printable(name), meant, way_out.empty() ? "" : "; ", way_out);
}

}  // namespace

std::shared_ptr<const Dataset> with_classes_of(std::shared_ptr<const Dataset> data,
                                               const std::vector<std::string>& outputs,
                                               std::string_view way_out) {
  const DatasetInfo& own = data->info();
  if (outputs.empty() || own.classes.empty() || !own.classes_named || own.classes == outputs) {
    return data;
  }
  constexpr int64_t kTwice = -1;
  std::unordered_map<std::string, int64_t> numbers;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto [found, fresh] = numbers.emplace(outputs[i], static_cast<int64_t>(i));
    if (!fresh) found->second = kTwice;
  }
  std::vector<int64_t> labels;
  for (const std::string& name : own.classes) {
    const auto found = numbers.find(name);
    if (found == numbers.end()) fail_unknown(own.name, name, outputs, way_out);
    if (found->second == kTwice) {
      fail_usage("'{}' has a class {}, as two outputs of the network are called{}{}",
                 one_line(own.name), printable(name), way_out.empty() ? "" : "; ", way_out);
    }
    labels.push_back(found->second);
  }
  DatasetInfo info = own;
  info.classes = outputs;
  return std::make_shared<Relabelled>(std::move(info), std::move(data), std::move(labels));
}

}  // namespace moesaic
