// SPDX-License-Identifier: Apache-2.0
// Where routers send the patch that decides the class (pMoE paper, figures 8 and 9).
#include <ATen/ATen.h>

#include <algorithm>

#include "parts.h"

namespace moesaic {
namespace {

std::string name_of(const std::string& what, size_t label) {
  return fmt::format("{}_class_{}", what, label + 1);
}

constexpr const char *kRouted = "routed", *kLargest = "largest_gate", *kAny = "routed_by_any";

/// Groups of the data are the places of the patches that decide, of as many as the network routes.
bool knows_places(const Model& model, const Dataset& data) {
  return model.patch_tokens() && model.num_members() == 1 && !model.moe_blocks().empty() &&
         !data.info().classes.empty() &&
         static_cast<int64_t>(data.info().groups.size()) ==
             model.patch_tokens()->grid.height * model.patch_tokens()->grid.width;
}

/// Returns whether gates differ, so that one of them is the largest.
bool gates_differ(const Model& model) {
  const RouteOptions& rule = model.moe_blocks().back().layer->options().rule;
  return !rule.is_expert_choice() || rule.gate != Gate::one;
}

/// Returns whether expert c was trained for class c, as all that Algorithm 1 trains are: gates are
/// 1, and the network has an expert for each class.
bool has_expert_of_class(const Model& model, int64_t classes) {
  const nn::MoELayer layer = model.moe_blocks().back().layer;
  return !gates_differ(model) && layer->options().num_experts == classes && !layer->is_pruned();
}

}  // namespace

// The probe of where routers send the patch that decides the class, whose place is the group of
// an example: for class c, from 1, "routed_class_c", the percentage of its test examples whose
// patch is sent to expert c where experts are trained separately (lemma 4.1: arg_j(x^(j) = o_c) in
// J_c(w_c, x)), else to the expert that gets it most often; "largest_gate_class_c", where it has
// the largest gate of the expert in which it has that most often, unless all gates are 1; and
// "routed_by_any_class_c".
std::vector<Metric> routed_metrics(const Model& model, const DataSplits& data) {
  const Dataset& test = *data.at("test");
  if (!knows_places(model, test)) return {};
  std::vector<Metric> metrics;
  for (size_t c = 0; c < test.info().classes.size(); ++c) {
    const std::string& name = test.info().classes[c];
    const auto add = [&](const char* what, const char* text) {
      metrics.push_back(amount_metric(
          name_of(what, c), fmt::format("{}: deciding patch {}, %", name, text), 1, 100.0));
    };
    add(kRouted, "to one expert");
    if (gates_differ(model)) add(kLargest, "has largest gate");
    add(kAny, "to any expert");
  }
  return metrics;
}

void measure_routed(ProbedModel& subject, Measurement& measurement) {
  Model& model = subject.model;
  const PatchTokens patches = *model.patch_tokens();
  const auto classes = static_cast<int64_t>(subject.data.at("test")->info().classes.size());
  const auto kept = static_cast<int64_t>(model.moe_blocks().back().layer->kept().size());
  // Counts of examples by class and expert.
  const at::Tensor routed_CK = at::zeros({classes, kept}, at::kDouble);
  const at::Tensor largest_CK = at::zeros_like(routed_CK);
  const at::Tensor any_C = at::zeros({classes}, at::kDouble), all_C = at::zeros_like(any_C);
  const auto count = [&](const EvaluatedBatch& batch) {
    const at::Tensor weight_TK =
        combine_weights(batch.output.routings.back().routing).cpu().to(at::kDouble);
    const at::Tensor& label_B = batch.labels_B;
    const int64_t examples = label_B.size(0), tokens = weight_TK.size(0) / examples;
    const at::Tensor weight_BTK = weight_TK.view({examples, tokens, kept});
    const at::Tensor token_B11 = (batch.groups_B + patches.num_prefix_tokens).view({-1, 1, 1});
    const at::Tensor own_BK = weight_BTK.gather(1, token_B11.expand({-1, 1, kept})).squeeze(1);
    const at::Tensor routed_BK = own_BK.gt(0);
    const at::Tensor largest_BK = routed_BK.logical_and(own_BK.ge(weight_BTK.amax(1)));
    routed_CK.index_add_(0, label_B, routed_BK.to(at::kDouble));
    largest_CK.index_add_(0, label_B, largest_BK.to(at::kDouble));
    any_C.index_add_(0, label_B, routed_BK.any(1).to(at::kDouble));
    all_C.index_add_(0, label_B, at::ones({examples}, at::kDouble));
  };
  constexpr int64_t kBatch = 250;
  evaluate(model, subject.data.at("test"), {.batch_size = kBatch, .on_batch = count});
  for (int64_t c = 0; c < classes; ++c) {
    const double each = 100.0 / std::max(1.0, all_C[c].item<double>());
    const auto label = static_cast<size_t>(c);
    const at::Tensor routed =
        has_expert_of_class(model, classes) ? routed_CK[c][c] : routed_CK[c].max();
    measurement.numbers[name_of(kRouted, label)] = each * routed.item<double>();
    if (gates_differ(model)) {
      measurement.numbers[name_of(kLargest, label)] = each * largest_CK[c].max().item<double>();
    }
    measurement.numbers[name_of(kAny, label)] = each * any_C[c].item<double>();
  }
}

}  // namespace moesaic
