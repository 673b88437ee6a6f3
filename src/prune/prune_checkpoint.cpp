// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/prune_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/models/registry.h"
#include "moesaic/ops/device.h"
#include "moesaic/prune/criteria.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

void check_prune_options(const PruneCheckpointOptions& options) {
  check_device(options.device);
  if (criterion_needs_pretrained(options.criterion) && options.pretrained.empty()) {
    fail_usage("prune: criterion '{}' compares with the pre-trained network: give --pretrained",
               options.criterion);
  }
  check_new_folder(options.out, "prune");
}

std::string change(const char* name, double before, double after, int precision) {
  const double percent = before > 0.0 ? 100.0 * (after - before) / before : 0.0;
  return fmt::format("{:<12}{:>16.{}f} -> {:>16.{}f}  ({:+.1f} %)\n", name, before, precision,
                     after, precision, percent);
}

/// Returns the kept experts of a layer, with a bar between the members of an ensemble.
std::string kept_text(const PruneLayerPlan& layer) {
  std::string text;
  int64_t member = 0;
  for (const int64_t id : layer.kept) {
    for (; member < id * layer.members / layer.experts; ++member) text += " |";
    text += fmt::format("{}{}", text.empty() ? "" : " ", id);
  }
  return text;
}

/// Warns if all experts among which a token chooses have the same score, since the choice is then
/// arbitrary.
void warn_of_ties(const PrunePlan& plan) {
  for (const PruneLayerPlan& layer : plan.layers) {
    if (static_cast<int64_t>(layer.kept.size()) == layer.experts) continue;
    const int64_t each = layer.experts / layer.members;
    for (int64_t first = 0; first < layer.experts; first += each) {
      const auto begin = layer.scores.begin() + first;
      const auto [min, max] = std::minmax_element(begin, begin + each);
      if (*min < *max) continue;
      log_warning("prune: block {}: {} gives every expert {}, so the first ones are kept{}",
                  layer.block, plan.criterion, *min,
                  criterion_needs_pretrained(plan.criterion)
                      ? "; are --pretrained and --finetuned the same network?"
                      : "");
      break;
    }
  }
}

/// Checks that both are one network, since the change of router norms means nothing otherwise.
void check_related(const Model& finetuned, const Model& pretrained, const fs::path& folder) {
  const auto before = pretrained.named_parameters();
  for (const auto& item : finetuned.named_parameters()) {
    if (finetuned.may_differ_from_pretrained(item.key())) continue;
    const at::Tensor* other = before.find(item.key());
    if (other != nullptr && other->sizes() == item.value().sizes()) continue;
    fail_usage(
        "prune: --pretrained {} is another network than --finetuned: '{}' is {} there and {} "
        "here",
        folder.string(), item.key(), other == nullptr ? "not" : c10::str(other->sizes()),
        c10::str(item.value().sizes()));
  }
}

}  // namespace

RowsPerToken even_rows_per_token(const Model& model) {
  RowsPerToken rows;
  for (const auto& [block, layer] : model.moe_blocks()) {
    const double fraction =
        static_cast<double>(layer->kept().size()) / static_cast<double>(layer->options().experts);
    const auto& options = layer->options();
    const bool reroutes = nn::pruned_selection(options.rule) == PrunedSelection::reroute;
    const auto kept = static_cast<int64_t>(layer->kept().size());
    rows[block] = nn::rows_per_token(layer->router->evaluation_rule(), model.tokens_per_image(),
                                     reroutes ? kept : options.experts) *
                  (reroutes ? 1.0 : fraction);
  }
  return rows;
}

Footprint footprint(const Model& model) {
  Footprint total;
  total.parameters = model.parameter_count();
  for (const auto& [unused, tensor] : state_of(model)) {
    total.bytes += static_cast<int64_t>(tensor.nbytes());
  }
  total.flops = model.flops_per_image(even_rows_per_token(model));
  return total;
}

PruneCheckpointResult prune_checkpoint(const PruneCheckpointOptions& options) {
  check_prune_options(options);
  Checkpoint checkpoint = load_newest_checkpoint(options.finetuned, {.optimizer = false});
  const auto model = model_of(checkpoint);
  std::shared_ptr<Model> pretrained;
  if (criterion_needs_pretrained(options.criterion)) pretrained = load_model(options.pretrained);
  if (pretrained) check_related(*model, *pretrained, options.pretrained);

  const at::Device device(options.device);
  model->to(device);
  if (pretrained) pretrained->to(device);
  PruneCheckpointResult result;
  result.plan =
      plan_pruning(*model, pretrained.get(), options.criterion, options.keep, options.seed);
  warn_of_ties(result.plan);
  model->to(at::kCPU);
  result.before = footprint(*model);
  apply_plan(*model, result.plan);
  result.after = footprint(*model);

  checkpoint.config["model"] = model->config();
  checkpoint.model = state_of(*model);
  checkpoint.state = {{"pruned", to_json(result.plan)}};
  save_checkpoint(options.out, checkpoint);
  return result;
}

std::string describe(const PruneCheckpointResult& result) {
  std::string text =
      fmt::format("{:>5}  {:>9}  kept by {}\n", "block", "experts", result.plan.criterion);
  for (const PruneLayerPlan& layer : result.plan.layers) {
    text +=
        fmt::format("{:>5}  {:>9}  {}\n", layer.block,
                    fmt::format("{} of {}", layer.kept.size(), layer.experts), kept_text(layer));
  }
  const Footprint &before = result.before, &after = result.after;
  text += change("parameters", static_cast<double>(before.parameters),
                 static_cast<double>(after.parameters), 0);
  text += change("bytes", static_cast<double>(before.bytes), static_cast<double>(after.bytes), 0);
  text += change("MFLOPs", before.flops / 1e6, after.flops / 1e6, 2);
  text += "MFLOPs are for one image whose tokens spread evenly over the experts.\n";
  return text;
}

}  // namespace moesaic
