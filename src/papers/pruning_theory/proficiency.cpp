// SPDX-License-Identifier: Apache-2.0
// Proficiency of a router in selecting the patterns that tell the class (pruning paper, section
// 4.2), beside the norm of its weights.
#include <torch/torch.h>

#include <algorithm>

#include "built_in.h"
#include "moesaic/data/dataset_inputs.h"
#include "moesaic/nn/pattern_experts.h"

namespace moesaic {
namespace {

constexpr const char *kProficiency = "proficiency", *kSeparation = "separation",
                     *kFromIdle = "separation_from_idle";
constexpr double kProficient = 0.5;

bool is_of_patterns(const Model& model) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  return blocks.size() == 1 && blocks[0].layer->experts->as<nn::PatternExperts>() != nullptr;
}

std::vector<Metric> proficiency_metrics(const Model& model, const DataSplits&) {
  if (!is_of_patterns(model)) return {};
  return {{kSeparation, "norm of proficient routers over others", 1},
          {kFromIdle, "norm of proficient routers over those of neither class", 1},
          {kProficiency, "proficiency for class 1 (p1) and 2 (p2), and router norm", 4, true}};
}

/// Returns [2, K]: the fraction of the examples of each class in which an expert selects the
/// pattern of that class with a gate of at least 1 / l.
at::Tensor proficiency(Model& model, const Dataset& data) {
  const MoEBlock block = model.moe_blocks()[0];
  const auto kept = static_cast<int64_t>(block.layer->kept().size());
  const auto selected =
      static_cast<double>(std::get<ExpertChoiceOptions>(block.layer->options().rule).rows);
  const DatasetInputs inputs = data.generate(0, data.size());
  at::Tensor found = at::zeros({2, kept}, at::kDouble);
  constexpr int64_t kBatch = 500;
  for (int64_t first = 0; first < data.size(); first += kBatch) {
    const int64_t count = std::min(kBatch, data.size() - first);
    const at::Tensor tokens = inputs.values_NCHW.narrow(0, first, count);
    const at::Tensor label = inputs.labels_N.narrow(0, first, count);
    const Routing routing = model.forward(tokens.to(model.device())).routings.at(0).routing;
    const auto rows = routing.offsets[-1].item<int64_t>();
    const at::Tensor token = routing.token.narrow(0, 0, rows).to(at::kCPU, at::kLong);
    const at::Tensor own = label.index_select(0, token.div(tokens.size(3), "floor"));
    // Logits of a softmax that are equal give gates that are 1 / l but for rounding.
    const at::Tensor sure = routing.gate.narrow(0, 0, rows).cpu().ge((1.0 - 1e-5) / selected);
    const at::Tensor hit = tokens.flatten().index_select(0, token).eq(own).logical_and(sure);
    const at::Tensor expert = row_experts(routing).narrow(0, 0, rows).cpu().masked_select(hit);
    found.view({-1}).index_add_(0, own.masked_select(hit) * kept + expert,
                                at::ones({expert.size(0)}, at::kDouble));
  }
  const at::Tensor examples = inputs.labels_N.bincount({}, 2).to(at::kDouble);
  return found / examples.clamp_min(1.0).unsqueeze(1);
}

void measure_proficiency(ProbeSubject& subject, Measurement& measurement) {
  const nn::MoELayer layer = subject.model().moe_blocks()[0].layer;
  const at::Tensor p_2K = proficiency(subject.model(), subject.data("test"));
  const std::vector<int64_t> kept = layer->kept();
  const at::Tensor sign = layer->experts->as<nn::PatternExperts>()->sign.cpu();
  MeasuredTable table{{}, {"p1", "p2", "router norm"}, {}};
  double least = 0.0, largest = 0.0, largest_idle = 0.0;
  bool any = false;
  for (size_t k = 0; k < kept.size(); ++k) {
    const auto slot = static_cast<int64_t>(k);
    const double norm = layer->router->weight[kept[k]].norm(2, at::kDouble).item<double>();
    const double p1 = p_2K[0][slot].item<double>(), p2 = p_2K[1][slot].item<double>();
    table.rows.push_back("expert " + std::to_string(kept[k] + 1));
    table.values.push_back({p1, p2, norm});
    const bool proficient = (sign[slot].item<float>() > 0 ? p1 : p2) >= kProficient;
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

}  // namespace

Probe proficiency_probe() {
  return {.meaning = "how well routers select the patterns that tell the class, and their norms",
          .metrics = proficiency_metrics,
          .measure = measure_proficiency};
}

}  // namespace moesaic
