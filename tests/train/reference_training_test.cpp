// SPDX-License-Identifier: Apache-2.0
// Several optimizer steps against those of the reference implementation: losses, norms, gradients,
// parameters and the optimizer's memory. Skipped where its tensors are not beside the working tree.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "moesaic/nn/init.h"
#include "moesaic/train/objective.h"
#include "moesaic/train/gradient_config.h"
#include "moesaic/train/optimizer.h"
#include "support/reference_files.h"
#include "support/vmoe_reference.h"

namespace moesaic {
namespace {

using testing::as_reference;
using testing::Reference;
using testing::ReferenceCase;
using Json = nlohmann::ordered_json;

constexpr const char* kKernels =
    R"((embedding|head|pre_logits|qkv|out|fc1|fc2|router)\.weight$|experts\.w[12]$)";

/// A phase of the reference as one of this library.
GradientConfig phase_of(const Json& reference) {
  const Json &optimizer = reference["optimizer"], &rate = optimizer["learning_rate"];
  GradientConfig phase;
  const std::string loss = reference["loss"]["name"] == "sigmoid_xent"   ? "sigmoid"
                           : reference["loss"]["name"] == "softmax_xent" ? "softmax"
                                                                         : "ensemble_softmax";
  phase.loss = objectives().at(loss).settings;
  phase.optimizer.name = optimizer["name"] == "sgd" ? "sgd" : "adamw";
  phase.optimizer.lr = rate["peak_value"];
  if (optimizer.contains("weight_decay")) phase.optimizer.weight_decays = {{kKernels, 0.1}};
  phase.schedule.name = rate["schedule"] == "warmup_cosine_decay" ? "cosine" : "linear";
  phase.schedule.warmup_steps = rate["warmup_steps"];
  phase.schedule.end_lr = rate["end_value"].get<double>();
  phase.clip_norm = optimizer["gradient_clip"]["global_norm"];
  return phase;
}

class ReferenceTraining : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    NEEDS_REFERENCE();
    reference_.emplace(fmt::format("train/{}", GetParam()));
    golden_ = reference_->tensors("golden");
    model_ = reference_->model();
    model_->train();
  }

  at::Tensor golden(const std::string& name) const { return golden_.at(name); }
  bool has(const std::string& name) const { return golden_.contains(name); }

  /// Relative to the tensor's largest number.
  static void expect_like(const at::Tensor& found, const at::Tensor& wanted, double tolerance,
                          const std::string& name) {
    ASSERT_EQ(found.sizes(), wanted.sizes()) << name;
    const double largest = wanted.abs().max().item<double>();
    EXPECT_LE((found - wanted).abs().max().item<double>(), tolerance * largest) << name;
  }

  void replay_noise(int64_t step) {
    for (const MoEBlock& block : model_->moe_blocks()) {
      const std::string name = fmt::format("step_{}/moe_{}/noise", step, block.block);
      if (!has(name)) continue;
      nn::MoELayer layer = block.layer;
      layer->router->replay_noise(golden(name).flatten(0, 1));
    }
  }

  LossTerms objective_of(int64_t step, const GradientConfig& phase) {
    replay_noise(step);
    const std::string place = fmt::format("step_{}/", step);
    const at::Tensor images = golden(place + "images").permute({0, 3, 1, 2}).contiguous();
    const at::Tensor labels = golden(place + "labels");
    const ModelOutput output = model_->forward(images, nn::make_generator(1));
    const LossTerms objective =
        classification_terms(phase.loss.name(), {0.0, aux_loss_weights({}, *model_)}, output,
                             labels.argmax(1), labels.to(at::kFloat));
    for (const auto& [name, term] : objective.terms) {
      if (name != "cross_entropy") continue;
      expect_like(term, golden(place + "main_loss"), 5e-6, place + "main_loss");
    }
    expect_like(objective.loss, golden(place + "total_loss"), 5e-6, place + "total_loss");
    return objective;
  }

  Reference gradients() const {
    std::map<std::string, at::Tensor> native;
    for (const auto& item : model_->named_parameters()) native[item.key()] = item.value().grad();
    return as_reference(native, model_->settings());
  }

  std::optional<ReferenceCase> reference_;
  Reference golden_;
  std::shared_ptr<VMoE> model_;
};

/// In exact arithmetic the softmax cancels it: what is left is rounding.
bool is_key_bias(const std::string& name) {
  return name.ends_with("key/bias");
}

TEST_P(ReferenceTraining, EveryStepIsTheReferences) {
  const Json& config = reference_->config();
  const GradientConfig phase = phase_of(config);
  const bool adam = phase.optimizer.name != "sgd";
  Optimizer::NamedParameters named;
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : model_->named_parameters()) {
    named.emplace_back(item.key(), item.value());
    parameters[item.key()] = item.value().detach();
  }
  Optimizer optimizer(named, phase.optimizer);
  const int64_t steps = config["steps"], total = config["total_steps"];
  int64_t compared = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    objective_of(step, phase).loss.backward();
    std::vector<at::Tensor> list = optimizer.gradients();
    const at::Tensor norm = gradient_norm(list);
    const std::string place = fmt::format("step_{}/", step);
    if (has(place + "grad_global_norm")) {
      expect_like(norm, golden(place + "grad_global_norm"), 2e-5, place + "grad_global_norm");
    }
    for (const auto& [name, gradient] : gradients()) {
      if (!has(place + "grad/" + name)) continue;
      ++compared;
      const at::Tensor wanted = golden(place + "grad/" + name);
      if (is_key_bias(name)) {
        EXPECT_LE((gradient - wanted).abs().max().item<double>(), 1e-6) << name;
      } else {
        expect_like(gradient, wanted, 2e-5, name);
      }
    }
    clip_gradients(list, norm, phase.clip_norm);
    const double lr = learning_rate(phase.schedule, phase.optimizer.lr, step - 1, total);
    EXPECT_NEAR(lr, golden("learning_rate")[step - 1].item<double>(), 1e-7 * phase.optimizer.lr);
    optimizer.step(lr);
    optimizer.zero_grad();
    const std::string after = fmt::format("after_{}/", step);
    for (const auto& [name, value] : as_reference(parameters, model_->settings())) {
      // Adam divides what is left of a key's bias by its own size.
      if (!has(after + "param/" + name) || (adam && is_key_bias(name))) continue;
      ++compared;
      expect_like(value, golden(after + "param/" + name), 2e-5, after + name);
    }
  }
  EXPECT_GT(compared, 100);

  const std::map<std::string, std::string> slots =
      adam ? std::map<std::string, std::string>{{"mu", "exp_avg"}, {"nu", "exp_avg_sq"}}
           : std::map<std::string, std::string>{{"trace", "momentum"}};
  const TensorMap state = optimizer.state();
  for (const auto& [theirs, ours] : slots) {
    std::map<std::string, at::Tensor> native;
    for (const auto& [name, unused] : parameters) native[name] = state.at(name + "." + ours);
    for (const auto& [name, value] : as_reference(native, model_->settings())) {
      const std::string place = fmt::format("after_{}/{}/{}", steps, theirs, name);
      if (has(place) && !is_key_bias(name)) expect_like(value, golden(place), 5e-5, place);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ReferenceTraining,
                         ::testing::Values("sgd", "sgd_noisy", "adam", "e3_sgd"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace moesaic
