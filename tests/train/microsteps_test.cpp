// SPDX-License-Identifier: Apache-2.0
// Steps of several micro-batches against those of a V-MoE written down in float64 from its
// formulas: micro-batches as the reference's trainer makes them, gradients and metrics averaged,
// clipped, with momentum.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <numbers>

#include "moesaic/models/registry.h"
#include "moesaic/train/gradient_phase.h"
#include "support/tensors.h"
#include "train/train_fixture.h"

namespace moesaic::microsteps_test {
namespace {

using train_test::config_of;
using train_test::four_phases;
using train_test::open_tiny;

constexpr int64_t kBatch = 12, kParts = 3, kSteps = 6, kGroup = 10, kCapacity = 4;
constexpr int64_t kExperts = 4, kChoices = 2, kHeads = 2;
constexpr double kRate = 0.2, kMomentum = 0.9, kClip = 0.5, kImportance = 0.5;

/// A tiny V-MoE and its optimizer steps.
class Formulas {
 public:
  explicit Formulas(const Model& model) {
    for (const auto& item : model.named_parameters()) {
      parameters_[item.key()] = item.value().detach().to(at::kDouble).requires_grad_();
      momenta_[item.key()] = at::zeros_like(parameters_[item.key()]);
    }
  }

  const TensorMap& parameters() const { return parameters_; }

  /// Loss, cross entropy and the gradients' norm, of micro-batches i, i + n, i + 2n, ...
  std::array<double, 3> update(const at::Tensor& images, const at::Tensor& labels, int64_t step) {
    std::array<double, 3> means = {};
    for (int64_t part = 0; part < kParts; ++part) {
      std::vector<int64_t> own;
      for (int64_t i = part; i < kBatch; i += kParts) own.push_back(i);
      const at::Tensor index = torch::tensor(own);
      importance_ = at::zeros({}, at::kDouble);
      const at::Tensor logits = forward(images.index_select(0, index).to(at::kDouble));
      const at::Tensor right = logits.log_softmax(1).gather(1, labels.index({index}).view({-1, 1}));
      const at::Tensor entropy = -right.mean(), loss = entropy + kImportance * importance_;
      (loss / kParts).backward();
      means[0] += loss.item<double>() / kParts;
      means[1] += entropy.item<double>() / kParts;
    }
    double squares = 0.0;
    for (auto& [name, p] : parameters_) squares += p.grad().square().sum().item<double>();
    means[2] = std::sqrt(squares);
    move(std::min(1.0, kClip / means[2]), step);
    return means;
  }

 private:
  void move(double scale, int64_t step) {
    const torch::NoGradGuard no_grad;
    const double rate = kRate * (1 + std::cos(std::numbers::pi * step / kSteps)) / 2;
    for (auto& [name, p] : parameters_) {
      momenta_[name] = p.grad() * scale + kMomentum * momenta_[name];
      p -= rate * momenta_[name];
      p.mutable_grad().reset();
    }
  }

  const at::Tensor& at(const std::string& name) const { return parameters_.at(name); }

  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    return at::matmul(x, at(name + ".weight").t()) + at(name + ".bias");
  }

  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    const at::Tensor centred = x - x.mean({-1}, true);
    const at::Tensor variance = centred.square().mean({-1}, true);
    return centred / (variance + 1e-6).sqrt() * at(name + ".weight") + at(name + ".bias");
  }

  static at::Tensor gelu(const at::Tensor& x) {
    return 0.5 * x * (1 + (std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x.pow(3))).tanh());
  }

  at::Tensor attention(const at::Tensor& x_BTd, const std::string& name) const {
    const auto qkv = linear(x_BTd, name + ".qkv").chunk(3, 2);
    std::vector<at::Tensor> heads;
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t c = x_BTd.size(2) / kHeads;
      const auto of_head = [&](const at::Tensor& x) { return x.narrow(2, h * c, c); };
      const at::Tensor products =
          at::matmul(of_head(qkv[0]), of_head(qkv[1]).transpose(1, 2)) / std::sqrt(c);
      heads.push_back(at::matmul(products.softmax(2), of_head(qkv[2])));
    }
    return linear(at::cat(heads, 2), name + ".out");
  }

  /// Whether a token's choice finds room: first choices of a group before second ones, each in
  /// order.
  static at::Tensor kept(const at::Tensor& gates_TE) {
    const at::Tensor choice = std::get<1>(gates_TE.topk(kChoices, 1));
    at::Tensor kept = at::zeros_like(gates_TE);
    for (int64_t first = 0; first < gates_TE.size(0); first += kGroup) {
      std::array<int64_t, kExperts> rows = {};
      for (int64_t rank = 0; rank < kChoices; ++rank) {
        for (int64_t t = first; t < first + kGroup; ++t) {
          const auto e = choice[t][rank].item<int64_t>();
          if (rows.at(e)++ < kCapacity) kept[t][e] = 1;
        }
      }
    }
    return kept;
  }

  at::Tensor moe(const at::Tensor& x_Td, const std::string& name) {
    const at::Tensor gates = at::matmul(x_Td, at(name + ".router.weight").t()).softmax(1);
    const at::Tensor sums_GE = gates.view({-1, kGroup, kExperts}).sum(1);
    importance_ = (sums_GE.var(1, /*unbiased=*/false) / sums_GE.mean(1).square()).mean();
    const at::Tensor weights = gates * kept(gates.detach());
    at::Tensor y = at::zeros_like(x_Td);
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto of = [&](const char* part) { return at(name + ".experts." + part)[e]; };
      const at::Tensor hidden = gelu(at::matmul(x_Td, of("w1")) + of("b1"));
      y = y + weights.narrow(1, e, 1) * (at::matmul(hidden, of("w2")) + of("b2"));
    }
    return y;
  }

  at::Tensor forward(const at::Tensor& images_BCHW) {
    const at::Tensor patches =
        at::conv2d(images_BCHW, at("embedding.weight"), at("embedding.bias"), /*stride=*/2);
    at::Tensor x = at::cat({at("cls").expand({images_BCHW.size(0), -1, -1}),
                            patches.flatten(2).transpose(1, 2)},
                           1) +
                   at("position_embedding");
    for (const std::string block : {"blocks.0", "blocks.1"}) {
      x = x + attention(norm(x, block + ".norm1"), block + ".attention");
      const at::Tensor y = norm(x, block + ".norm2");
      x = x + (block == "blocks.0" ? linear(gelu(linear(y, block + ".mlp.fc1")), block + ".mlp.fc2")
                                   : moe(y.flatten(0, 1), block + ".moe").view_as(x));
    }
    return linear(norm(x, "norm").select(1, 0), "head");
  }

  TensorMap parameters_, momenta_;
  at::Tensor importance_;
};

/// The largest difference after four steps, and on the way that of the metrics, where `order` is
/// the reference's.
double difference(const std::string& order) {
  const RunConfig config = config_of(
      four_phases(),
      {"phases.0.batch_size=12", "phases.0.gradient_accumulation_steps=3",
       "phases.0.micro_batch_order=" + order,
       R"(phases.0.optimizer={"name": "sgd", "lr": 0.2, "momentum": 0.9})",
       R"(phases.0.schedule={"name": "cosine"})", "phases.0.clip_norm=0.5", "phases.0.augment={}",
       R"(phases.0.aux_losses={"importance": 0.5})", "model.encoder.moe.router.noise_std=0",
       "model.encoder.moe.group_size=10",
       R"(model.encoder.moe.router.dispatcher={"capacity_factor": 0.8, "capacity_multiple_of": 1})"});
  const auto model = RunStart(config).model();
  {
    const torch::NoGradGuard no_grad;
    uint64_t seed = 10;
    for (at::Tensor& p : model->parameters()) {
      p.add_(testing::randn(p.sizes().vec(), ++seed, at::kFloat) * 0.3);
    }
  }
  DatasetCache datasets(open_tiny);
  const PhasePlan plan = plan_phases(config, *model, datasets)[0];
  GradientPhase phase(plan, {.model = model, .data = open_tiny("three", "train"), .seed = 7});
  Loader loader(open_tiny("three", "train"),
                {.batch_size = kBatch, .seed = 7, .shuffle = true, .drop_last = true});
  Formulas formulas(*model);
  for (int64_t step = 0; step < 4; ++step) {
    const Batch batch = loader.next();
    const auto [loss, entropy, norm] = formulas.update(batch.inputs, batch.labels, step);
    const auto metrics = phase.step().metrics;
    if (order != kStrided) continue;
    EXPECT_NEAR(metrics.at("loss"), loss, 1e-5) << step;
    EXPECT_NEAR(metrics.at("cross_entropy"), entropy, 1e-5) << step;
    EXPECT_NEAR(metrics.at("grad_norm"), norm, 1e-5 * norm) << step;
    EXPECT_GT(norm, kClip);
  }
  double largest = 0.0;
  for (const auto& item : model->named_parameters()) {
    const at::Tensor wanted = formulas.parameters().at(item.key());
    largest = std::max(largest, (item.value() - wanted).abs().max().item<double>());
  }
  return largest;
}

TEST(Microsteps, StridedPartsUpdateAsTheReferencesMicrosteps) {
  EXPECT_LE(difference(kStrided), 1e-5);
  EXPECT_GE(difference(kConsecutive), 1e-3);
}

}  // namespace
}  // namespace moesaic::microsteps_test
