// SPDX-License-Identifier: Apache-2.0
// The phase kind "ridge": the second layers of all experts by one ridge regression in closed form,
// phase IV of Algorithm 1 of the latent paper.
#include <torch/torch.h>

#include <algorithm>

#include "parts.h"

namespace moesaic {
namespace {

struct RidgeConfig {
  double max_bias = 3.0;
  bool flip_signs = true;
  std::vector<double> lambdas = {1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1};
  int64_t num_held_out = 8192, chunk_size = 4096;
};
void describe(auto& f, RidgeConfig& c) {
  f("max_bias", c.max_bias, "largest magnitude (C_b) of the new biases, which are uniform around 0",
    between(0.0, 1e3), renamed_from("bias"));
  f("flip_signs", c.flip_signs,
    "random sign flips of the first layers of ReLU neurons (appendix A.3)", renamed_from("flip"));
  f("lambdas", c.lambdas,
    "candidate weights of the squared norm, relative to the mean square of a neuron's feature",
    not_empty, above(0.0));
  f("num_held_out", c.num_held_out,
    "number of held-out samples, after those of the steps, that choose among lambdas",
    between(1, 1e8), renamed_from("held_out"));
  f("chunk_size", c.chunk_size,
    "number of samples, one per step, whose products are summed together", between(1, 1048576),
    renamed_from("block"));
}

constexpr const char *kGram = "gram", *kMoment = "moment";

/// Features of a block's samples: for each expert its samples and 1/J sigma of its neurons.
struct Features {
  std::vector<at::Tensor> sample;  ///< int64 [R]
  std::vector<at::Tensor> value;   ///< float64 [R, J]
};

class Ridge final : public LatentPhase {
 public:
  Ridge(const PhasePlan& plan, PhaseContext context)
      : LatentPhase(plan, std::move(context), nn::kEveryAboveZero),
        config_(settings_of<RidgeConfig>(plan_.config)) {}

  StepReport make_step() override {
    begin();
    const int64_t steps = steps_of(config_.chunk_size);
    const Samples block = samples(steps_done_, steps);
    add(features(block, steps_done_), block.y_S.to(at::kDouble));
    StepReport report{.images = steps, .steps = steps};
    if (steps_done_ + steps == plan_.steps) solve(report);
    return report;
  }

  std::string divergence_hint() const override {
    return fmt::format("give phases.{}.lambdas larger ones", plan_.config.name);
  }

  PhaseState state() const override {
    PhaseState state = LatentPhase::state();
    if (gram_NN_.defined()) state.tensors = {{kGram, gram_NN_}, {kMoment, moment_N_}};
    return state;
  }
  void load(const PhaseState& state) override {
    LatentPhase::load(state);
    if (steps_done_ == 0 || is_done()) return;
    const auto gram = state.tensors.find(kGram), moment = state.tensors.find(kMoment);
    const int64_t n = experts().a.numel();
    const bool valid = gram != state.tensors.end() && moment != state.tensors.end() &&
                       gram->second.sizes() == at::IntArrayRef({n, n}) &&
                       moment->second.sizes() == at::IntArrayRef({n});
    if (!valid) fail("phase '{}': its state is corrupt", plan_.config.name);
    gram_NN_ = gram->second.clone();
    moment_N_ = moment->second.clone();
  }

 private:
  int64_t hidden() const { return experts().w.size(1); }

  /// Draws biases and signs of first layers. The network has them at the end only, with the second
  /// layers that belong to them; a resumed phase draws the same again.
  void begin() {
    if (w_KJd_.defined()) return;
    const nn::ShallowExpertsImpl& own = experts();
    const at::Generator draws = generator("latent.ridge");
    const at::Tensor bias = at::empty(own.b.sizes());
    b_KJ_ = bias.uniform_(-config_.max_bias, config_.max_bias, draws).to(own.b.options());
    w_KJd_ = own.w.detach();
    if (config_.flip_signs && !own.hermite.defined()) {
      const at::Tensor sign = at::empty(own.b.sizes()).bernoulli_(0.5, draws) * 2 - 1;
      w_KJd_ = w_KJd_ * sign.unsqueeze(2).to(own.w.options());
    }
    if (gram_NN_.defined()) return;
    const int64_t n = own.a.numel();
    gram_NN_ = at::zeros({n, n}, at::kDouble);
    moment_N_ = at::zeros({n}, at::kDouble);
  }

  Features features(const Samples& block, int64_t first) const {
    const RoutedSamples rows = routed(block, first, router_rows(layer_)).rows;
    const auto* const offset = rows.offset.const_data_ptr<int64_t>();
    Features made;
    for (int64_t k = 0; k < experts().num_experts(); ++k) {
      const at::Tensor sample = rows.sample.slice(0, offset[k], offset[k + 1]).to(at::kLong);
      const at::Tensor x = block.x_Sd.index_select(0, sample).to(context_.model->device());
      made.sample.push_back(sample);
      const at::Tensor& hermite = experts().hermite;
      const at::Tensor hermite_JK = hermite.defined() ? hermite[k] : hermite;
      const at::Tensor values = nn::shallow_neurons(x, w_KJd_[k], b_KJ_[k], hermite_JK);
      made.value.push_back(values.to(at::kCPU, at::kDouble) / static_cast<double>(hidden()));
    }
    return made;
  }

  /// Adds to the normal equations, of which the blocks above the diagonal are kept: two experts
  /// share the samples that both of them have.
  void add(const Features& made, const at::Tensor& y_S) {
    const int64_t j = hidden();
    for (int64_t k = 0; k < experts().num_experts(); ++k) {
      const auto i = static_cast<size_t>(k);
      moment_N_.narrow(0, k * j, j).addmv_(made.value[i].t(), y_S.index_select(0, made.sample[i]));
      // The place of each sample among the expert's, or -1.
      const at::Tensor place_S = at::full({y_S.size(0)}, -1, at::kLong);
      place_S.index_copy_(0, made.sample[i], at::arange(made.sample[i].size(0)));
      for (int64_t l = k; l < experts().num_experts(); ++l) {
        const at::Tensor place = place_S.index_select(0, made.sample[static_cast<size_t>(l)]);
        const at::Tensor both = place.ge(0).nonzero().squeeze(1);
        if (both.size(0) == 0) continue;
        const at::Tensor first = made.value[i].index_select(0, place.index_select(0, both));
        const at::Tensor second = made.value[static_cast<size_t>(l)].index_select(0, both);
        gram_NN_.narrow(0, k * j, j).narrow(1, l * j, j).addmm_(first.t(), second);
      }
    }
  }

  /// Solves for every lambda, chooses one by the held-out samples and writes its solution.
  void solve(StepReport& report) {
    const auto count = static_cast<double>(plan_.steps);
    const at::Tensor active = gram_NN_.diagonal().gt(0).nonzero().squeeze(1);
    if (active.size(0) == 0) {
      fail("phase '{}': the router gives no sample to any expert", plan_.config.name);
    }
    const at::Tensor upper = gram_NN_.triu() + gram_NN_.triu(1).t();
    const at::Tensor gram = upper.index_select(0, active).index_select(1, active) / count;
    const at::Tensor moment = moment_N_.index_select(0, active).unsqueeze(1) / count;
    const double unit = gram.diagonal().mean().item<double>();
    std::vector<at::Tensor> solutions;
    std::vector<double> lambdas;
    for (const double lambda : config_.lambdas) {
      at::Tensor with = gram.clone();
      with.diagonal().add_(lambda * unit);
      const auto [factor, info] = at::linalg_cholesky_ex(with);
      if (info.item<int32_t>() != 0) continue;
      at::Tensor all = at::zeros({moment_N_.size(0)}, at::kDouble);
      all.index_copy_(0, active, at::cholesky_solve(moment, factor).squeeze(1));
      if (!all_finite(all)) continue;
      solutions.push_back(all);
      lambdas.push_back(lambda);
    }
    if (solutions.empty()) throw DivergedError("no lambda leaves the normal equations definite");
    const at::Tensor error_L = held_out_errors(at::stack(solutions, 1));
    if (!all_finite(error_L)) throw DivergedError("an error on the held-out samples is not finite");
    const auto best = error_L.argmin().item<int64_t>();
    for (size_t l = 0; l < lambdas.size(); ++l) {
      report.metrics[fmt::format("held_out_{:g}", lambdas[l])] =
          error_L[static_cast<int64_t>(l)].item<double>();
    }
    report.metrics["lambda"] = lambdas[static_cast<size_t>(best)];
    experts().w.copy_(w_KJd_);
    experts().b.copy_(b_KJ_);
    experts().a.copy_(solutions[static_cast<size_t>(best)].view_as(experts().a));
    gram_NN_ = moment_N_ = at::Tensor();
  }

  /// Returns the mean squared error of each solution [N, L] over the variance of the targets.
  at::Tensor held_out_errors(const at::Tensor& solution_NL) const {
    at::Tensor squares_L = at::zeros({solution_NL.size(1)}, at::kDouble);
    double sum = 0.0, square = 0.0;
    for (int64_t done = 0; done < config_.num_held_out; done += config_.chunk_size) {
      const int64_t first = plan_.steps + done;
      const Samples block =
          samples(first, std::min(config_.chunk_size, config_.num_held_out - done));
      const at::Tensor y_S = block.y_S.to(at::kDouble);
      at::Tensor off_SL = -y_S.unsqueeze(1).repeat({1, solution_NL.size(1)});
      const Features made = features(block, first);
      for (int64_t k = 0; k < experts().num_experts(); ++k) {
        const auto i = static_cast<size_t>(k);
        off_SL.index_add_(0, made.sample[i],
                          made.value[i].mm(solution_NL.narrow(0, k * hidden(), hidden())));
      }
      squares_L += off_SL.square().sum(0);
      sum += y_S.sum().item<double>();
      square += y_S.square().sum().item<double>();
    }
    const auto count = static_cast<double>(config_.num_held_out);
    return squares_L / (square - sum * sum / count);
  }

  const RidgeConfig& config_;  ///< Part of plan_.
  at::Tensor w_KJd_, b_KJ_;    ///< First layers of the regression.
  at::Tensor gram_NN_, moment_N_;
};

/// Checks that no sample of the steps is held out too.
void plan_ridge(PhasePlan& plan, const SettingLocations& locations, const Model& model,
                const Dataset& data) {
  plan_latent(plan, locations, model, data, 1);
  const int64_t held_out = settings_of<RidgeConfig>(plan.config).num_held_out;
  if (data.is_endless() || plan.steps + held_out <= data.size()) return;
  fail_usage(
      "{0}: phase '{1}': {2} samples of steps and {3} held out are more than the {4} of '{5}'; "
      "choose at most {4} in total",
      locations.find({"num_held_out", "steps", "epochs"}), plan.config.name, plan.steps, held_out,
      data.size(), plan.config.data);
}

}  // namespace

constinit AddPhaseKind add_ridge = add_phase_kind<Ridge, RidgeConfig, plan_ridge>;

}  // namespace moesaic
