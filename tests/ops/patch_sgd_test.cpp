// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/patch_sgd.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>

#include "base/support.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using testing::randn;
using Batches = std::vector<std::vector<int64_t>>;

constexpr int64_t kExamples = 7, kPatches = 5, kWidth = 9;

/// A network, the examples' patches and where they go.
struct Case {
  PatchWeights weights;
  Tensor x_Nnd, label_N, routed_NKl;
  PatchSgdOptions options;

  PatchExamples examples() const { return {x_Nnd, label_N, routed_NKl}; }
};

/// Half of the numbers of a patch are 0.
Case some_case(int64_t experts, int64_t hidden, int64_t classes) {
  const Tensor x = randn({kExamples, kPatches, kWidth}, 1, torch::kFloat).relu();
  const Tensor label = torch::arange(kExamples).remainder(classes);
  const int64_t outputs = classes == 2 ? 1 : classes;
  return {{{},
           randn({experts, kWidth, hidden}, 2, torch::kFloat),
           randn({experts, hidden, outputs}, 3, torch::kFloat)},
          x,
          label,
          {},
          {.divisor = 3.0, .expert_lr = 0.3, .router_lr = 0.2}};
}

Case joint_case(int64_t classes, int64_t selected) {
  Case made = some_case(3, 4, classes);
  made.weights.router_Kd = randn({3, kWidth}, 4, torch::kFloat);
  made.options.selected = selected;
  return made;
}

Case separate_case(int64_t classes) {
  Case made = some_case(classes, 4, classes);
  made.routed_NKl = select_patches(made.x_Nnd, randn({classes, kWidth}, 5, torch::kFloat), 2);
  return made;
}

/// The weights after a step, and what it tells, in float64.
struct PlainStep {
  Tensor router, neurons;
  double loss = 0.0, accuracy = 0.0;
};

double at3(const Tensor& tensor, int64_t i, int64_t j, int64_t k) {
  return tensor[i][j][k].item<double>();
}

/// Patches and gates of an expert for an example, by plain loops.
std::vector<std::pair<int64_t, double>> plain_routing(const Case& from, int64_t example,
                                                      int64_t expert) {
  std::vector<std::pair<int64_t, double>> routed;
  if (from.routed_NKl.defined()) {
    for (int64_t i = 0; i < from.routed_NKl.size(2); ++i) {
      routed.emplace_back(from.routed_NKl[example][expert][i].item<int64_t>(), 1.0);
    }
    return routed;
  }
  if (!from.weights.router_Kd.defined()) {
    for (int64_t j = 0; j < kPatches; ++j) routed.emplace_back(j, 1.0);
    return routed;
  }
  std::vector<double> value(kPatches, 0.0);
  for (int64_t j = 0; j < kPatches; ++j) {
    for (int64_t p = 0; p < kWidth; ++p) {
      value[static_cast<size_t>(j)] +=
          at3(from.x_Nnd, example, j, p) * from.weights.router_Kd[expert][p].item<double>();
    }
  }
  double sum = 0.0;
  for (int64_t l = 0; l < from.options.selected; ++l) {
    const auto best = std::max_element(value.begin(), value.end());
    routed.emplace_back(best - value.begin(), std::exp(*best));
    sum += routed.back().second;
    *best = -1e9;
  }
  for (auto& [patch, gate] : routed) gate /= sum;
  return routed;
}

/// One example of a batch, by plain loops.
class PlainExample {
 public:
  PlainExample(const Case& from, int64_t example)
      : from_(from),
        example_(example),
        experts_(from.weights.neurons_Kdh.size(0)),
        hidden_(from.weights.neurons_Kdh.size(2)),
        outputs_(from.weights.outputs_Kho.size(2)),
        f_(static_cast<size_t>(outputs_), 0.0) {
    for (int64_t s = 0; s < experts_; ++s) {
      for (const auto& [j, gate] : plain_routing(from, example, s)) {
        for (int64_t r = 0; r < hidden_; ++r) {
          for (int64_t o = 0; o < outputs_; ++o) {
            f_[static_cast<size_t>(o)] += gate * a(s, r, o) * std::max(0.0, product(s, j, r));
          }
        }
      }
    }
  }

  /// Adds what the example tells and does, a share `each` of its batch.
  void add_to(PlainStep& made, double each) {
    const std::vector<double> slope = loss_and_slope(made, each);
    for (int64_t s = 0; s < experts_; ++s) {
      const auto routed = plain_routing(from_, example_, s);
      std::vector<double> pull;
      double mean = 0.0;
      for (const auto& [j, gate] : routed) {
        pull.push_back(0.0);
        for (int64_t r = 0; r < hidden_; ++r) {
          double by_neuron = 0.0;
          for (int64_t o = 0; o < outputs_; ++o) {
            by_neuron -= each * slope[static_cast<size_t>(o)] * a(s, r, o);
          }
          const double z = product(s, j, r);
          pull.back() += by_neuron * std::max(0.0, z);
          if (z > 0)
            made.neurons[s].select(1, r) += from_.options.expert_lr * gate * by_neuron * x(j);
        }
        mean += gate * pull.back();
      }
      for (size_t i = 0; made.router.defined() && i < routed.size(); ++i) {
        made.router[s] +=
            from_.options.router_lr * routed[i].second * (pull[i] - mean) * x(routed[i].first);
      }
    }
  }

 private:
  Tensor x(int64_t patch) const { return from_.x_Nnd[example_][patch].to(torch::kDouble); }
  double a(int64_t s, int64_t r, int64_t o) const {
    return at3(from_.weights.outputs_Kho, s, r, o) / from_.options.divisor;
  }
  double product(int64_t s, int64_t j, int64_t r) const {
    double sum = 0.0;
    for (int64_t p = 0; p < kWidth; ++p) {
      sum += at3(from_.x_Nnd, example_, j, p) * at3(from_.weights.neurons_Kdh, s, p, r);
    }
    return sum;
  }

  std::vector<double> loss_and_slope(PlainStep& made, double each) const {
    const auto label = static_cast<size_t>(from_.label_N[example_].item<int64_t>());
    if (outputs_ == 1) {
      const double y = label == 0 ? 1.0 : -1.0;
      made.loss += each * std::log(1.0 + std::exp(-y * f_[0]));
      made.accuracy += y * f_[0] > 0 ? each : 0.0;
      return {-y / (1.0 + std::exp(y * f_[0]))};
    }
    double sum = 0.0;
    for (const double value : f_) sum += std::exp(value);
    made.loss += each * (std::log(sum) - f_[label]);
    made.accuracy += f_[label] == *std::max_element(f_.begin(), f_.end()) ? each : 0.0;
    std::vector<double> slope;
    for (size_t o = 0; o < f_.size(); ++o) {
      slope.push_back(std::exp(f_[o]) / sum - (o == label ? 1.0 : 0.0));
    }
    return slope;
  }

  const Case& from_;
  int64_t example_, experts_, hidden_, outputs_;
  std::vector<double> f_;
};

PlainStep plain_step(const Case& from, const std::vector<int64_t>& batch) {
  const PatchWeights& w = from.weights;
  PlainStep made{w.router_Kd.defined() ? w.router_Kd.to(torch::kDouble) : Tensor(),
                 w.neurons_Kdh.to(torch::kDouble)};
  for (const int64_t example : batch) {
    PlainExample(from, example).add_to(made, 1.0 / static_cast<double>(batch.size()));
  }
  return made;
}

void expect_plain(Case from) {
  const std::vector<int64_t> batch = {0, 3, 6, 2};
  const PlainStep wanted = plain_step(from, batch);
  const PatchSgdSteps made =
      patch_sgd_steps(from.weights, from.examples(), Batches{batch}, from.options);
  EXPECT_NEAR(made.loss, wanted.loss, 1e-6);
  EXPECT_EQ(made.accuracy, wanted.accuracy);
  testing::expect_close(from.weights.neurons_Kdh, wanted.neurons, 1e-6);
  if (wanted.router.defined()) testing::expect_close(from.weights.router_Kd, wanted.router, 1e-6);
}

TEST(PatchSgd, AStepEqualsPlainLoops) {
  for (const int64_t classes : {2, 4}) {
    SCOPED_TRACE(classes);
    for (const int64_t hidden : {3, 16, 37, 70}) expect_plain(some_case(1, hidden, classes));
    for (const int64_t selected : {1, 3, 5}) expect_plain(joint_case(classes, selected));
    expect_plain(separate_case(classes));
  }
}

/// The loss of a batch by LibTorch's operators.
Tensor eager_loss(const Case& from, const PatchWeights& w, const Tensor& batch) {
  const Tensor x = from.x_Nnd.to(torch::kDouble).index_select(0, batch);
  const Tensor hidden = torch::einsum("bnd,kdh->bknh", {x, w.neurons_Kdh}).relu();
  Tensor gate = torch::ones({batch.size(0), hidden.size(1), kPatches}, torch::kDouble);
  if (from.routed_NKl.defined()) {
    gate = torch::zeros_like(gate).scatter(2, from.routed_NKl.index_select(0, batch), 1.0);
  } else if (w.router_Kd.defined()) {
    const auto [value, place] =
        torch::einsum("bnd,kd->bkn", {x, w.router_Kd}).topk(from.options.selected, 2);
    gate = torch::zeros_like(gate).scatter(2, place, value.softmax(2));
  }
  const Tensor f =
      torch::einsum("bkn,bknh,kho->bo", {gate, hidden, w.outputs_Kho.to(torch::kDouble)}) /
      from.options.divisor;
  const Tensor label = from.label_N.index_select(0, batch);
  if (f.size(1) > 1) return torch::nn::functional::cross_entropy(f, label);
  return torch::nn::functional::softplus((2 * label - 1).to(torch::kDouble) * f.squeeze(1)).mean();
}

TEST(PatchSgd, ItsGradientIsThatOfAutograd) {
  for (Case from : {some_case(1, 6, 2), joint_case(2, 3), joint_case(3, 2), separate_case(2)}) {
    from.options.expert_lr = from.options.router_lr = 1.0;
    PatchWeights leaves = from.weights;
    leaves.neurons_Kdh = from.weights.neurons_Kdh.to(torch::kDouble).requires_grad_(true);
    if (leaves.router_Kd.defined()) {
      leaves.router_Kd = from.weights.router_Kd.to(torch::kDouble).requires_grad_(true);
    }
    const Tensor loss = eager_loss(from, leaves, torch::tensor({5, 1, 4}));
    loss.backward();
    const PatchWeights before{
        leaves.router_Kd.defined() ? from.weights.router_Kd.clone() : Tensor(),
        from.weights.neurons_Kdh.clone(),
        {}};
    const PatchSgdSteps made =
        patch_sgd_steps(from.weights, from.examples(), Batches{{5, 1, 4}}, from.options);
    EXPECT_NEAR(made.loss, loss.item<double>(), 1e-6);
    testing::expect_close(before.neurons_Kdh - from.weights.neurons_Kdh, leaves.neurons_Kdh.grad(),
                          1e-5);
    if (!leaves.router_Kd.defined()) continue;
    testing::expect_close(before.router_Kd - from.weights.router_Kd, leaves.router_Kd.grad(), 1e-5);
  }
}

TEST(PatchSgd, StepsInOneCallEqualThoseOfSeveral) {
  Case once = joint_case(2, 3), apart = joint_case(2, 3);
  const Batches batches = {{0, 1, 2}, {3, 4, 5}, {6}, {2, 0}};
  const PatchSgdSteps all = patch_sgd_steps(once.weights, once.examples(), batches, once.options);
  double loss = 0.0;
  for (const std::vector<int64_t>& batch : batches) {
    loss +=
        patch_sgd_steps(apart.weights, apart.examples(), Batches{batch}, apart.options).loss / 4;
  }
  EXPECT_NEAR(all.loss, loss, 1e-12);
  EXPECT_TRUE(torch::equal(once.weights.neurons_Kdh, apart.weights.neurons_Kdh));
  EXPECT_TRUE(torch::equal(once.weights.router_Kd, apart.weights.router_Kd));
}

TEST(PatchSgd, SelectsTheLargestAndOfEqualOnesTheEarlier) {
  const Tensor x = torch::tensor({1.0F, 3.0F, 3.0F, 2.0F, 3.0F, 0.0F, 5.0F, 5.0F}).view({2, 4, 1});
  const Tensor found = select_patches(x, torch::tensor({{1.0F}, {-1.0F}}), 2);
  const Tensor wanted = torch::tensor({{{1, 2}, {0, 3}}, {{2, 3}, {0, 1}}});
  EXPECT_TRUE(torch::equal(found, wanted)) << found;
}

TEST(PatchSgd, RefusesWhatDoesNotFit) {
  const auto refusal = [](const std::function<void(Case&)>& change, Batches batches = {{0}}) {
    Case from = joint_case(2, 3);
    change(from);
    return test::failure_of(
        [&] { patch_sgd_steps(from.weights, from.examples(), batches, from.options); });
  };
  const auto nothing = [](Case&) {};
  EXPECT_THAT(refusal([](Case& c) { c.options.selected = 6; }),
              HasSubstr("cannot select 6 of 5 patches"));
  EXPECT_THAT(refusal([](Case& c) { c.x_Nnd = c.x_Nnd.to(torch::kDouble); }),
              HasSubstr("examples must be Float"));
  EXPECT_THAT(refusal([](Case& c) { c.label_N = c.label_N + 1; }),
              HasSubstr("there are 2 classes"));
  EXPECT_THAT(refusal([](Case& c) { c.weights.router_Kd = Tensor(); }),
              HasSubstr("routed to 1 experts, there are 3"));
  EXPECT_THAT(refusal([](Case& c) {
                c.routed_NKl = torch::full({kExamples, 3, 2}, 5);
              }),
              HasSubstr("no patch of 5"));
  EXPECT_THAT(refusal([](Case& c) {
                c.routed_NKl = torch::zeros({kExamples, 3, 2}, torch::kLong);
              }),
              HasSubstr("leave nothing to gate"));
  EXPECT_THAT(refusal(nothing, {{0, 7}}), HasSubstr("no example 7 of 7"));
  EXPECT_THAT(refusal(nothing, {{}}), HasSubstr("a batch is empty"));
}

}  // namespace
}  // namespace moesaic
