// SPDX-License-Identifier: Apache-2.0
// Single-sample steps of the latent clusters paper at its size (d 200, 8 experts of 500 neurons, or
// one of 4 000), on all threads. Ours are steps of the phase that a run makes, with its samples,
// routing and checks. A time is that of one sample.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "../../src/papers/latent/spherical_sgd.h"
#include "bench.h"
#include "fma_rate.h"
#include "moesaic/config/document.h"
#include "moesaic/train/run_plan.h"

namespace moesaic::bench {
namespace {

using at::Tensor;

constexpr int64_t kLatentWidth = 200, kLatentNeurons = 4000, kLatentExperts = 8;
constexpr int64_t kLatentBlock = 4096, kLatentEagerBlock = 256;
constexpr double kLatentStep = 1.0 / kLatentNeurons;

/// Where samples go: to one expert by chance, to those of router value >= 0, or all to one.
enum class To { one_of_all, above_zero, single };

/// Two clusters with their means and signals, and routers.
struct LatentSetting {
  To to;
  int64_t experts;
  Tensor directions_Kd;  ///< Signals of the clusters and of both, then the mean's direction.
  Tensor router_Md;

  explicit LatentSetting(To where)
      : to(where),
        experts(where == To::single ? 1 : kLatentExperts),
        directions_Kd(std::get<0>(at::linalg_qr(at::randn({kLatentWidth, 4}))).t().contiguous()),
        router_Md(at::randn({experts, kLatentWidth})) {}
};

Tensor hermite3(const Tensor& z) {
  return (z * z - 3.0) * z * std::sqrt(1.0 / 6.0);
}

/// Targets of x, to which the clusters' means are added.
Tensor finish(const LatentSetting& setting, Tensor& x_Sd) {
  const Tensor sign = at::randint(0, 2, {x_Sd.size(0)}, at::kFloat).mul_(2.0).sub_(1.0);
  x_Sd.addr_(sign, setting.directions_Kd[3]);
  const Tensor z_KS = setting.directions_Kd.mm(x_Sd.t());
  return at::where(sign > 0, hermite3(z_KS[0]), hermite3(z_KS[1])) + sign * hermite3(z_KS[2]);
}

/// Whether a sample goes to an expert, [M, S].
Tensor routes(const LatentSetting& setting, const Tensor& x_Sd) {
  if (setting.to == To::above_zero) return setting.router_Md.mm(x_Sd.t()).ge(0.0);
  const Tensor expert = at::randint(0, setting.experts, {x_Sd.size(0)}, at::kLong);
  return at::arange(setting.experts, at::kLong).unsqueeze(1).eq(expert);
}

RoutedSamples routed(Tensor x_Sd, Tensor y_S, const Tensor& to_MS) {
  RoutedSamples samples{std::move(x_Sd), std::move(y_S), {}, {}, {}};
  samples.sample = to_MS.nonzero().select(1, 1).contiguous();
  samples.offset = at::constant_pad_nd(to_MS.sum(1).cumsum(0), {1, 0});
  samples.gate = at::ones({samples.sample.size(0)});
  return samples;
}

/// The settings of phase I, of phase III from the router of the clusters' means, and of phase I of
/// the single network.
RunConfig run_of(To to) {
  Document run = Document::from_text(R"({
    "name": "bench", "model": {"name": "latent-moe"},
    "phases": [{"name": "steps", "kind": "spherical_sgd", "data": "latent-rho1", "steps": 1000000000}]})",
                                     "bench");
  std::vector<std::string> changes = {c10::str("phases.0.chunk_size=", kLatentBlock)};
  if (to == To::single)
    changes.insert(changes.end(), {"model.num_experts=1", "model.num_neurons=4000"});
  if (to == To::above_zero) {
    changes.insert(changes.end(), {"phases.0.data=latent-rho3", "phases.0.routing=adaptive",
                                   "phases.0.router=ideal", "phases.0.lr=0.125"});
  }
  for (const std::string& change : changes) run.set(change);
  return parse<RunConfig>(run.root());
}

std::unique_ptr<Phase> phase_of(To to, DatasetCache& datasets) {
  const RunConfig run = run_of(to);
  const std::shared_ptr<Model> model = RunStart(run).model();
  const PhasePlan plan = plan_phases(run, *model, datasets).front();
  return phase_kinds()
      .at(plan.config.kind.name())
      .make(plan, {.model = model, .data = datasets.get(plan.config.data, "train"), .seed = 1});
}

SphericalNeurons some_neurons() {
  const Tensor w = at::randn({kLatentNeurons, kLatentWidth});
  return {w / w.norm(2, {1}, true),
          at::randn({kLatentNeurons}).sign(),
          at::rand({kLatentNeurons}) * 2.0 - 1.0,
          {}};
}

/// How the baselines take steps. Both know the gradient by its formula.
enum class Form {
  as_written,  ///< Algorithm 1: project, add, divide by the norms of the rows.
  scaled,      ///< The operator's own algebra: norms by their formula, w = s u with a scale each.
};

/// The steps by ATen, of each expert by itself or of all neurons at once.
class EagerSteps {
 public:
  EagerSteps(const SphericalNeurons& from, const LatentSetting& setting, Form form, bool at_once)
      : setting_(setting), form_(form), parts_(at_once ? 1 : setting.experts) {
    w_ = from.w_Nd.clone();
    scale_ = at::ones({kLatentNeurons});
    const int64_t rows = kLatentNeurons / parts_;
    for (int64_t m = 0; m < parts_; ++m) {
      const auto part = [&](const Tensor& of) { return of.narrow(0, m * rows, rows); };
      part_.push_back({part(w_), part(scale_), part(from.a_N), part(from.b_N)});
    }
  }

  /// Takes a step for each sample of a block.
  void take(const Tensor& x_Sd, const Tensor& y_S, const Tensor& to_MS) {
    const std::vector<Tensor> x = x_Sd.unbind(0);
    const Tensor squares = x_Sd.square().sum(1), to_SM = to_MS.t().contiguous();
    const Tensor gates_SM = to_SM.to(at::kFloat);
    const auto* const to = to_SM.const_data_ptr<bool>();
    const int64_t experts = setting_.experts;
    for (int64_t i = 0; i < x_Sd.size(0); ++i) {
      const double strength = kLatentStep * y_S.const_data_ptr<float>()[i];
      const double square = squares.const_data_ptr<float>()[i];
      for (int64_t m = 0; m < parts_; ++m) {
        if (parts_ == experts && !to[i * experts + m]) continue;
        Tensor gate_N;
        if (parts_ != experts) gate_N = gates_SM[i].repeat_interleave(kLatentNeurons / experts);
        const auto step = form_ == Form::scaled ? scaled_step : written_step;
        step(part_[static_cast<size_t>(m)], x[static_cast<size_t>(i)], square, strength, gate_N);
      }
    }
    w_.mul_(scale_.unsqueeze(1));
    w_.div_(w_.norm(2, {1}, true));
    scale_.fill_(1.0);
  }

  const Tensor& weights() const { return w_; }

 private:
  struct Part {
    Tensor w, scale, a, b;
  };

  static Tensor length(const Part& part, const Tensor& p, double strength, const Tensor& gate_N) {
    Tensor k = at::threshold_backward(part.a, p + part.b, 0.0).mul_(strength);
    return gate_N.defined() ? k.mul_(gate_N) : k;
  }

  static void written_step(Part& part, const Tensor& x, double /*square*/, double strength,
                           const Tensor& gate_N) {
    const Tensor p = at::mv(part.w, x), k = length(part, p, strength, gate_N);
    part.w.mul_((1.0 - k * p).unsqueeze(1)).addr_(k, x);
    part.w.div_(part.w.norm(2, {1}, true));
  }

  static void scaled_step(Part& part, const Tensor& x, double square, double strength,
                          const Tensor& gate_N) {
    const Tensor p = at::mv(part.w, x).mul_(part.scale);
    Tensor k = length(part, p, strength, gate_N);
    const Tensor r = (square - p * p).mul_(k).mul_(k).add_(1.0).rsqrt_();
    part.scale.mul_(p.mul_(k).neg_().add_(1.0).mul_(r));
    part.w.addr_(k.mul_(r).div_(part.scale), x);
  }

  const LatentSetting& setting_;
  Form form_;
  int64_t parts_;
  Tensor w_, scale_;
  std::vector<Part> part_;
};

void check_same_weights(const SphericalNeurons& neurons, const LatentSetting& setting,
                        EagerSteps& eager) {
  SphericalNeurons ours = neurons;
  ours.w_Nd = neurons.w_Nd.clone();
  Tensor x = at::randn({64, kLatentWidth});
  const Tensor y = finish(setting, x), to = routes(setting, x);
  spherical_sgd(ours, routed(x, y, to), kLatentStep);
  eager.take(x, y, to);
  // A neuron with an activation within rounding of the ReLU's kink may make a step in one form
  // only.
  const Tensor same_N = (ours.w_Nd - eager.weights()).abs().amax(1).lt(1e-4);
  const double same = same_N.to(at::kDouble).mean().item<double>();
  if (!(same > 0.999))
    fail("bench latent: {:.3g} % of the neurons agree with the baseline's", 100 * same);
}

/// Steps against the faster way of a form.
Row steps_row(const LatentSetting& setting, Form form, Phase& phase) {
  const SphericalNeurons neurons = some_neurons();
  std::vector<EagerSteps> eager;
  std::vector<std::function<void()>> peers;
  for (const bool at_once : {false, true}) {
    eager.emplace_back(neurons, setting, form, at_once);
    check_same_weights(neurons, setting, eager.back());
  }
  for (EagerSteps& steps : eager) {
    peers.emplace_back([&steps, &setting] {
      Tensor x = at::randn({kLatentEagerBlock, kLatentWidth});
      const Tensor y = finish(setting, x);
      steps.take(x, y, routes(setting, x));
    });
  }
  const Times times = alternate_with_fastest([&] { phase.step(); }, peers).times;
  const bool scaled = form == Form::scaled;
  Row row = faster(
      {times.ours / kLatentBlock, times.peer / kLatentEagerBlock},
      scaled ? std::nullopt : std::optional(25.0),
      scaled ? "eager steps with the operator's own algebra" : "eager steps, gradients by formula");
  row.ours *= 1e3;
  row.peer *= 1e3;
  row.unit = "us";
  return row;
}

void steps_against(To to, const char* name, DatasetCache& datasets, const Report& report) {
  const LatentSetting setting(to);
  const std::unique_ptr<Phase> phase = phase_of(to, datasets);
  for (const Form form : {Form::as_written, Form::scaled}) {
    report(name + std::string(form == Form::scaled ? "_vs_scaled" : ""),
           [&] { return steps_row(setting, form, *phase); });
  }
}

/// The operator's own rate, without what makes its samples: 2 d operations for the product of every
/// routed sample and neuron, and 2 d for each that is active and so moves.
Row update_against_fma() {
  const LatentSetting setting(To::above_zero);
  SphericalNeurons neurons = some_neurons();
  Tensor x_Sd = at::randn({kLatentBlock, kLatentWidth});
  const Tensor y_S = finish(setting, x_Sd);
  const RoutedSamples samples = routed(x_Sd, y_S, routes(setting, x_Sd));
  const auto active = [&] {
    const Tensor p_NS = neurons.w_Nd.mm(samples.x_Sd.t()) + neurons.b_N.unsqueeze(1);
    return p_NS.gt(0.0).to(at::kFloat).mean().item<double>();
  };
  const int64_t threads = at::get_num_threads();
  std::vector<double> peak(static_cast<size_t>(threads));
  const double before = active();
  const Times times = alternate([&] { spherical_sgd(neurons, samples, kLatentStep); },
                                [&] {
                                  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
                                    for (int64_t i = begin; i < end; ++i) {
                                      peak[static_cast<size_t>(i)] = multiply_add(1'000'000);
                                    }
                                  });
                                });
  const auto pairs =
      static_cast<double>(samples.sample.size(0) * (kLatentNeurons / kLatentExperts));
  const double own = pairs * 2.0 * kLatentWidth * (1.0 + std::min(before, active()));
  const double most = std::accumulate(peak.begin(), peak.end(), 0.0);
  return at_least(own / times.ours * 1e-9, most / times.peer * 1e-9, "GFLOP/s", 0.5,
                  "multiply-adds in registers; ratio ours / baseline");
}

}  // namespace

void bench_latent(const Report& report) {
  const at::InferenceMode inference;
  at::manual_seed(1);
  DatasetCache datasets;
  steps_against(To::one_of_all, "cpu/phase1", datasets, report);
  steps_against(To::above_zero, "cpu/phase3", datasets, report);
  steps_against(To::single, "cpu/vanilla", datasets, report);
  report("cpu/update_vs_fma", update_against_fma);
}

}  // namespace moesaic::bench
