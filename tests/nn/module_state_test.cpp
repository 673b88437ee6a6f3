// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/module_state.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "base/support.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;

struct Stack : torch::nn::Module {
  explicit Stack(int64_t experts) : w1(register_parameter("w1", torch::randn({experts, 3, 2}))) {}
  at::Tensor w1;
};

struct Net : torch::nn::Module {
  Net(int64_t count, int64_t outputs) {
    experts = register_module("experts", std::make_shared<Stack>(count));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    head = register_module("head", torch::nn::Linear(3, outputs));
  }
  std::shared_ptr<Stack> experts;
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear head{nullptr};
};

TEST(ModuleState, HasParametersAndBuffers) {
  torch::manual_seed(2);
  Net from(4, 2), to(4, 2);
  const TensorMap state = state_of(from);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) {
    names.push_back(name);
    EXPECT_FALSE(tensor.requires_grad());
  }
  EXPECT_THAT(names, ::testing::ElementsAre("experts.w1", "head.bias", "head.weight", "norm.bias",
                                            "norm.num_batches_tracked", "norm.running_mean",
                                            "norm.running_var", "norm.weight"));
  from.norm->running_mean.fill_(3);
  load_state(to, state, "test");
  for (const auto& [name, tensor] : state_of(to)) {
    EXPECT_TRUE(at::equal(tensor, state.at(name))) << name;
  }
  EXPECT_TRUE(to.experts->w1.requires_grad());
}

TEST(ModuleState, LoadsIntoTheModulesOwnMemory) {
  Net from(4, 2), to(4, 2);
  const void* before = to.experts->w1.data_ptr();
  load_state(to, state_of(from), "test");
  EXPECT_EQ(to.experts->w1.data_ptr(), before);
  from.experts->w1.detach().zero_();
  EXPECT_NE(to.experts->w1.abs().sum().item<double>(), 0.0);
}

TEST(ModuleState, SaysAllThatDiffersAndCopiesNothing) {
  Net module(4, 2);
  const at::Tensor before = module.head->weight.detach().clone();
  TensorMap state = state_of(module);
  for (auto& [name, tensor] : state) tensor = at::zeros_like(tensor);
  state.erase("norm.bias");
  state["head.bias"] = at::zeros({5});
  state["head.extra"] = at::zeros({1});
  const std::string message = failure_of([&] { load_state(module, state, "run/model"); });
  EXPECT_THAT(message, StartsWith("run/model: the tensors do not fit the model: "));
  EXPECT_THAT(message, HasSubstr("1 missing (norm.bias)"));
  EXPECT_THAT(message, HasSubstr("1 unexpected (head.extra)"));
  EXPECT_THAT(message, HasSubstr("1 different (head.bias is Float[5], the model has Float[2])"));
  EXPECT_THAT(message, Not(HasSubstr("kept_experts")));
  EXPECT_TRUE(at::equal(module.head->weight, before));

  state = state_of(module);
  state["norm.num_batches_tracked"] = at::zeros({}, at::kFloat);
  EXPECT_THAT(failure_of([&] { load_state(module, state, "x"); }),
              HasSubstr("norm.num_batches_tracked is Float[], the model has Long[]"));
  EXPECT_THAT(failure_of([&] { load_state(module, {}, "x"); }),
              HasSubstr("8 missing (experts.w1, head.bias, head.weight, ...)"));
}

TEST(ModuleState, HintsAtTheExpertsThatPruningLeft) {
  Net full(8, 2), pruned(2, 2);
  for (const auto& message :
       {failure_of([&] { load_state(full, state_of(pruned), "x", "moe.kept"); }),
        failure_of([&] { load_state(pruned, state_of(full), "x", "moe.kept"); })}) {
    EXPECT_THAT(message, AllOf(HasSubstr("experts.w1 is Float["),
                               HasSubstr("moe.kept in the model's config has to name")));
  }
  EXPECT_THAT(failure_of([&] { load_state(full, state_of(pruned), "x"); }),
              HasSubstr("differs: the model's config has to name the experts that pruning left"));
}

TEST(ModuleState, FindsWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor large = at::full({7, 5}, type == at::kHalf ? 6e4 : 3e38, type);
    EXPECT_TRUE(all_finite(large)) << type;  // Though their sum may overflow.
    EXPECT_TRUE(all_finite(large.t()));
    for (const float bad : {infinity, -infinity, std::nanf("")}) {
      at::Tensor one = at::zeros({7, 5}, type);
      one[6][4] = bad;
      EXPECT_FALSE(all_finite(one)) << type << " " << bad;
    }
    at::Tensor both = at::zeros({7, 5}, type);
    both[0][0] = infinity;
    both[1][0] = -infinity;
    EXPECT_FALSE(all_finite(both)) << type;
    EXPECT_TRUE(all_finite(at::empty({0}, type)));
  }
  EXPECT_TRUE(all_finite(at::ones({3}, at::kLong)));
}

}  // namespace
}  // namespace moesaic
