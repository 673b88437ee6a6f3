// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/patch_sgd.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cpu/patch_rows.h"
#include "moesaic/base/error.h"
#include "moesaic/ops/route_expert_choice.h"

namespace moesaic {
namespace {

using ops::EntriesByRow;
using ops::kPatchLanes;
using ops::PatchEntries;
using ops::RowSize;

void check_tensor(const at::Tensor& tensor, at::ScalarType type, at::IntArrayRef shape,
                  const char* what) {
  const bool fits = tensor.defined() && tensor.is_cpu() && tensor.scalar_type() == type &&
                    tensor.is_contiguous() && tensor.sizes() == shape;
  if (!fits) {
    fail("patch_sgd: {} must be {} {} on the CPU, contiguous, found {}", what, c10::toString(type),
         c10::str(shape),
         tensor.defined() ? c10::str(c10::toString(tensor.scalar_type()), " ", tensor.sizes())
                          : std::string("none"));
  }
}

}  // namespace

/// Groups of patches that are multiplied with the same columns of the weights: all patches of an
/// example, or those that were routed to an expert. Group g of example i has number i * groups + g.
struct PatchExamples::Prepared {
  struct Entries {
    std::vector<uint16_t> index;
    std::vector<float> value;

    void add(int64_t at, float number) {
      index.push_back(static_cast<uint16_t>(at));
      value.push_back(number);
    }
    int64_t size() const { return static_cast<int64_t>(value.size()); }
    PatchEntries from(int64_t begin) const {
      return PatchEntries{index.data(), value.data()}.from(begin);
    }
  };

  int64_t width = 0, groups = 1, patches = 0;  ///< `patches` of a group.
  bool routed = false;
  std::vector<int64_t> label;
  Entries by_patch, by_row;
  std::vector<int64_t> patch_begin;  ///< In by_patch, of every patch of every group, and the end.
  std::vector<int32_t> rows, row_begin;  ///< Rows with entries, and where in the group's entries.
  std::vector<int64_t> group_rows;       ///< In `rows`, of every group, and the end.

  void add_group(const float* x_nd, const int64_t* chosen);

  PatchEntries entries(int64_t patch, int64_t& count) const {
    const auto p = static_cast<size_t>(patch);
    count = patch_begin[p + 1] - patch_begin[p];
    return by_patch.from(patch_begin[p]);
  }
  EntriesByRow rows_of(int64_t group) const {
    const auto g = static_cast<size_t>(group);
    // Every group before this one has an end in row_begin beside its rows.
    return {rows.data() + group_rows[g], row_begin.data() + group_rows[g] + group,
            group_rows[g + 1] - group_rows[g],
            by_row.from(patch_begin[static_cast<size_t>(group * patches)])};
  }
};

void PatchExamples::Prepared::add_group(const float* x_nd, const int64_t* chosen) {
  std::vector<const float*> patch;
  for (int64_t j = 0; j < patches; ++j) patch.push_back(x_nd + chosen[j] * width);
  for (const float* values : patch) {
    for (int64_t p = 0; p < width; ++p) {
      if (values[p] != 0.0F) by_patch.add(p, values[p]);
    }
    patch_begin.push_back(by_patch.size());
  }
  std::vector<int64_t> filled(static_cast<size_t>(width), 0);
  for (const float* values : patch) {
    for (int64_t p = 0; p < width; ++p) filled[static_cast<size_t>(p)] += values[p] != 0.0F ? 1 : 0;
  }
  // Rows of as many entries follow each other, so that processors foresee how many come.
  const int64_t first = by_row.size();
  for (int64_t count = patches; count > 0; --count) {
    for (int64_t p = 0; p < width; ++p) {
      if (filled[static_cast<size_t>(p)] != count) continue;
      rows.push_back(static_cast<int32_t>(p));
      row_begin.push_back(static_cast<int32_t>(by_row.size() - first));
      for (int64_t j = 0; j < patches; ++j) {
        const float value = patch[static_cast<size_t>(j)][p];
        if (value != 0.0F) by_row.add(j, value);
      }
    }
  }
  row_begin.push_back(static_cast<int32_t>(by_row.size() - first));
  group_rows.push_back(static_cast<int64_t>(rows.size()));
}

PatchExamples::PatchExamples(const at::Tensor& x_Nnd, const at::Tensor& label_N,
                             const at::Tensor& routed_NKl)
    : prepared_(std::make_unique<Prepared>()) {
  if (x_Nnd.dim() != 3)
    fail("patch_sgd: examples must be [N, n, d], found {}", c10::str(x_Nnd.sizes()));
  const int64_t examples = x_Nnd.size(0), patches = x_Nnd.size(1), width = x_Nnd.size(2);
  check_tensor(x_Nnd, at::kFloat, {examples, patches, width}, "examples");
  check_tensor(label_N, at::kLong, {examples}, "labels");
  constexpr int64_t kMost = std::numeric_limits<uint16_t>::max();
  if (patches > kMost || width > kMost || patches * width > std::numeric_limits<int32_t>::max()) {
    fail("patch_sgd: {} patches of {} numbers are too many", patches, width);
  }
  Prepared& made = *prepared_;
  made.width = width;
  made.routed = routed_NKl.defined();
  made.label.assign(label_N.const_data_ptr<int64_t>(),
                    label_N.const_data_ptr<int64_t>() + examples);
  std::vector<int64_t> every(static_cast<size_t>(patches));
  std::iota(every.begin(), every.end(), 0);
  if (made.routed) {
    if (routed_NKl.dim() != 3) fail("patch_sgd: routes must be [N, K, l]");
    made.groups = routed_NKl.size(1);
    check_tensor(routed_NKl, at::kLong, {examples, made.groups, routed_NKl.size(2)}, "routes");
    const bool fits = routed_NKl.numel() > 0 && routed_NKl.min().item<int64_t>() >= 0 &&
                      routed_NKl.max().item<int64_t>() < patches;
    if (!fits) fail("patch_sgd: a route is to no patch of {}", patches);
  }
  made.patches = made.routed ? routed_NKl.size(2) : patches;
  made.patch_begin = {0};
  made.group_rows = {0};
  for (int64_t i = 0; i < examples; ++i) {
    const float* const x = x_Nnd.const_data_ptr<float>() + i * patches * width;
    for (int64_t g = 0; g < made.groups; ++g) {
      const int64_t group = i * made.groups + g;
      made.add_group(x, made.routed ? routed_NKl.const_data_ptr<int64_t>() + group * made.patches
                                    : every.data());
    }
  }
}

PatchExamples::~PatchExamples() = default;
PatchExamples::PatchExamples(PatchExamples&&) noexcept = default;
PatchExamples& PatchExamples::operator=(PatchExamples&&) noexcept = default;

int64_t PatchExamples::size() const {
  return static_cast<int64_t>(prepared_->label.size());
}
int64_t PatchExamples::width() const {
  return prepared_->width;
}

at::Tensor select_patches(const at::Tensor& x_Nnd, const at::Tensor& router_Kd, int64_t selected) {
  const int64_t patches = x_Nnd.size(1), experts = router_Kd.size(0);
  const at::Tensor logits_TK = x_Nnd.flatten(0, 1).mm(router_Kd.t());
  const Routing routing = route_expert_choice(
      logits_TK, {.rows = selected, .group_size = patches, .gate = ExpertGate::one});
  const int64_t examples = x_Nnd.size(0);
  // Rows of an expert are in the order of tokens: example by example.
  return routing.token.to(at::kLong)
      .remainder(patches)
      .view({experts, examples, selected})
      .transpose(0, 1)
      .contiguous();
}

namespace {

/// The weights as rows of columns for each number of a patch: experts side by side, then routers.
/// Where examples are routed each expert begins a block of its own.
class Columns {
 public:
  Columns(PatchWeights& weights, bool routed)
      : weights_(weights),
        experts_(weights.neurons_Kdh.size(0)),
        width_(weights.neurons_Kdh.size(1)),
        hidden_(weights.neurons_Kdh.size(2)) {
    const auto whole = [](int64_t columns) {
      return (columns + kPatchLanes - 1) / kPatchLanes * kPatchLanes;
    };
    apart_ = routed ? whole(hidden_) : hidden_;
    const int64_t gates = weights.router_Kd.defined() ? experts_ : 0;
    stride_ = whole(experts_ * apart_ + gates);
    rows_ = at::zeros({width_, stride_}, at::kFloat);
    view().copy_(weights.neurons_Kdh.transpose(0, 1));
    if (gates > 0) router_view().copy_(weights.router_Kd.t());
  }

  void write_back() {
    weights_.neurons_Kdh.copy_(view().transpose(0, 1));
    if (weights_.router_Kd.defined()) weights_.router_Kd.copy_(router_view().t());
  }

  float* rows() { return rows_.mutable_data_ptr<float>(); }
  int64_t stride() const { return stride_; }
  int64_t of_expert(int64_t expert) const { return expert * apart_; }
  int64_t of_router(int64_t expert) const { return experts_ * apart_ + expert; }

 private:
  at::Tensor view() {
    return rows_.narrow(1, 0, experts_ * apart_)
        .view({width_, experts_, apart_})
        .narrow(2, 0, hidden_);
  }
  at::Tensor router_view() { return rows_.narrow(1, experts_ * apart_, experts_); }

  PatchWeights& weights_;
  int64_t experts_, width_, hidden_, apart_ = 0, stride_ = 0;
  at::Tensor rows_;
};

/// A patch that an expert got, by its place in the group.
struct Routed {
  int64_t patch;
  double gate;
};

/// Makes steps on batches of examples.
class Stepper {
 public:
  Stepper(PatchWeights& weights, const PatchExamples::Prepared& examples,
          const PatchSgdOptions& options)
      : examples_(examples),
        options_(options),
        experts_(weights.neurons_Kdh.size(0)),
        hidden_(weights.neurons_Kdh.size(2)),
        outputs_(weights.outputs_Kho.size(2)),
        gated_(weights.router_Kd.defined()),
        columns_(weights, examples.routed),
        size_{columns_.stride(),
              (examples.routed ? columns_.of_expert(1) : columns_.stride()) / kPatchLanes} {
    const at::Tensor by_output = weights.outputs_Kho.transpose(1, 2).contiguous();
    output_.assign(by_output.const_data_ptr<float>(),
                   by_output.const_data_ptr<float>() + by_output.numel());
    selected_ = gated_ ? options.selected : examples.patches;
    pull_.resize(static_cast<size_t>(hidden_));
    outputs_of_.resize(static_cast<size_t>(experts_ * selected_ * outputs_));
    routed_.resize(static_cast<size_t>(experts_ * selected_));
    for (size_t i = 0; i < routed_.size(); ++i) {
      routed_[i] = {static_cast<int64_t>(i) % selected_, 1.0};
    }
    f_.resize(static_cast<size_t>(outputs_));
    slope_ = f_;
  }

  void step(const std::vector<int64_t>& batch, PatchSgdSteps& sums) {
    const int64_t stride = columns_.stride();
    const int64_t of_example = examples_.groups * examples_.patches * stride;
    const auto count = static_cast<int64_t>(batch.size());
    if (z_.numel() < count * of_example) {
      z_ = at::empty({count * of_example}, at::kFloat);
      step_ = at::empty({count * of_example}, at::kFloat);
    }
    step_.narrow(0, 0, count * of_example).zero_();
    const double each = 1.0 / static_cast<double>(count);
    for (int64_t b = 0; b < count; ++b) {
      float* const z = z_.mutable_data_ptr<float>() + b * of_example;
      forward(batch[static_cast<size_t>(b)], z);
      const auto [loss, right] = losses(batch[static_cast<size_t>(b)]);
      sums.loss += each * loss;
      sums.accuracy += right ? each : 0.0;
      for (double& slope : slope_) slope *= each / options_.divisor;
      backward(z, step_.mutable_data_ptr<float>() + b * of_example);
    }
    // Every gradient is that of the weights before the step.
    for (int64_t b = 0; b < count; ++b) {
      for (int64_t g = 0; g < examples_.groups; ++g) {
        const float* const steps =
            step_.const_data_ptr<float>() + b * of_example + g * examples_.patches * stride;
        const EntriesByRow entries =
            examples_.rows_of(batch[static_cast<size_t>(b)] * examples_.groups + g);
        ops::add_to_rows(entries, steps, size_, columns_.rows() + first_column(g));
      }
    }
  }

  void write_back() { columns_.write_back(); }

 private:
  int64_t first_column(int64_t group) const {
    return examples_.routed ? columns_.of_expert(group) : 0;
  }
  /// Returns an expert's columns of a patch that it got, in what `all` holds of an example.
  float* columns_of(float* all, int64_t expert, int64_t patch) const {
    if (!examples_.routed) return all + patch * columns_.stride() + columns_.of_expert(expert);
    return all + (expert * examples_.patches + patch) * columns_.stride();
  }
  Routed* routed(int64_t expert) { return routed_.data() + expert * selected_; }
  double* outputs_of(int64_t expert, int64_t place) {
    return outputs_of_.data() + (expert * selected_ + place) * outputs_;
  }

  void forward(int64_t example, float* z) {
    const int64_t stride = columns_.stride();
    for (int64_t g = 0; g < examples_.groups; ++g) {
      const int64_t first = (example * examples_.groups + g) * examples_.patches;
      for (int64_t j = 0; j < examples_.patches; ++j) {
        int64_t count = 0;
        const PatchEntries entries = examples_.entries(first + j, count);
        ops::patch_products(entries, count, columns_.rows() + first_column(g), size_,
                            z + (g * examples_.patches + j) * stride);
      }
    }
    std::fill(f_.begin(), f_.end(), 0.0);
    for (int64_t s = 0; s < experts_; ++s) {
      if (gated_) select(s, z);
      for (int64_t i = 0; i < selected_; ++i) {
        const Routed& at = routed(s)[i];
        double* const output = outputs_of(s, i);
        for (int64_t o = 0; o < outputs_; ++o) {
          output[o] = ops::relu_product(columns_of(z, s, at.patch), weights_of(s, o), hidden_);
          f_[static_cast<size_t>(o)] += at.gate * output[o] / options_.divisor;
        }
      }
    }
  }

  /// Selects the patches of the largest routing values, and gates them by a softmax (eq. 4).
  void select(int64_t expert, const float* z) {
    Routed* const best = routed(expert);  // Ranked, with routing values in place of gates.
    const float* value = z + columns_.of_router(expert);
    for (int64_t j = 0; j < examples_.patches; ++j, value += columns_.stride()) {
      int64_t place = std::min(j, selected_);
      while (place > 0 && best[place - 1].gate < static_cast<double>(*value)) --place;
      if (place == selected_) continue;
      const int64_t last = std::min(j, selected_ - 1);
      for (int64_t i = last; i > place; --i) best[i] = best[i - 1];
      best[place] = {j, static_cast<double>(*value)};
    }
    const double largest = best[0].gate;
    double sum = 0.0;
    for (int64_t i = 0; i < selected_; ++i) {
      best[i].gate = std::exp(best[i].gate - largest);
      sum += best[i].gate;
    }
    for (int64_t i = 0; i < selected_; ++i) best[i].gate /= sum;
  }

  struct Loss {
    double value;
    bool right;
  };
  /// Computes the loss of an example, and its derivatives `slope_` by f.
  Loss losses(int64_t example) {
    const auto label = static_cast<size_t>(examples_.label[static_cast<size_t>(example)]);
    if (outputs_ == 1) {
      const double y = label == 0 ? 1.0 : -1.0, margin = y * f_[0];
      slope_[0] = -y / (1.0 + std::exp(margin));
      const double loss =
          margin > 0 ? std::log1p(std::exp(-margin)) : std::log1p(std::exp(margin)) - margin;
      return {loss, margin > 0.0};
    }
    const auto best = std::max_element(f_.begin(), f_.end());
    const double largest = *best;
    double sum = 0.0;
    for (const double f : f_) sum += std::exp(f - largest);
    for (size_t o = 0; o < f_.size(); ++o) slope_[o] = std::exp(f_[o] - largest) / sum;
    slope_[label] -= 1.0;
    return {std::log(sum) + largest - f_[label], best - f_.begin() == static_cast<int64_t>(label)};
  }

  /// Writes what a step adds to the weights, divided by the patch's numbers.
  void backward(float* z, float* step) {
    for (int64_t s = 0; s < experts_; ++s) {
      std::fill(pull_.begin(), pull_.end(), 0.0F);
      for (int64_t o = 0; o < outputs_; ++o) {
        const auto scale = static_cast<float>(-slope_[static_cast<size_t>(o)]);
        const float* const a = weights_of(s, o);
        for (int64_t r = 0; r < hidden_; ++r) pull_[static_cast<size_t>(r)] += scale * a[r];
      }
      double mean = 0.0;
      for (int64_t i = 0; i < selected_; ++i) {
        const Routed& at = routed(s)[i];
        ops::relu_gradient(columns_of(z, s, at.patch), pull_.data(),
                           static_cast<float>(options_.expert_lr * at.gate), hidden_,
                           columns_of(step, s, at.patch));
        if (gated_) mean += at.gate * pulled(s, i);
      }
      for (int64_t i = 0; gated_ && i < selected_; ++i) {
        const Routed& at = routed(s)[i];
        step[at.patch * columns_.stride() + columns_.of_router(s)] =
            static_cast<float>(options_.router_lr * at.gate * (pulled(s, i) - mean));
      }
    }
  }

  /// Returns the descent of the loss by the gate of a patch.
  double pulled(int64_t expert, int64_t place) {
    double sum = 0.0;
    for (int64_t o = 0; o < outputs_; ++o) {
      sum -= slope_[static_cast<size_t>(o)] * outputs_of(expert, place)[o];
    }
    return sum;
  }

  const float* weights_of(int64_t expert, int64_t output) const {
    return output_.data() + (expert * outputs_ + output) * hidden_;
  }

  const PatchExamples::Prepared& examples_;
  const PatchSgdOptions& options_;
  int64_t experts_, hidden_, outputs_, selected_ = 0;
  bool gated_;
  Columns columns_;
  RowSize size_;               ///< Of the columns of a group.
  std::vector<float> output_;  ///< a by expert and output.
  std::vector<float> pull_;    ///< Descent by an active neuron's value, where the gate is 1.
  std::vector<double> f_, slope_, outputs_of_;
  std::vector<Routed> routed_;
  at::Tensor z_, step_;  ///< Of a batch: products of patches with columns, and what a step adds.
};

void check_arguments(const PatchWeights& weights, const PatchExamples& examples,
                     const PatchSgdOptions& options) {
  const PatchExamples::Prepared& made = examples.prepared();
  const auto dimensions = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.dim() == 3;
  };
  if (!dimensions(weights.neurons_Kdh) || !dimensions(weights.outputs_Kho)) {
    fail("patch_sgd: neurons and outputs must be [K, d, h] and [K, h, o]");
  }
  const int64_t experts = weights.neurons_Kdh.size(0), hidden = weights.neurons_Kdh.size(2);
  const int64_t outputs = weights.outputs_Kho.size(2);
  check_tensor(weights.neurons_Kdh, at::kFloat, {experts, made.width, hidden}, "neurons_Kdh");
  check_tensor(weights.outputs_Kho, at::kFloat, {experts, hidden, outputs}, "outputs_Kho");
  const auto most = std::max_element(made.label.begin(), made.label.end());
  if (most != made.label.end() && *most >= std::max<int64_t>(outputs, 2)) {
    fail("patch_sgd: a label is {}, there are {} classes", *most, std::max<int64_t>(outputs, 2));
  }
  if (weights.router_Kd.defined()) {
    check_tensor(weights.router_Kd, at::kFloat, {experts, made.width}, "router_Kd");
    if (made.routed) fail("patch_sgd: examples that are routed already leave nothing to gate");
    if (options.selected < 1 || options.selected > made.patches) {
      fail("patch_sgd: an expert cannot select {} of {} patches", options.selected, made.patches);
    }
  } else if (made.routed ? made.groups != experts : experts != 1) {
    fail("patch_sgd: examples are routed to {} experts, there are {}",
         made.routed ? made.groups : 1, experts);
  }
}

}  // namespace

PatchSgdSteps patch_sgd_steps(PatchWeights& weights, const PatchExamples& examples,
                              std::span<const std::vector<int64_t>> batches,
                              const PatchSgdOptions& options) {
  check_arguments(weights, examples, options);
  for (const std::vector<int64_t>& batch : batches) {
    for (const int64_t example : batch) {
      if (example >= 0 && example < examples.size()) continue;
      fail("patch_sgd: there is no example {} of {}", example, examples.size());
    }
    if (batch.empty()) fail("patch_sgd: a batch is empty");
  }
  PatchSgdSteps sums;
  Stepper stepper(weights, examples.prepared(), options);
  for (const std::vector<int64_t>& batch : batches) stepper.step(batch, sums);
  stepper.write_back();
  const double each = batches.empty() ? 0.0 : 1.0 / static_cast<double>(batches.size());
  return {sums.loss * each, sums.accuracy * each};
}

}  // namespace moesaic
