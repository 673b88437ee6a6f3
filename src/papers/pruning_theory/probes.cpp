// SPDX-License-Identifier: Apache-2.0
// Probes of the pruning paper: projections of single neurons on the data's known directions, of the
// experts that fine-tuning made most and least of (figures 3 and 7); the proficiency of a router in
// selecting the patterns that tell the class (section 4.2), beside the norm of its weights; and, of
// the theory, lemmas 4.1, 4.2 and 4.4, with the constants of their full versions (D.1, F.1, H.1),
// and the norms of figure 3a.
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "parts.h"

namespace moesaic {
namespace {

/// Gates of the one token of each of N examples that has the pattern of its class, o_1 or o_2, by
/// the K experts that a network has.
struct OwnPatternGates {
  at::Tensor gate_NK;    ///< G_j^(s)(x), float32; 0 where the expert does not select the token.
  at::Tensor label_N;    ///< int64, 0 with o_1.
  int64_t selected = 1;  ///< l

  /// Returns [2, K] float64: p_1 and p_2, the fractions of each class's examples in which an
  /// expert selects the token with a gate of at least 1 / l (section 4.2).
  at::Tensor proficiency() const {
    // Logits of a softmax that are equal give gates that are 1 / l but for rounding.
    const double full = (1.0 - 1e-5) / static_cast<double>(selected);
    return class_means(gate_NK.ge(full).to(at::kDouble));
  }
  /// Returns [2, K]: means of values_NK (float64) over the examples of each class.
  at::Tensor class_means(const at::Tensor& values_NK) const {
    const at::Tensor member_2N = at::stack({label_N.eq(0), label_N.eq(1)}).to(at::kDouble);
    return member_2N.mm(values_NK) / member_2N.sum(1, /*keepdim=*/true).clamp_min(1.0);
  }
};

/// Computes them for a pattern-moe on a split of its data.
OwnPatternGates own_pattern_gates(Model& model, const std::shared_ptr<const Dataset>& data) {
  const MoEBlock block = model.moe_blocks()[0];
  const auto kept = static_cast<int64_t>(block.layer->kept().size());
  std::vector<at::Tensor> gates, labels;
  const auto add = [&](const EvaluatedBatch& batch) {
    const at::Tensor tokens = batch.images_BCHW.cpu(), &label = batch.labels_B;
    const Routing& routing = batch.output.routings.at(0).routing;
    const auto rows = routing.offsets[-1].item<int64_t>();
    const at::Tensor token = routing.token.narrow(0, 0, rows).to(at::kCPU, at::kLong);
    const at::Tensor example = token.div(tokens.size(3), "floor");
    const at::Tensor is_own =
        tokens.flatten().index_select(0, token).eq(label.index_select(0, example));
    const at::Tensor expert = row_experts(routing).narrow(0, 0, rows).to(at::kCPU, at::kLong);
    at::Tensor gate_BK = at::zeros({label.size(0), kept}, at::kFloat);
    gate_BK.view({-1}).index_add_(
        0, (example * kept + expert).masked_select(is_own),
        routing.gate.narrow(0, 0, rows).to(at::kCPU, at::kFloat).masked_select(is_own));
    gates.push_back(gate_BK);
    labels.push_back(label);
  };
  constexpr int64_t kBatch = 500;
  evaluate(model, data, {.batch_size = kBatch, .on_batch = add});
  return {at::cat(gates), at::cat(labels), block.layer->options().rule.l};
}

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
  const Layer now(subject.model), before(start);
  const std::shared_ptr<const Dataset> data = subject.data.at("test");
  const at::Tensor start_2K = own_pattern_gates(start, data).proficiency();
  const OwnPatternGates own = own_pattern_gates(subject.model, data);
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

Metric found(const char* name, const char* label, int digits = 3, double most = Metric().max) {
  Metric metric = amount_metric(name, label, digits, most);
  metric.is_optional = true;  // Without an expert of the kind there is nothing to measure.
  return metric;
}

Metric found_fraction(const char* name, const char* label) {
  return found(name, label, 3, 1.0);
}

constexpr const char* kNorms = "norms";

/// Calls `add` with weights, direction and their names for each pair that can be multiplied.
void for_each_pair(const Model& model, const Dataset& data, auto add) {
  if (model.moe_blocks().size() != 1) return;
  for (const auto& [weights, w_EJd] : model.weight_directions()) {
    const auto present = static_cast<int64_t>(model.moe_blocks()[0].layer->kept().size());
    if (w_EJd.size(0) != present) continue;
    for (const auto& [direction, v_Kd] : data.directions()) {
      if (w_EJd.size(2) == v_Kd.size(1)) add(weights, w_EJd, direction, v_Kd);
    }
  }
}

std::string table_name(const std::string& weights, const std::string& direction, int64_t group) {
  return fmt::format("single_{}_{}_{}", weights, direction, group + 1);
}

/// Returns the slots of a group's experts with the largest and the smallest router norm; one where
/// it has no other, none where it is empty.
std::vector<int64_t> extremes(const MoEBlock& block, int64_t group) {
  const std::vector<int64_t> kept = block.layer->kept();
  std::optional<int64_t> most, least;
  std::vector<double> norms;
  for (size_t slot = 0; slot < kept.size(); ++slot) {
    const at::Tensor& weight = block.layer->router->weight;
    norms.push_back(weight[kept[slot]].norm(2, at::kDouble).item<double>());
    if (kept[slot] * block.num_ranked_groups() / block.layer->options().num_experts != group)
      continue;
    const auto at = static_cast<int64_t>(slot);
    if (!most || norms[slot] > norms[static_cast<size_t>(*most)]) most = at;
    if (!least || norms[slot] < norms[static_cast<size_t>(*least)]) least = at;
  }
  if (!most) return {};
  return *most == *least ? std::vector<int64_t>{*most} : std::vector<int64_t>{*most, *least};
}

MeasuredTable table_of(const MoEBlock& block, int64_t group, const at::Tensor& w_EJd,
                       const std::string& direction, const at::Tensor& v_Kd) {
  MeasuredTable table{{}, numbered(direction + " ", v_Kd.size(0)), {}};
  for (const int64_t slot : extremes(block, group)) {
    const at::Tensor products_JK =
        w_EJd[slot].to(at::kCPU, at::kDouble).mm(v_Kd.to(at::kCPU, at::kDouble).t());
    const auto at = products_JK.accessor<double, 2>();
    const int64_t id = block.layer->kept()[static_cast<size_t>(slot)];
    for (int64_t j = 0; j < at.size(0); ++j) {
      table.rows.push_back(fmt::format("expert {}", id + 1));
      if (at.size(0) > 1) table.rows.back() += fmt::format(", neuron {}", j + 1);
      table.values.emplace_back();
      // As a figure shows it: every run's table is kept.
      for (int64_t k = 0; k < at.size(1); ++k) {
        table.values.back().push_back(std::round(1e5 * at[j][k]) / 1e5);
      }
    }
  }
  return table;
}

constexpr const char *kProficiency = "proficiency", *kSeparation = "separation",
                     *kFromIdle = "separation_from_idle";
constexpr double kProficient = 0.5;

}  // namespace

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
std::vector<Metric> lemmas_metrics(const Model& model, const DataSplits&) {
  const auto layer = find_layer_of<nn::PatternExperts>(model);
  if (!layer || (*layer)->options().rule.l < 2) return {};
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
  const std::shared_ptr<Model> start = subject.start();
  const Layer first(*start);
  const auto d = static_cast<double>(first.moe->options().width);
  const auto k = static_cast<double>(first.moe->options().num_experts);
  const auto l = static_cast<double>(first.moe->options().rule.l);
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

std::vector<Metric> norms_metrics(const Model& model, const DataSplits&) {
  if (!find_layer_of<nn::PatternExperts>(model)) return {};
  return {table_metric(kNorms, "norms of weights by expert", 4)};
}

void measure_norms(ProbedModel& subject, Measurement& measurement) {
  const Layer layer(subject.model);
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

// The probe of single neurons' and routers' products with the data's known directions, in networks
// of one MoE layer: for weights "a" and directions "b" a table "single_a_b_<g>" for each group of
// experts that pruning ranks apart, with a row for every vector of the expert with the largest
// router and of that with the smallest.
std::vector<Metric> neurons_metrics(const Model& model, const DataSplits& data) {
  std::vector<Metric> metrics;
  for_each_pair(model, *data.at("train"),
                [&](const std::string& weights, const at::Tensor&, const std::string& direction,
                    const at::Tensor&) {
                  const int64_t groups = model.moe_blocks()[0].num_ranked_groups();
                  for (int64_t g = 0; g < groups; ++g) {
                    metrics.push_back(table_metric(
                        table_name(weights, direction, g),
                        fmt::format("single {} and {}{}: <w, v>", weights, direction,
                                    groups > 1 ? fmt::format(", group {}", g + 1) : ""),
                        4));
                  }
                });
  return metrics;
}

void measure_neurons(ProbedModel& subject, Measurement& measurement) {
  for_each_pair(subject.model, *subject.data.at("train"),
                [&](const std::string& weights, const at::Tensor& w_EJd,
                    const std::string& direction, const at::Tensor& v_Kd) {
                  const MoEBlock block = subject.model.moe_blocks()[0];
                  for (int64_t g = 0; g < block.num_ranked_groups(); ++g) {
                    measurement.tables[table_name(weights, direction, g)] =
                        table_of(block, g, w_EJd, direction, v_Kd);
                  }
                });
}

std::vector<Metric> proficiency_metrics(const Model& model, const DataSplits&) {
  if (!find_layer_of<nn::PatternExperts>(model)) return {};
  return {
      amount_metric(kSeparation, "norm of proficient routers over others", 1),
      amount_metric(kFromIdle, "norm of proficient routers over those of neither class", 1),
      table_metric(kProficiency, "proficiency for class 1 (p1) and 2 (p2), and router norm", 4)};
}

void measure_proficiency(ProbedModel& subject, Measurement& measurement) {
  const Layer layer(subject.model);
  const at::Tensor p_2K = own_pattern_gates(subject.model, subject.data.at("test")).proficiency();
  const std::vector<int64_t> kept = layer.moe->kept();
  MeasuredTable table{{}, {"p1", "p2", "router norm"}, {}};
  double least = 0.0, largest = 0.0, largest_idle = 0.0;
  bool any = false;
  for (size_t k = 0; k < kept.size(); ++k) {
    const auto slot = static_cast<int64_t>(k);
    const double norm = layer.norm(kept[k]), p1 = p_2K[0][slot].item<double>(),
                 p2 = p_2K[1][slot].item<double>();
    table.rows.push_back("expert " + std::to_string(kept[k] + 1));
    table.values.push_back({p1, p2, norm});
    const bool proficient = (layer.experts.sign[slot].item<float>() > 0 ? p1 : p2) >= kProficient;
    if (proficient) least = any ? std::min(least, norm) : norm;
    if (!proficient) largest = std::max(largest, norm);
    // An expert may also learn the other class's pattern, to select it and give nothing.
    if (std::max(p1, p2) < kProficient) largest_idle = std::max(largest_idle, norm);
    any = any || proficient;
  }
  measurement.tables[kProficiency] = std::move(table);
  // Without experts of either kind nothing is separated.
  const auto over = [&](double norm) { return any && norm > 0.0 ? least / norm : 0.0; };
  measurement.numbers[kSeparation] = over(largest);
  measurement.numbers[kFromIdle] = over(largest_idle);
}

}  // namespace moesaic
