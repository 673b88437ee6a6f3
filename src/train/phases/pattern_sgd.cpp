// SPDX-License-Identifier: Apache-2.0
// The phase kind "pattern_sgd": blocks of steps of Algorithm 1 of the pruning paper, by its
// formulas.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "moesaic/base/error.h"
#include "moesaic/data/dataset_inputs.h"
#include "moesaic/data/sample.h"
#include "moesaic/nn/pattern_experts.h"
#include "moesaic/ops/pattern_sgd.h"
#include "pattern_sgd.h"

namespace moesaic {
namespace {

struct PatternSgdConfig {
  int64_t batch_size = 128, block = 16;
  double expert_lr = 0.02, router_lr = 0.01;
  bool until_zero = true;
};
template <class Fields>
void describe(Fields& f, PatternSgdConfig& c) {
  f("batch_size", c.batch_size, "fresh examples a step", between(1, 65536));
  f("expert_lr", c.expert_lr, "eta_e, of the neurons", between(0.0, 1e6));
  f("router_lr", c.router_lr, "eta_r, of the routers", between(0.0, 1e6));
  f("until_zero", c.until_zero, "end with the first batch whose hinge loss is 0");
  f("block", c.block, "steps that are made at once", between(1, 4096));
}

/// Returns the layer of such a network, or nothing.
std::optional<nn::MoELayer> find_pattern_layer(const Model& model) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  if (blocks.size() != 1 || blocks[0].layer->experts->as<nn::PatternExperts>() == nullptr) {
    return std::nullopt;
  }
  return blocks[0].layer;
}

std::vector<std::string> pattern_parameters(const Model& model) {
  std::vector<std::string> names;
  for (const auto& item : model.named_parameters()) names.push_back(item.key());
  return names;
}

class PatternSgd final : public Phase {
 public:
  PatternSgd(const PhasePlan& plan, PhaseContext context)
      : plan_(plan),
        config_(settings_of<PatternSgdConfig>(plan_.config)),
        model_(std::move(context.model)),
        data_(std::move(context.data)),
        layer_(*find_pattern_layer(*model_)) {
    offset_ = stream_begin(context.seed);
  }

  bool done() const override { return made_ >= plan_.steps || (config_.until_zero && is_zero_); }

  StepReport step() override {
    const torch::NoGradGuard no_grad;
    PatternWeights weights = on_host();
    const int64_t block = std::min(config_.block, plan_.steps - made_);
    const DatasetInputs inputs =
        data_->generate(offset_ + made_ * plan_.batch, block * plan_.batch);
    const at::Tensor tokens = inputs.values_NCHW.flatten(1).to(at::kInt);
    const at::Tensor y = (1 - 2 * inputs.labels_N).to(at::kFloat);
    const PatternSgdOptions options{selected(), config_.expert_lr, config_.router_lr};
    StepReport report{.steps = 0};
    double hinge = 0.0, accuracy = 0.0;
    while (report.steps < block && !(config_.until_zero && is_zero_)) {
      const int64_t first = report.steps * plan_.batch;
      const PatternStep made = pattern_sgd_step(
          weights, {tokens.narrow(0, first, plan_.batch), y.narrow(0, first, plan_.batch)},
          options);
      is_zero_ = made.hinge == 0.0;
      hinge += made.hinge;
      accuracy += made.accuracy;
      ++report.steps;
    }
    const bool finite =
        std::isfinite(hinge) && all_finite(weights.router_Kd) && all_finite(weights.neurons_Kdm);
    if (!finite) throw Diverged("the loss or a weight is not finite");
    write(weights);
    made_ += report.steps;
    const auto steps = static_cast<double>(report.steps);
    report.metrics = {{"loss", hinge / steps}, {"accuracy", 100.0 * accuracy / steps}};
    report.images = report.steps * plan_.batch;
    return report;
  }

  std::string remedy() const override {
    return fmt::format("lower phases.{0}.expert_lr ({1} now) or phases.{0}.router_lr ({2} now)",
                       plan_.config.name, config_.expert_lr, config_.router_lr);
  }

  PhaseState state() const override { return {{{"made", made_}, {"is_zero", is_zero_}}, {}}; }
  void load(const PhaseState& state) override {
    const auto made = state.values.find("made"), zero = state.values.find("is_zero");
    const bool valid = made != state.values.end() && made->is_number_integer() && *made >= 0 &&
                       *made <= plan_.steps && zero != state.values.end() && zero->is_boolean();
    if (!valid) fail("phase '{}': its state is damaged", plan_.config.name);
    made_ = made->get<int64_t>();
    is_zero_ = zero->get<bool>();
  }

 private:
  nn::PatternExpertsImpl& experts() const { return *layer_->experts->as<nn::PatternExperts>(); }

  int64_t selected() const { return std::get<ExpertChoiceOptions>(layer_->options().rule).rows; }

  /// Returns copies to work on: those of the kept experts.
  PatternWeights on_host() const {
    const auto copied = [](const at::Tensor& tensor) {
      return tensor.detach()
          .to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true)
          .contiguous();
    };
    const at::Tensor ids = torch::tensor(layer_->kept(), torch::kLong);
    return {copied(layer_->router->weight).index_select(0, ids).contiguous(), copied(experts().w),
            copied(experts().sign)};
  }

  void write(const PatternWeights& weights) {
    const at::Tensor ids = torch::tensor(layer_->kept(), torch::kLong);
    at::Tensor& router = layer_->router->weight;
    router.index_copy_(0, ids.to(router.device()), weights.router_Kd.to(router.options()));
    experts().w.copy_(weights.neurons_Kdm);
  }

  PhasePlan plan_;
  const PatternSgdConfig& config_;  ///< Part of plan_.
  std::shared_ptr<Model> model_;
  std::shared_ptr<const Dataset> data_;
  nn::MoELayer layer_;
  int64_t offset_ = 0, made_ = 0;
  bool is_zero_ = false;
};

void plan_patterns(PhasePlan& plan, const PhasePlaces& places, const Model& model,
                   const Dataset& data) {
  const PhaseConfig& phase = plan.config;
  if (!find_pattern_layer(model)) {
    fail_usage(
        "{}: phase '{}': a phase of kind '{}' needs a model whose experts are of patterns (moesaic "
        "list models)",
        places.of_model("name", "kind"), phase.name, phase.kind.name());
  }
  if (data.has_images() || !data.endless() || data.info().classes.size() != 2) {
    fail_usage(
        "{}: phase '{}': a phase of kind '{}' needs an endless stream of patterns of two "
        "classes, which '{}' is not",
        places.of({"data"}), phase.name, phase.kind.name(), phase.data);
  }
  const Directions known = data.directions();
  const auto patterns = known.find("pattern");
  const int64_t width = (*find_pattern_layer(model))->options().width;
  if (patterns == known.end() || patterns->second.size(0) != width) {
    fail_usage("{}: phase '{}': the model has {} patterns, '{}' has {}",
               places.of_model("patterns", "data"), phase.name, width, phase.data,
               patterns == known.end() ? 0 : patterns->second.size(0));
  }
  if (trained_parameters(model, phase) != pattern_parameters(model)) {
    fail_usage(
        "{}: phase '{}': it moves routers and neurons; set a learning rate to 0 in place of "
        "'trains' and 'frozen'",
        places.of({"frozen", "trains"}), phase.name);
  }
  plan.batch = settings_of<PatternSgdConfig>(phase).batch_size;
  plan.steps_per_epoch = std::max<int64_t>(1, data.size() / plan.batch);
  plan.steps = phase.steps ? *phase.steps : *phase.epochs * plan.steps_per_epoch;
}

}  // namespace

PhaseKind pattern_sgd_kind() {
  return {.settings = Choice("pattern_sgd", PatternSgdConfig{}),
          .meaning =
              "stochastic gradient descent in the pruning paper's theory, by its formulas "
              "(algorithm 1)",
          .plan = plan_patterns,
          .make = [](const PhasePlan& plan, PhaseContext context) -> std::unique_ptr<Phase> {
            return std::make_unique<PatternSgd>(plan, std::move(context));
          }};
}

}  // namespace moesaic
