// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/prune_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"
#include "moesaic/models/registry.h"
#include "panels.h"

namespace moesaic {
namespace {

struct Search {
  const Checkpoint& checkpoint;
  std::shared_ptr<const Dataset> data;
  const PruneSearchOptions& options;
  PrunePlan ranking;  ///< It keeps all experts.
  const KeepSpec& keep;
  std::shared_ptr<const Model> shape;
  ExpertRankings rankings = {};
  int64_t at_most = 1;
  PruneSearch result = {};

  PruneSearch run() {
    for (const PruneLayerPlan& layer : ranking.layers) {
      rankings[layer.block] = {layer.scores, layer.products_EE};
    }
    result = {.plan = ranking, .method = options.method, .max_drop = options.max_drop};
    add_point(ranking, accuracy_of(ranking));
    options.method == kGreedy ? search_greedily() : bisect();
    return std::move(result);
  }

  double accuracy_of(const PrunePlan& plan) {
    const std::shared_ptr<Model> model = model_of(checkpoint);
    apply_plan(*model, plan);
    EvaluateOptions evaluate_options = options.evaluate;
    evaluate_options.on_progress = [this](int64_t, int64_t) {
      if (options.progress) options.progress(result.num_evaluations, at_most);
      return true;
    };
    model->to(at::Device(options.device));
    const Evaluation evaluation = evaluate(*model, data, evaluate_options);
    ++result.num_evaluations;
    return evaluation.metric("accuracy");
  }

  void add_point(const PrunePlan& plan, double accuracy) {
    const std::shared_ptr<Model> pruned = meta_copy(*shape);
    apply_plan(*pruned, plan);
    const double parameters = static_cast<double>(pruned->num_parameters()) /
                              static_cast<double>(shape->num_parameters());
    std::vector<size_t> counts;
    for (const PruneLayerPlan& layer : plan.layers) counts.push_back(layer.kept.size());
    result.points.push_back({fmt::format("{}", fmt::join(counts, ", ")), parameters, accuracy});
  }

  /// Adds the plan, and keeps it where it is near. Returns whether it is.
  bool take(const PrunePlan& plan, double accuracy) {
    add_point(plan, accuracy);
    if (!result.is_within_drop(accuracy)) return false;
    result.plan = plan;
    result.chosen = result.points.size() - 1;
    return true;
  }

  /// Returns the plan of this many experts of the network, or of each group that has as many.
  PrunePlan plan_with(int64_t count) const {
    PrunePlan plan = ranking;
    KeptExperts kept;
    if (keep.scope() == KeepScope::network) {
      KeepSpec of_network = KeepSpec::count(count);
      of_network.set_scope(keep.scope());
      of_network.exclude_blocks(keep.excluded_blocks());
      kept = choose_experts(*shape, of_network, rankings);
    } else {
      for (const MoEBlock& block : shape->moe_blocks()) {
        if (keep.rule_of(block.block) == nullptr) continue;
        kept[block.block] = best_experts(block, rankings.at(block.block), count);
      }
    }
    for (PruneLayerPlan& layer : plan.layers) {
      if (kept.contains(layer.block)) layer.kept = kept.at(layer.block);
    }
    return plan;
  }

  void bisect() {
    const CountRange range = count_range(*shape, keep);
    int64_t bad = range.min - 1, good = range.max;
    at_most = 2;
    for (int64_t width = good - bad; width > 1; width = (width + 1) / 2) ++at_most;
    while (good - bad > 1) {
      const int64_t middle = bad + (good - bad) / 2;
      const PrunePlan plan = plan_with(middle);
      (take(plan, accuracy_of(plan)) ? good : bad) = middle;
    }
  }

  /// Removes the expert of lowest score of each group of a layer, of that which costs least.
  void search_greedily() {
    for (const PruneLayerPlan& layer : ranking.layers) {
      at_most += std::ssize(ranking.layers) * (layer.num_experts / layer.num_groups - 1);
    }
    for (;;) {
      std::optional<PrunePlan> best;
      double best_accuracy = 0.0;
      for (size_t i = 0; const MoEBlock& block : shape->moe_blocks()) {
        PrunePlan next = result.plan;
        std::vector<int64_t>& kept = next.layers[i++].kept;
        if (keep.rule_of(block.block) == nullptr) continue;
        auto left = without_worst(block, kept, rankings.at(block.block));
        if (!left) continue;
        kept = std::move(*left);
        const double accuracy = accuracy_of(next);
        if (best && accuracy <= best_accuracy) continue;
        best = std::move(next);
        best_accuracy = accuracy;
      }
      if (!best || !take(*best, best_accuracy)) return;
    }
  }
};

std::vector<PrunePoint> by_size(const PruneSearch& search) {
  std::vector<PrunePoint> points = search.points;
  std::ranges::stable_sort(points, std::greater<>(), &PrunePoint::parameters);
  return points;
}

}  // namespace

PruneSearch search_pruning(const PruneCheckpointOptions& options, const Checkpoint& checkpoint,
                           const std::shared_ptr<const Dataset>& data,
                           const PruneSearchOptions& search) {
  if (data->info().classes.empty()) {
    fail_usage("--max-drop needs an accuracy, but '{}' has no classes; choose --keep",
               data->info().name);
  }
  const std::shared_ptr<Model> shape = meta_model_of(checkpoint);
  PruneCheckpointOptions whole = options;
  whole.prune.keep = KeepSpec();
  PrunePlan ranking = plan_checkpoint(whole, checkpoint, *shape);
  std::vector<int64_t> blocks;
  for (const PruneLayerPlan& layer : ranking.layers) blocks.push_back(layer.block);
  options.prune.keep.check_blocks(blocks);
  return Search{checkpoint, data, search, std::move(ranking), options.prune.keep, shape}.run();
}

std::string to_text(const PruneSearch& search) {
  TextTable table({"experts of each layer", "parameters, %", "accuracy, %", ""});
  for (const PrunePoint& point : by_size(search)) {
    const char* verdict = search.is_within_drop(point.accuracy) ? "" : "too low";
    if (point.experts == search.plan_point().experts) verdict = "chosen";
    table.add({point.experts, fmt::format("{:.1f}", 100.0 * point.parameters),
               fmt::format("{:.2f}", point.accuracy), verdict});
  }
  const double points = 100.0 * search.max_drop;
  return fmt::format(
      "{}, {}: smallest network whose accuracy is at most {:g} {} below the unpruned network's"
      "\n\n{}",
      search.method, count_text(search.num_evaluations, "evaluation"), points,
      points == 1.0 ? "point" : "points", table.text());
}

Figure search_figure(const PruneSearch& search, const std::string& stem) {
  std::string data = "# parameters, %\taccuracy, %\n";
  std::vector<double> sizes, accuracies;
  for (const PrunePoint& point : by_size(search)) {
    data += fmt::format("{:.3f}\t{:.4f}\n", 100.0 * point.parameters, point.accuracy);
    sizes.push_back(100.0 * point.parameters);
    accuracies.push_back(point.accuracy);
  }
  const PrunePoint& found = search.plan_point();
  const double bar = search.lowest_accuracy();
  accuracies.push_back(bar);
  Panel panel{
      fmt::format("{}{}  set xrange {}\n  set yrange {}\n"
                  "  set key at graph 0, 1.03 left bottom horizontal Left reverse samplen 2 "
                  "textcolor rgb ink\n",
                  axis_label("x", "parameters kept, %"), axis_label("y", "accuracy, %"),
                  padded_range(sizes), padded_range(accuracies))};
  panel.plots.push_back(fmt::format(
      "{:.4f} with lines lc rgb colour_of(2) dt (6, 4) lw 2 title 'lowest allowed'", bar));
  panel.plot(data, "using 1:2 with linespoints lc rgb colour_of(1) lw 2 pt 7 ps 0.9 title " +
                       gnuplot_quoted("tried by " + search.method));
  panel.plot(fmt::format("# chosen\n{:.3f}\t{:.4f}\n", 100.0 * found.parameters, found.accuracy),
             "using 1:2 with points lc rgb colour_of(1) pt 6 ps 2.2 lw 2 title 'chosen'");
  return panel_figure(stem, {panel}, {.width = 560, .height = 340});
}

}  // namespace moesaic
