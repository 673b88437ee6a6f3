// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/views.h"

#include <ATen/ATen.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

/// Examples of another dataset: consecutive ones, or those of a list of indices.
class View final : public Dataset {
 public:
  /// `labels`: the new label of each class of the base; by default they stay as they are.
  View(DatasetInfo info, std::shared_ptr<const Dataset> base, int64_t first, int64_t count,
       std::vector<int64_t> labels = {})
      : Dataset(std::move(info)),
        base_(std::move(base)),
        first_(first),
        count_(count),
        labels_(std::move(labels)) {}
  View(DatasetInfo info, std::shared_ptr<const Dataset> base, std::vector<int64_t> indices,
       std::vector<int64_t> labels = {})
      : View(std::move(info), std::move(base), 0, std::ssize(indices), std::move(labels)) {
    indices_ = std::move(indices);
  }

  int64_t size() const override { return count_; }
  int64_t label(int64_t index) const override {
    const int64_t own = base_->label(at(index));
    return labels_.empty() ? own : labels_[static_cast<size_t>(own)];
  }
  int64_t group(int64_t index) const override { return base_->group(at(index)); }
  void targets(int64_t index, float* out) const override { base_->targets(at(index), out); }
  void oriented_image(int64_t index, std::optional<bool> applies_exif,
                      uint8_t* out) const override {
    base_->oriented_image(at(index), applies_exif, out);
  }
  Rectangle decode(int64_t index, const ChooseCrop& choose, const ReadOptions& options,
                   Bitmap& bitmap) const override {
    return base_->decode(at(index), choose, options, bitmap);
  }
  std::optional<EncodedImage> encoded(int64_t index) const override {
    return base_->encoded(at(index));
  }
  std::optional<ImageFile> file(int64_t index) const override { return base_->file(at(index)); }

  std::vector<int64_t> blocks() const override {
    std::vector<int64_t> cut;
    if (!indices_.empty()) return cut;
    int64_t begin = 0;
    for (const int64_t block : base_->blocks()) {
      const int64_t end = std::min(begin + block, first_ + count_);
      if (end > std::max(begin, first_)) cut.push_back(end - std::max(begin, first_));
      begin += block;
    }
    return cut;
  }

 private:
  /// Returns an example's index in the base. Throws Error (failure) if it does not exist.
  int64_t at(int64_t index) const {
    check_index(index);
    return indices_.empty() ? first_ + index : indices_[static_cast<size_t>(index)];
  }

  DatasetInputs make_inputs(int64_t first, int64_t count) const override {
    DatasetInputs inputs = indices_.empty() ? base_->generate(first_ + first, count)
                                            : base_->generate(0, base_->size());
    if (!indices_.empty()) {
      const auto begin = indices_.begin() + first;
      const at::Tensor rows = at::tensor(std::vector<int64_t>(begin, begin + count), at::kLong);
      for_each_tensor(inputs, [&](at::Tensor& tensor) { tensor = tensor.index_select(0, rows); });
    }
    if (!labels_.empty() && inputs.labels_N.defined()) {
      inputs.labels_N = at::tensor(labels_, at::kLong).index_select(0, inputs.labels_N);
    }
    return inputs;
  }

  std::shared_ptr<const Dataset> base_;
  int64_t first_, count_;
  std::vector<int64_t> labels_, indices_;
};

DatasetInfo renamed_info(const Dataset& base, std::string name, std::string description) {
  DatasetInfo info = base.info();
  info.name = std::move(name);
  info.description = std::move(description);
  return info;
}

std::string first_names(const std::vector<std::string>& names) {
  constexpr size_t kListed = 8;
  const auto shown = std::span(names).first(std::min(kListed, names.size()));
  return fmt::format("{}{}", fmt::join(shown, ", "), shown.size() < names.size() ? ", ..." : "");
}

/// Returns the held-out examples, the last ones of every class, or the others. Up to the end of
/// each class their number is its fraction of `held_out`, rounded, so that the rounding errors of
/// classes do not add up; but each split has at least one of a class that has two.
std::vector<int64_t> chosen_by_class(const Dataset& all, int64_t held_out, bool validation) {
  const int64_t count = all.size();
  const auto held_until = [&](int64_t end) {
    return std::llround(static_cast<double>(held_out) * static_cast<double>(end) /
                        static_cast<double>(count));
  };
  std::vector<int64_t> indices;
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    const int64_t label = all.label(begin);
    while (end < count && all.label(end) == label) ++end;
    // Of two examples of a class each split has one.
    const int64_t held = std::max<int64_t>(1, held_until(end) - held_until(begin));
    const int64_t boundary = std::max(begin + 1, end - held);
    const int64_t first = validation ? boundary : begin, last = validation ? end : boundary;
    for (int64_t i = first; i < last; ++i) indices.push_back(i);
  }
  return indices;
}

}  // namespace

std::optional<int64_t> known_label(const Dataset& dataset, int64_t index) try {
  return dataset.label(index);
} catch (const ImageError&) {
  return std::nullopt;
}

std::shared_ptr<const Dataset> make_class_subset(std::shared_ptr<const Dataset> base,
                                                 const std::vector<std::string>& keep_classes,
                                                 std::string name, std::string description) {
  const DatasetInfo& own = base->info();
  std::vector<int64_t> new_label(own.classes.size(), -1);
  for (size_t kept = 0; kept < keep_classes.size(); ++kept) {
    const auto found = std::find(own.classes.begin(), own.classes.end(), keep_classes[kept]);
    if (found == own.classes.end()) {
      fail_usage("dataset '{}': keep_classes: '{}' has no class '{}'; {}", name, own.name,
                 keep_classes[kept], did_you_mean(keep_classes[kept], own.classes));
    }
    int64_t& label = new_label[static_cast<size_t>(found - own.classes.begin())];
    if (label >= 0)
      fail_usage("dataset '{}': keep_classes names '{}' twice; leave one out", name, *found);
    label = static_cast<int64_t>(kept);
  }
  DatasetInfo info = renamed_info(*base, std::move(name), std::move(description));
  info.classes = keep_classes;
  info.is_endless = false;
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < base->size(); ++i) {
    const std::optional<int64_t> label = known_label(*base, i);
    if (label && new_label[static_cast<size_t>(*label)] >= 0) indices.push_back(i);
  }
  if (indices.empty()) {
    fail("dataset '{}': none of the {} images of '{}' has a class of 'keep_classes' ({})",
         info.name, base->size(), base->info().name, fmt::join(keep_classes, ", "));
  }
  return std::make_shared<View>(std::move(info), std::move(base), std::move(indices),
                                std::move(new_label));
}

std::shared_ptr<const Dataset> make_first_n(std::shared_ptr<const Dataset> base, int64_t count,
                                            std::string name, std::string description) {
  if (count > base->size()) {
    fail("dataset '{}': 'num_first_images' is {}, more than the {} images of '{}'", name, count,
         base->size(), base->info().name);
  }
  DatasetInfo info = renamed_info(*base, std::move(name), std::move(description));
  info.is_endless = false;
  return std::make_shared<View>(std::move(info), std::move(base), 0, count);
}

std::shared_ptr<const Dataset> make_renamed(std::shared_ptr<const Dataset> base, std::string name,
                                            std::string description) {
  DatasetInfo info = renamed_info(*base, std::move(name), std::move(description));
  const int64_t size = base->size();
  return std::make_shared<View>(std::move(info), std::move(base), 0, size);
}

std::shared_ptr<const Dataset> with_classes_of(std::shared_ptr<const Dataset> data,
                                               const std::vector<std::string>& outputs,
                                               std::string_view suggestion) {
  const DatasetInfo& own = data->info();
  if (outputs.empty() || own.classes.empty() || !own.has_class_names || own.classes == outputs) {
    return data;
  }
  constexpr int64_t kTwice = -1;
  std::unordered_map<std::string, int64_t> indices;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto [found, fresh] = indices.emplace(outputs[i], static_cast<int64_t>(i));
    if (!fresh) found->second = kTwice;
  }
  std::vector<int64_t> labels;
  const char* const stop = suggestion.empty() ? "" : "; ";
  for (const std::string& name : own.classes) {
    const auto found = indices.find(name);
    if (found == indices.end()) {
      fail_usage("'{}': the class {} is not a class of the network; {}{}{}", one_line(own.name),
                 printable(name),
                 nearest(name, outputs) ? as_statement(did_you_mean(name, outputs))
                                        : "the network has " + first_names(outputs),
                 stop, suggestion);
    }
    if (found->second == kTwice) {
      fail_usage("'{}': two outputs of the network have the name of the class {}{}{}",
                 one_line(own.name), printable(name), stop, suggestion);
    }
    labels.push_back(found->second);
  }
  DatasetInfo info = own;
  info.classes = outputs;
  const int64_t size = data->size();
  return std::make_shared<View>(std::move(info), std::move(data), 0, size, std::move(labels));
}

int64_t num_training_examples(int64_t count, double validation) {
  const double boundary = 100.0 - 100.0 * validation;
  return static_cast<int64_t>(std::nearbyint(boundary * static_cast<double>(count) / 100.0));
}

std::shared_ptr<const Dataset> hold_out(std::shared_ptr<const Dataset> all, double validation,
                                        const std::string& split, bool is_sorted_by_class) {
  if (all->is_endless()) {
    fail_usage("dataset '{}': endless data have no validation split; leave 'validation' out",
               all->info().name);
  }
  const bool held = split == "validation";
  const int64_t size = all->size(), train = num_training_examples(size, validation);
  std::vector<int64_t> indices;
  if (is_sorted_by_class) indices = chosen_by_class(*all, size - train, held);
  const int64_t count = is_sorted_by_class ? std::ssize(indices) : held ? size - train : train;
  if (count == 0) {
    fail("dataset '{}': of {} training examples a validation fraction of {} leaves none for '{}'",
         all->info().name, size, validation, split);
  }
  DatasetInfo info = all->info();
  info.split = split;
  if (is_sorted_by_class) {
    return std::make_shared<View>(std::move(info), std::move(all), std::move(indices));
  }
  return std::make_shared<View>(std::move(info), std::move(all), held ? train : 0, count);
}

std::shared_ptr<const Dataset> make_sample(std::shared_ptr<const Dataset> base, int64_t count,
                                           uint64_t seed) {
  DatasetInfo info = base->info();
  if (std::exchange(info.is_endless, false)) {
    return std::make_shared<View>(std::move(info), std::move(base), stream_offset(seed), count);
  }
  int64_t known = 0;  // Images of corrupt shards have lost their labels.
  std::vector<std::deque<int64_t>> by_class(info.classes.size());
  for (const int64_t index : permutation(base->size(), seed, stream_id("sample"))) {
    const std::optional<int64_t> label = known_label(*base, index);
    if (!label) continue;
    by_class[static_cast<size_t>(*label)].push_back(index);
    ++known;
  }
  if (count > known) fail("dataset '{}': {} samples are more than its {}", info.name, count, known);
  std::vector<int64_t> indices;
  for (size_t turn = 0; static_cast<int64_t>(indices.size()) < count; ++turn) {
    std::deque<int64_t>& left = by_class[turn % by_class.size()];
    if (left.empty()) continue;
    indices.push_back(left.front());
    left.pop_front();
  }
  return std::make_shared<View>(std::move(info), std::move(base), std::move(indices));
}

}  // namespace moesaic
