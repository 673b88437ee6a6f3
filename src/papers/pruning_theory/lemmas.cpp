// SPDX-License-Identifier: Apache-2.0
// Probes of the pruning paper's lemmas 4.1, 4.2 and 4.4, with the constants of their full versions
// (D.1, F.1, H.1), and of the norms of figure 3a.
#include <ATen/ATen.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <variant>

#include "moesaic/papers/pruning_theory.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"
#include "own_pattern.h"

namespace moesaic {
namespace {

/// What the lemmas say of an expert s; its own pattern o is o_1 where a(s) = +1, else o_2.
struct ExpertState {
  double start_p = 0.0;    ///< p^(s,0), see OwnPatternGates::proficiency().
  double p = 0.0;          ///< p^(s,t)
  double gate = 0.0;       ///< Least G_j^(s,t)(x) over the examples of the class, x^(j) = o.
  double mass = 0.0;       ///< Its mean.
  double change = 0.0;     ///< Delta_s^(t) = |w_s^(t)| - |w_s^(0)|
  double along = 0.0;      ///< Fraction of the neurons whose largest component is along o.
  double component = 0.0;  ///< <w_r^(s,t), o> that a quarter of the neurons r reach.
};

struct Layer {
  nn::MoELayer moe;
  const nn::PatternExpertsImpl& experts;  ///< Of `moe`.

  explicit Layer(const Model& model)
      : moe(*find_layer_of<nn::PatternExperts>(model)),
        experts(*moe->experts->as<nn::PatternExperts>()) {}
  double norm(int64_t expert) const {
    return moe->router->weight[expert].norm(2, at::kDouble).item<double>();
  }
};

std::vector<ExpertState> states_of(ProbedModel& subject, Model& start) {
  const Layer now(subject.model()), before(start);
  const std::shared_ptr<const Dataset> data = subject.shared_data("test");
  const at::Tensor start_2K = own_pattern_gates(start, data).proficiency();
  const OwnPatternGates own = own_pattern_gates(subject.model(), data);
  const at::Tensor p_2K = own.proficiency();
  const at::Tensor mass_2K = own.class_means(own.gate_NK.to(at::kDouble));
  const std::vector<int64_t> kept = now.moe->kept();
  std::vector<ExpertState> states;
  for (size_t k = 0; k < kept.size(); ++k) {
    const auto slot = static_cast<int64_t>(k);
    const int64_t c = now.experts.sign[slot].item<float>() > 0.0F ? 0 : 1;
    const at::Tensor gate_N = own.gate_NK.select(1, slot).masked_select(own.label_N.eq(c));
    const at::Tensor w_dm = now.experts.w[slot].detach().to(at::kCPU, at::kDouble);
    states.push_back({.start_p = start_2K[c][kept[k]].item<double>(),
                      .p = p_2K[c][slot].item<double>(),
                      .gate = gate_N.numel() > 0 ? gate_N.min().item<double>() : 0.0,
                      .mass = mass_2K[c][slot].item<double>(),
                      .change = now.norm(kept[k]) - before.norm(kept[k]),
                      .along = w_dm.argmax(0).eq(c).to(at::kDouble).mean().item<double>(),
                      .component = at::quantile(w_dm[c], 0.75).item<double>()});
  }
  return states;
}

Metric found(const char* name, const char* label, int digits = 3) {
  Metric metric = amount_metric(name, label, digits);
  metric.is_optional = true;  // Without an expert of the kind there is nothing to measure.
  return metric;
}

Metric found_fraction(const char* name, const char* label) {
  Metric metric = found(name, label);
  metric.max = 1.0;
  return metric;
}

std::vector<Metric> lemmas_metrics(const Model& model, const DataSplits&) {
  const auto layer = find_layer_of<nn::PatternExperts>(model);
  if (!layer || std::get<ExpertChoiceOptions>((*layer)->options().rule).rows < 2) return {};
  Metric norm = found("important_norm", "4.1 iv: least norm change of important routers / log l");
  norm.min = std::numeric_limits<double>::lowest();
  return {
      amount_metric("important", "experts important before training: p >= 0.1", 0),
      found_fraction("important_p", "4.1 i: least proficiency of important experts"),
      found_fraction("important_gate", "4.1 ii: least gate of important experts"),
      found_fraction("important_mass", "mean gate of important experts, least of an expert"),
      found_fraction("important_along", "4.1 iii: least fraction of neurons along the own pattern"),
      found("important_component", "4.1 iii: least component over l C2 sqrt(d log l)"),
      norm,
      found("unimportant_p", "4.2 i: largest proficiency of unimportant experts x d", 2),
      found("unimportant_norm", "4.2 ii: largest norm change of unimportant routers / bound"),
      amount_metric("grown", "experts whose router grew by more than 1.5 log l", 0),
      found_fraction("grown_p", "4.4 i: least proficiency of grown experts"),
      found_fraction("grown_gate", "4.4 ii: least gate of grown experts"),
      found("grown_component", "4.4, eq. 12: least component over k l^2 C2 sqrt(log l)")};
}

void measure_lemmas(ProbedModel& subject, Measurement& measurement) {
  constexpr double kImportant = 0.1;  // Omega(1)
  const std::shared_ptr<Model> start = subject.initial_model();
  const Layer first(*start);
  const auto d = static_cast<double>(first.moe->options().width);
  const auto k = static_cast<double>(first.moe->options().num_experts);
  const auto l = static_cast<double>(std::get<ExpertChoiceOptions>(first.moe->options().rule).rows);
  const double log_l = std::log(l), root = std::sqrt(log_l);
  const double c2 = first.experts.w.square().sum({1}).max().sqrt().item<double>();
  const double bound = log_l * log_l / std::sqrt(d) + std::pow(l * l * log_l / d, 2.0);
  std::map<std::string, double>& numbers = measurement.numbers;
  const auto least = [&](const char* name, double value) {
    const auto [at, is_new] = numbers.try_emplace(name, value);
    at->second = std::min(at->second, value);
  };
  const auto largest = [&](const char* name, double value) {
    const auto [at, is_new] = numbers.try_emplace(name, value);
    at->second = std::max(at->second, value);
  };
  numbers["important"] = numbers["grown"] = 0.0;
  for (const ExpertState& s : states_of(subject, *start)) {
    if (s.start_p >= kImportant) {
      numbers["important"] += 1.0;
      least("important_p", s.p);
      least("important_gate", s.gate);
      least("important_mass", s.mass);
      least("important_along", s.along);
      least("important_component", s.component / (l * c2 * std::sqrt(d) * root));
      least("important_norm", s.change / log_l);
    } else if (s.start_p <= 1.0 / d) {
      largest("unimportant_p", s.p * d);
      largest("unimportant_norm", std::max(s.change, 0.0) / bound);
    }
    if (s.change > 1.5 * log_l) {
      numbers["grown"] += 1.0;
      least("grown_p", s.p);
      least("grown_gate", s.gate);
      least("grown_component", s.component / (k * l * l * c2 * root));
    }
  }
}

constexpr const char* kNorms = "norms";

std::vector<Metric> norms_metrics(const Model& model, const DataSplits&) {
  if (!find_layer_of<nn::PatternExperts>(model)) return {};
  return {table_metric(kNorms, "norms of weights by expert", 4)};
}

void measure_norms(ProbedModel& subject, Measurement& measurement) {
  const Layer layer(subject.model());
  const std::vector<int64_t> kept = layer.moe->kept();
  MeasuredTable table{{"routers", "mean of neurons"}, {}, {{}, {}}};
  for (size_t slot = 0; slot < kept.size(); ++slot) {
    table.columns.push_back("expert " + std::to_string(kept[slot] + 1));
    table.values[0].push_back(layer.norm(kept[slot]));
    const at::Tensor w_dm = layer.experts.w[static_cast<int64_t>(slot)].to(at::kDouble);
    table.values[1].push_back(w_dm.square().sum({0}).sqrt().mean().item<double>());
  }
  measurement.tables[kNorms] = std::move(table);
}

}  // namespace

[[maybe_unused]] const bool kLemmaProbes =
    // The probe of what the lemmas claim of experts s for their own pattern o (o_1 where a(s) is
    // +1, else o_2), against the network before training, with C_2 = max |w_r^(s,0)|:
    //   4.1, of important experts, p^(s,0) >= 0.1: (i) p^(s,T) = 1; (ii) G_j^(s,T)(x) > 1/2 where
    //     x^(j) = o; (iii) <w_r^(s,T), o> = Omega(l C_2 sqrt(d log l)) for a constant fraction of
    //     the neurons r, here a quarter; (iv) Delta_s^(T) > (3/2) log l;
    //   4.2, of unimportant ones, p^(s,0) <= 1/d: (i) p^(s,T) = O(1/d); (ii) Delta_s^(T) =
    //     O(log^2 l / sqrt(d)) + O(l^4 log^2 l / d^2);
    //   4.4, of those with Delta_s^(T) > (3/2) log l: (i), (ii) as 4.1; after recovery (eq. 12)
    //     <w_r, o> = Omega(k l^2 C_2 sqrt(log l)) for a constant fraction of r. "grown" are those
    //     with that Delta_s^(t) at the step t that is measured: the lemma's at the end T of
    //     fine-tuning, for (i) and (ii); after T' steps of recovery, for eq. 12, also experts that
    //     grew beyond the bound since then, and none that fell below it.
    // Each metric is the expert farthest from the claim, components and changes over these bounds.
    probes().add("lemmas", {.description = "proficiency, gates, neurons and norms of the expert "
                                           "farthest from lemmas 4.1, 4.2 and 4.4 (pruning paper)",
                            .metrics = lemmas_metrics,
                            .measure = measure_lemmas}) &&
    probes().add("norms", {.description = "norms of routers and neurons by expert (pruning paper, "
                                          "figure 3a)",
                           .metrics = norms_metrics,
                           .measure = measure_norms});

}  // namespace moesaic
