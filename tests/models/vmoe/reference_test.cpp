// SPDX-License-Identifier: Apache-2.0
// V-MoE, E3 and expert choice against every tensor of the reference implementation. The tolerances
// are those of its rounding: relative to the largest magnitude of a tensor.
#include <cmath>
#include <set>

#include "moesaic/export/predict.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/router.h"
#include "moesaic/ops/losses.h"
#include "moesaic/train/objective.h"
#include "support/reference_files.h"
#include "support/vmoe_reference.h"

namespace moesaic {
namespace {

using testing::Reference;
using testing::ReferenceCase;

constexpr double kActivation = 5e-6, kGradient = 2e-5, kBFloat16 = 4e-3;
constexpr double kZeroGradient = 1e-6;  // of a key's bias, which the softmax cancels

double magnitude(const at::Tensor& x) {
  return x.numel() == 0 ? 0.0 : x.abs().max().item<double>();
}

/// The reference's tensors of one run; counts what is looked at, so that nothing is left out.
class Golden {
 public:
  explicit Golden(Reference tensors) : tensors_(std::move(tensors)) {}

  bool has(const std::string& name) const { return tensors_.contains(name); }
  at::Tensor operator[](const std::string& name) {
    seen_.insert(name);
    return tensors_.at(name);
  }

  /// A tensor that is not there is not compared.
  void close(const std::string& name, const at::Tensor& found, double tolerance) {
    if (!has(name)) return;
    const at::Tensor wanted = (*this)[name].to(torch::kDouble);
    ASSERT_EQ(found.sizes(), wanted.sizes()) << name;
    const double worst = magnitude(found.detach().to(torch::kDouble) - wanted);
    EXPECT_LE(worst, tolerance * magnitude(wanted)) << name;
  }
  void equal(const std::string& name, const at::Tensor& found) {
    if (!has(name)) return;
    const at::Tensor wanted = (*this)[name];
    ASSERT_EQ(found.sizes(), wanted.sizes()) << name;
    EXPECT_TRUE(torch::equal(found.to(wanted.scalar_type()), wanted)) << name;
  }

  std::vector<std::string> unseen() const {
    std::vector<std::string> names;
    for (const auto& [name, unused] : tensors_) {
      if (!seen_.contains(name)) names.push_back(name);
    }
    return names;
  }

 private:
  Reference tensors_;
  std::set<std::string> seen_;
};

/// A run of a case, as the reference made it.
class GoldenRun {
 public:
  GoldenRun(const ReferenceCase& given, const std::string& file, double tolerance)
      : given_(given),
        golden_(given.tensors(file)),
        model_(given.model(file == "golden_bf16")),
        tolerance_(tolerance) {
    const Reference inputs = given.tensors("golden");
    images_ = inputs.at("input/images").permute({0, 3, 1, 2}).contiguous();
    labels_ = inputs.at("input/labels");
    for (const char* input : {"input/images", "input/labels"}) {
      if (golden_.has(input)) golden_[input];
    }
    replay_noise();
    model_->train();
    output_ = model_->forward(images_, noisy_ ? nn::make_generator(1) : at::Generator());
  }

  Golden& golden() { return golden_; }
  VMoE& model() { return *model_; }
  const at::Tensor& images() const { return images_; }
  const ModelOutput& output() const { return output_; }

  void check_embedding() {
    const at::Tensor patches = model_->embedding->forward(images_);
    golden_.close("embedding", patches.permute({0, 2, 3, 1}), tolerance_);
    x_ = patches.flatten(2).transpose(1, 2);
    if (model_->cls.defined()) {
      x_ = torch::cat({model_->cls.expand({x_.size(0), -1, -1}), x_}, 1);
    }
    x_ = x_ + model_->position_embedding;
    golden_.close("encoder/posembed_out", x_, tolerance_);
  }

  void check_blocks() {
    size_t layer = 0;
    for (size_t i = 0; i < model_->blocks->size(); ++i) {
      const auto block = std::dynamic_pointer_cast<nn::EncoderBlockImpl>(model_->blocks->ptr(i));
      if (!block->moe.is_empty() && layer++ == 0) {
        x_ = x_.repeat_interleave(model_->num_members(), 0);
      }
      check_block(*block, std::to_string(i));
    }
    golden_.close("encoder/norm", model_->norm->forward(x_), tolerance_);
  }

  void check_outputs() {
    if (!model_->pre_logits.is_empty()) {
      const at::Tensor encoded = model_->norm->forward(x_);
      golden_.close("pooled", encoded.select(1, 0), tolerance_);
    } else {
      golden_.close("pooled", output_.pre_logits, tolerance_);
    }
    golden_.close("pre_logits", output_.pre_logits, tolerance_);
    golden_.close("logits", output_.logits, tolerance_);
  }

  void check_routing(const RoutingRecord& record) {
    const std::string place = "moe_" + std::to_string(record.block) + "/";
    const int64_t members = model_->num_members(), size = record.group_size;
    const at::Tensor own = nn::member_logits(record.logits_TE, members).transpose(0, 1);
    golden_.close(place + "router_logits", own.reshape({-1, size, own.size(2)}), tolerance_);
    const auto grouped = [&](const at::Tensor& x) { return x.reshape({-1, size, x.size(-1)}); };
    const at::Tensor gates = grouped(record.noisy_logits_TE.softmax(-1));
    const at::Tensor combine = grouped(combine_weights(record.routing));
    golden_.close(place + "gates", gates, tolerance_);
    golden_.close(place + "combine", combine, tolerance_);
    golden_.equal(place + "dispatch", grouped(routed(record.routing)));
    if (golden_.has(place + "slot")) {
      EXPECT_TRUE(
          torch::equal(golden_[place + "slot"].ge(0), grouped(routed(record.routing)) == 1));
    }
    check_choices(record, place, gates, combine);
    check_items(place, gates, grouped(routed(record.routing)));
  }

  void check_losses() {
    double weighted = 0.0;
    at::Tensor total = main_loss();
    golden_.close("loss/main_loss", total, tolerance_);
    std::map<std::string, double> weights = model_->aux_losses();
    const at::Tensor rows = labels_.argmax(1).repeat_interleave(model_->num_members());
    const LossTerms objective = classification_terms("softmax", {0.0, weights}, output_, rows);
    for (const auto& [name, value] : objective.terms) {
      if (!weights.contains(name)) continue;
      weighted += weights.at(name) * value.item<double>();
      total = total + weights.at(name) * value;
    }
    golden_.close("loss/auxiliary_loss", torch::tensor(weighted, torch::kDouble), tolerance_);
    golden_.close("loss/total_loss", total, tolerance_);
    total.backward();
  }

  void check_gradients(double tolerance) {
    std::map<std::string, at::Tensor> gradients;
    double squares = 0.0;
    for (const auto& item : model_->named_parameters()) {
      const at::Tensor gradient = item.value().grad();
      gradients[item.key()] = gradient;
      squares += gradient.to(torch::kDouble).square().sum().item<double>();
    }
    golden_.close("loss/grad_global_norm", torch::tensor(std::sqrt(squares), torch::kDouble),
                  tolerance);
    for (const auto& [name, gradient] : testing::as_reference(gradients, model_->settings())) {
      const std::string place = "grad/" + name;
      if (!name.ends_with("key/bias")) {
        golden_.close(place, gradient, tolerance);
      } else if (golden_.has(place)) {
        EXPECT_LE(magnitude(gradient - golden_[place]), kZeroGradient) << place;
      }
    }
  }

  /// Losses of every group and member, which training only sees the mean of.
  void check_metrics(const RoutingRecord& record) {
    const std::string place = "moe_" + std::to_string(record.block) + "/metric/";
    if (!golden_.has(place + "importance_loss")) return;
    const int64_t members = model_->num_members(), size = record.group_size / members;
    const at::Tensor clean = groups(record.logits_TE, size),
                     noisy = groups(record.noisy_logits_TE, size);
    const at::Tensor shaped = golden_[place + "importance_loss"];
    std::map<std::string, std::vector<double>> found;
    for (int64_t g = 0; g < clean.size(0); ++g) {
      for (int64_t m = 0; m < members; ++m) {
        const at::Tensor logits = clean[g][m], drawn = noisy[g][m];
        const double importance = importance_loss(logits, 0).item<double>();
        const double gshard = gshard_loss(drawn, 0).item<double>();
        const double load =
            noisy_ ? load_loss(logits, drawn, record.routing.choice.size(1), record.noise_std, 0)
                         .item<double>()
                   : 0.0;
        const auto& router = model_->settings().encoder.moe.router;
        found["importance_loss"].push_back(importance);
        found["gshard_loss"].push_back(gshard);
        found["load_loss"].push_back(load);
        found["auxiliary_loss"].push_back(router.importance_loss_weight * importance +
                                          router.load_loss_weight * load +
                                          router.gshard_loss_weight * gshard);
      }
    }
    for (const auto& [name, values] : found) {
      golden_.close(place + name, torch::tensor(values, torch::kDouble).view(shaped.sizes()),
                    tolerance_);
    }
    const at::Tensor sum = torch::tensor(found["auxiliary_loss"], torch::kDouble);
    auxiliary_ = auxiliary_.defined() ? auxiliary_ + sum : sum;
  }

  void check_auxiliary_sum() {
    if (!golden_.has("auxiliary_loss")) return;
    if (!auxiliary_.defined()) auxiliary_ = torch::zeros({1}, torch::kDouble);  // experts choose
    golden_.close("auxiliary_loss", auxiliary_.view(golden_["auxiliary_loss"].sizes()), tolerance_);
  }

 private:
  /// Which experts compute which tokens: [T, E], 1 or 0.
  static at::Tensor routed(const Routing& routing) {
    Routing plain = routing;
    plain.gate = torch::ones_like(routing.gate);
    return combine_weights(plain);
  }

  /// [G, M, S / M, E / M]
  at::Tensor groups(const at::Tensor& logits_TE, int64_t size) const {
    const at::Tensor own = nn::member_logits(logits_TE, model_->num_members());
    return own.reshape({own.size(0), -1, size, own.size(2)}).transpose(0, 1);
  }

  void replay_noise() {
    for (auto& block : model_->moe_blocks()) {
      const std::string name = "moe_" + std::to_string(block.block) + "/noise";
      if (!golden_.has(name)) continue;
      const at::Tensor noise = golden_[name];
      block.layer->router->replay_noise(noise.reshape({-1, noise.size(-1)}));
      noisy_ = true;
    }
  }

  void check_block(nn::EncoderBlockImpl& block, const std::string& number) {
    const std::string place = "encoder/block_" + number + "/", moe = "moe_" + number + "/";
    const at::Tensor ln0 = block.norm1->forward(x_);
    golden_.close(place + "ln0", ln0, tolerance_);
    const at::Tensor attention = block.attention->forward(ln0);
    golden_.close(place + "attn", attention, tolerance_);
    const at::Tensor ln1 = block.norm2->forward(x_ + attention);
    golden_.close(place + "ln1", ln1, tolerance_);
    if (!block.mlp.is_empty()) {
      golden_.close(place + "mlp", block.mlp->forward(ln1), tolerance_);
    } else {
      golden_.close(moe + "input", ln1, tolerance_);
      const at::Tensor rows = nn::to_member_order(ln1, model_->num_members());
      if (golden_.has(moe + "router_input")) {
        golden_.close(moe + "router_input", rows.view(golden_[moe + "router_input"].sizes()),
                      tolerance_);
      }
      const at::Tensor y =
          block.moe->forward(rows, noisy_ ? nn::make_generator(1) : at::Generator()).y_Td;
      golden_.close(moe + "output", nn::from_member_order(y, model_->num_members(), ln1.sizes()),
                    tolerance_);
    }
    x_ = block.forward(x_, noisy_ ? nn::make_generator(1) : at::Generator()).x_BTd;
    golden_.close(place + "out", x_, tolerance_);
  }

  void check_choices(const RoutingRecord& record, const std::string& place, const at::Tensor& gates,
                     const at::Tensor& combine) {
    if (!golden_.has(place + "topk_index")) return;
    const at::Tensor wanted = golden_[place + "topk_index"];
    const at::Tensor choice = record.routing.choice.view(wanted.sizes()).to(torch::kLong);
    golden_.equal(place + "topk_index", choice);
    golden_.close(place + "topk_gate", gates.gather(2, choice), tolerance_);
    golden_.close(place + "topk_weight", combine.gather(2, choice), tolerance_);
    if (!golden_.has(place + "topk_position")) return;
    const std::string moe = place.substr(0, place.size() - 1);
    const auto capacity = given_.config().at("routing").at(moe).at("capacity").get<int64_t>();
    const at::Tensor kept = routed(record.routing).view(combine.sizes()).gather(2, choice);
    EXPECT_TRUE(torch::equal(kept == 1, golden_[place + "topk_position"] < capacity)) << place;
  }

  /// Where experts choose: item_index [G, E, C], best first.
  void check_items(const std::string& place, const at::Tensor& gates, const at::Tensor& routed) {
    if (!golden_.has(place + "item_index")) return;
    const at::Tensor index = golden_[place + "item_index"].to(torch::kLong).transpose(1, 2);
    golden_.close(place + "item_gate", gates.gather(1, index).transpose(1, 2), tolerance_);
    EXPECT_TRUE(torch::equal(torch::zeros_like(routed).scatter_(1, index, 1.0), routed)) << place;
  }

  at::Tensor main_loss() const {
    const at::Tensor labels = labels_.repeat_interleave(model_->num_members(), 0);
    const auto name = given_.config().at("loss").at("name").get<std::string>();
    if (name.find("sigmoid") != std::string::npos) {
      return torch::binary_cross_entropy_with_logits(output_.logits, labels, {}, {},
                                                     at::Reduction::None)
          .sum(1)
          .mean();
    }
    return -(labels * output_.logits.log_softmax(1)).sum(1).mean();
  }

  const ReferenceCase& given_;
  Golden golden_;
  std::shared_ptr<VMoE> model_;
  double tolerance_;
  bool noisy_ = false;
  at::Tensor images_, labels_, x_, auxiliary_;
  ModelOutput output_;
};

class VMoEReference : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { NEEDS_REFERENCE(); }

  void check(const std::string& file, double activation, double gradient) {
    const ReferenceCase given(GetParam());
    GoldenRun run(given, file, activation);
    run.check_embedding();
    run.check_blocks();
    run.check_outputs();
    for (const RoutingRecord& record : run.output().routings) {
      run.check_routing(record);
      run.check_metrics(record);
    }
    run.check_auxiliary_sum();
    run.check_losses();
    run.check_gradients(gradient);
    check_ensemble(run);
    for (const std::string& name : run.golden().unseen()) {
      // What the reference reports about its experts' choices follows from `dispatch`.
      EXPECT_TRUE(name.find("/metric/") != std::string::npos) << "not compared: " << name;
    }
  }

  void check_ensemble(GoldenRun& run) {
    Golden& golden = run.golden();
    if (!golden.has("ensemble/log_mean_prob")) return;
    run.model().eval();
    const auto predicted = predict(run.model(), run.images());
    const at::Tensor found = predicted.at("log_mean_prob");
    golden.close("ensemble/log_mean_prob", found, kActivation);
    golden.equal("ensemble/prediction", found.argmax(1));
    const at::Tensor labels = golden["input/labels"];
    golden.close("ensemble/eval_loss", -(labels * found).sum(1), kActivation);
    const at::Tensor rows = labels.repeat_interleave(run.model().num_members(), 0);
    golden.close("ensemble/train_loss", -(rows * predicted.at("logits").log_softmax(1)).sum(1),
                 kActivation);
  }
};

TEST_P(VMoEReference, Float32) {
  check("golden", kActivation, kGradient);
}

TEST_P(VMoEReference, Noisy) {
  check("golden_noisy", kActivation, kGradient);
}

// What lies at the edge of a rounding goes either way by what float32 itself rounds, and takes
// others with it. This tolerance is for them; vmoe_rounding_test.cpp does without.
TEST_P(VMoEReference, BFloat16Dispatch) {
  check("golden_bf16", kBFloat16, kBFloat16);
}

INSTANTIATE_TEST_SUITE_P(Cases, VMoEReference,
                         ::testing::Values("vmoe_top2", "vmoe_bpr", "e3", "expert_choice"));

}  // namespace
}  // namespace moesaic
