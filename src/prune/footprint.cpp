// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/prune/prune_checkpoint.h"

namespace moesaic {
namespace {

/// Returns the rows per token that `count` gives all experts of each layer, less the removed ones'.
RowsPerToken rows_of_kept(const Model& model, const auto& count) {
  RowsPerToken rows;
  for (const auto& [block, layer, unused] : model.moe_blocks()) {
    const int64_t kept = std::ssize(layer->kept()), all = layer->options().num_experts;
    const bool is_rerouted =
        nn::pruned_selection(layer->options().rule) == PrunedSelection::reroute;
    const bool computes_all = is_rerouted || !layer->merged_into.empty();
    const double fraction =
        computes_all ? 1.0 : static_cast<double>(kept) / static_cast<double>(all);
    rows[block] = fraction * count(layer->router->evaluation_rule(), model.tokens_per_image(),
                                   is_rerouted ? kept : all);
  }
  return rows;
}

}  // namespace

RowsPerToken even_rows_per_token(const Model& model) {
  return rows_of_kept(model, nn::rows_per_token);
}

Footprint footprint(const Model& model) {
  Footprint total;
  total.num_parameters = model.num_parameters();
  total.bytes = static_cast<int64_t>(bytes_of(state_of(model)));
  total.flops = model.flops_per_image(even_rows_per_token(model));
  total.capacity_flops = model.flops_per_image(rows_of_kept(model, nn::capacity_rows_per_token));
  return total;
}

}  // namespace moesaic
