// SPDX-License-Identifier: Apache-2.0
// What a sweep makes, and its plan as text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "experiment_run.h"
#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/models/registry.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {
namespace {

/// Whether the name is that of a number of experts, "keep4".
bool is_count(const std::string& name) {
  constexpr std::string_view kKeep = "keep";
  return name.starts_with(kKeep) && name.size() > kKeep.size() &&
         std::isdigit(static_cast<unsigned char>(name[kKeep.size()])) != 0;
}

/// Returns what is wrong with the phases before and after pruning.
ConfigProblem phases_problem(const SweepConfig& config, const RunConfig& train) {
  if (train.phases.size() < 2 && train.init.empty()) {
    return {"train.phases must pretrain and fine-tune; give two phases, or train.init",
            {"train.phases"}};
  }
  if (!config.finetuned.empty() && train.init.empty()) {
    return {
        "finetuned takes the place of train's phases and needs train.init, which criteria compare "
        "with",
        {"finetuned"}};
  }
  for (size_t i = 0; i < train.phases.size(); ++i) {
    if (!train.phases[i].on_entry.prune) continue;
    return {"phases of train cannot prune, since the sweep prunes what they leave; leave it out",
            {fmt::format("train.phases.{}.on_entry.prune", i)}};
  }
  const EntryConfig& entry = config.recover->on_entry;
  if (entry.prune || entry.upcycle || !entry.restore.empty()) {
    return {
        "recovery trains the pruned network as it is; leave out 'prune', 'upcycle' and "
        "'restore'",
        {"recover.on_entry"}};
  }
  if (config.recover->data == train.phases.back().data) return {};
  return {
      fmt::format("recover.data is '{0}', but the last phase of train was on '{1}'; choose '{1}'",
                  config.recover->data, train.phases.back().data),
      {"recover.data", fmt::format("train.phases.{}.data", train.phases.size() - 1)}};
}

/// Returns the name of a choice with the experts of each layer, if scores do not decide how many;
/// of an ensemble a member's, or their mean, as numbers to keep are.
std::string choice_text(const std::string& name, const KeepSpec& keep, const Model& model) {
  const KeptExperts kept = check_keep(model, keep);
  if (keep.rule_of_network() != nullptr) return name;
  std::vector<double> counts;
  for (const MoEBlock& block : model.moe_blocks()) {
    counts.push_back(static_cast<double>(kept.at(block.block).size()) /
                     static_cast<double>(block.num_ranked_groups()));
  }
  return fmt::format("{} ({:.3g})", name, fmt::join(counts, ", "));
}

/// Returns the max number of experts of a layer, of those that are ranked together: in an ensemble
/// a member's.
int64_t experts_of_group(const Model& model) {
  int64_t experts = 0;
  for (const MoEBlock& block : model.moe_blocks()) {
    experts = std::max(experts, block.layer->options().num_experts / block.num_ranked_groups());
  }
  return experts;
}

/// Returns all sizes of a network's sweep. Throws Error (usage) for one that it cannot have.
std::vector<SweepSize> sizes_of(const SweepConfig& config, const Value& source, const Model& model,
                                int64_t experts) {
  std::vector<int64_t> counts = config.keep;
  // What pruning saves is told of the whole network's cost.
  if (std::ranges::count(counts, experts) == 0) counts.insert(counts.begin(), experts);
  std::vector<SweepSize> sizes;
  for (const int64_t keep : counts) {
    if (keep > experts) {
      fail_usage("{}: a layer cannot keep {} of its {} experts; choose at most {}",
                 location_of(source, {"keep"}), keep, experts, experts);
    }
    sizes.push_back({sweep_size_name(keep), keep, fmt::format("{} of {}", keep, experts),
                     KeepSpec::count(keep)});
    sizes.back().keep.exclude_blocks(config.exclude_blocks);
    if (keep < experts) check_keep(model, sizes.back().keep);
  }
  for (const LayerChoice& choice : config.per_layer) {
    const KeepSpec keep = KeepSpec::from_value(choice.keep);
    sizes.push_back({choice.name, 0, choice_text(choice.name, keep, model), keep});
  }
  return sizes;
}

/// Returns how many images a phase's network was measured on.
int64_t test_images_of(const MeasuredRow& row) {
  const std::map<std::string, double>& numbers = row.runs.at(0).final.numbers;
  const auto found = numbers.find(kTestImages);
  if (found != numbers.end() && found->second >= 1.0 && found->second <= kMaxMeasuredImages) {
    return static_cast<int64_t>(found->second);
  }
  fail("runs.json: '{}#0': {} must be a number between 1 and {:.0f}, found {}; {}", row.name,
       kTestImages, kMaxMeasuredImages,
       found == numbers.end() ? "none" : fmt::format("{}", found->second),
       "delete this entry, and the network is measured again");
}

/// Returns the run whose network is pruned, with all that `set` changes. Refuses arguments of the
/// command line that `set` replaces.
RunConfig whole_run(const RunsConfig& config) {
  PlannedRow row;
  if (!config.set.is_null()) row.sets = {config.set};
  for (const std::string& argument : lost_arguments(config, row)) {
    fail_usage("{}: no effect, since the experiment's 'set' sets this itself; change 'set'",
               argument);
  }
  return parse<RunConfig>(settings_of(config, row), "train");
}

/// Returns the run that is pruned; of a network that is given its last phase alone.
RunConfig train_of(const RunsConfig& config) {
  RunConfig train = whole_run(config);
  // The phases before the last were those of whoever made the checkpoint.
  if (!config.sweep.finetuned.empty()) {
    train.phases.erase(train.phases.begin(), train.phases.end() - 1);
  }
  return train;
}

/// Returns the run that a sweep begins with: training, or only recovery of what is fine-tuned.
RunConfig first_run(const SweepConfig& sweep, RunConfig run) {
  if (!sweep.finetuned.empty()) {
    run.phases.clear();
    run.init = sweep.finetuned;
    // A plan does without the checkpoint, where train describes its network.
    if (path_exists(run.init)) run.model = Value();
  }
  run.phases.push_back(*sweep.recover);
  return run;
}

/// Returns the network on the meta device that the phases of training leave. Throws Error (usage)
/// where it has no experts, or where a criterion compares with a network that has none.
std::shared_ptr<Model> trained_shape(const RunsConfig& config, const RunConfig& train) {
  std::shared_ptr<Model> shape = build_initial_meta_model(first_run(config.sweep, train)),
                         pretrained = shape;
  std::map<std::string, std::shared_ptr<Model>> ended;
  for (const PhaseConfig& phase : train.phases) {
    const EntryConfig& entry = phase.on_entry;
    if (const auto found = ended.find(entry.restore); found != ended.end()) shape = found->second;
    pretrained = shape;
    if (entry.upcycle) shape = shape->upcycled(*entry.upcycle, /*seed=*/0);
    ended[phase.name] = shape;
  }
  if (shape->moe_blocks().empty()) {
    fail_usage(
        "{}: the network has no experts to prune; give it some by train.model, or by "
        "on_entry.upcycle of a phase",
        location_of(config.source, {"keep"}));
  }
  if (!pretrained->moe_blocks().empty()) return shape;
  for (const std::string& text : config.sweep.criteria) {
    const std::string criterion = CriterionChoice::parse(text).criterion;
    if (!criterion_of(criterion).needs_pretrained) continue;
    fail_usage(
        "{}: criterion '{}' compares with the network that the last phase begins with, which has "
        "no "
        "experts; upcycle in an earlier phase, or choose a criterion such as 'reap'",
        location_of(config.source, {"criteria"}), criterion);
  }
  return shape;
}

std::string replacement(const SweepConfig& sweep, const SweepPlan& plan,
                        const std::string& criterion) {
  return sweep.choice(criterion).replace.value_or(default_replacement(*plan.shape));
}

MeasuredRow& row_of(std::vector<MeasuredRow>& rows, const std::string& name) {
  return *std::ranges::find(rows, name, &MeasuredRow::name);
}

std::map<std::string, double>& first_numbers(MeasuredRow& row) {
  return row.runs.front().final.numbers;
}

/// Returns what a cost is below the whole network's, in %.
double percent_saved(double own, double whole) {
  return 100.0 - 100.0 * own / whole;
}

/// Returns a table of what each size saves with a criterion's replacement as far as it follows from
/// shapes, beside what the paper prints of the criterion.
std::string savings_text(const RunsConfig& config, const SweepPlan& plan,
                         const std::string& criterion) {
  const std::string replace = replacement(config.sweep, plan, criterion);
  std::vector<Footprint> costs;
  for (const SweepSize& size : plan.sizes) {
    const std::shared_ptr<Model> shape = meta_copy(*plan.shape);
    apply_plan(*shape, {"", {}, replace});  // It removes nothing yet.
    if (size.count < plan.num_experts) {
      const KeptExperts kept = check_keep(*shape, size.keep);
      for (const MoEBlock& block : shape->moe_blocks()) {
        keep_meta_experts(block, kept.at(block.block), replace);
      }
    }
    costs.push_back(footprint(*shape));
  }
  const Footprint& whole = *std::ranges::max_element(costs, {}, &Footprint::num_parameters);
  TextTable table(
      {"experts", "parameters pruned, %", "paper", "FLOPs saved, %", "by capacity, %", "paper"});
  for (size_t i = 0; i < costs.size(); ++i) {
    const auto saved = [&](auto Footprint::*cost) {
      return fmt::format("{:.1f}", percent_saved(static_cast<double>(costs[i].*cost),
                                                 static_cast<double>(whole.*cost)));
    };
    const auto paper = [&](const char* metric) {
      const auto number =
          paper_number(config.paper, sweep_row_name(plan.sizes[i].name, criterion), metric);
      return number.value ? fmt::format("{}", *number.value) : "-";
    };
    table.add({plan.sizes[i].text, saved(&Footprint::num_parameters), paper("parameters_pruned"),
               saved(&Footprint::flops), saved(&Footprint::capacity_flops),
               paper("capacity_flops_saved")});
  }
  return fmt::format("\nreplace       {}\n{}", replace, table.text());
}

/// Returns the criteria that the figure draws, by default as many as can be told apart.
std::vector<std::string> plotted_of(const SweepConfig& config) {
  constexpr size_t kMost = 6;
  std::vector<std::string> plotted = config.plotted_criteria;
  std::erase_if(plotted, [&](const std::string& criterion) {
    return std::ranges::count(config.criteria, criterion) == 0;
  });
  if (!plotted.empty()) return plotted;
  plotted = config.criteria;
  plotted.resize(std::min(kMost, plotted.size()));
  return plotted;
}

}  // namespace

std::vector<std::string> sweep_criterion_names() {
  std::vector<std::string> names = criterion_names();
  for (const std::string& criterion : criterion_names()) {
    for (const std::string& replace : replacement_names())
      names.push_back(criterion + "." + replace);
  }
  return names;
}

std::string sweep_size_name(int64_t keep) {
  return fmt::format("keep{}", keep);
}

std::string sweep_row_name(const std::string& size, const std::string& criterion) {
  return size + "/" + criterion;
}

ConfigProblem config_problem(const LayerChoice& choice) {
  if (!is_portable_name(choice.name) || is_count(choice.name)) {
    return {fmt::format("the choice's name {} may hold letters, digits, '-', '_' and '.', and not "
                        "begin like that of a number of experts, keep4",
                        printable(choice.name)),
            {"name"}};
  }
  if (choice.keep.kind() == Value::Kind::string) {
    return {
        "'keep' of a choice by layer names no file, since the results contain 'keep'; give the "
        "object",
        {"keep"}};
  }
  KeepSpec::from_value(choice.keep);
  return {};
}

ConfigProblem sweep_problem(const RunsConfig& config) {
  const SweepConfig& sweep = config.sweep;
  if (config.source.find("max_steps") != nullptr) {
    return {
        "'max_steps' is not for pruned networks; set the steps of phases, such as "
        "train.phases.0.steps",
        {"max_steps"}};
  }
  for (const char* key : {"rows", "grid", "separator", "probes", "phase_metrics", "snapshots",
                          "plots", "fits", "ratios"}) {
    if (config.source.find(key) == nullptr) continue;
    return {fmt::format("'keep' and '{}' exclude one another: 'keep' makes the rows", key), {key}};
  }
  if (sweep.criteria.empty() || !sweep.recover) {
    return {"'keep' needs 'criteria', which rank the experts, and 'recover', what follows pruning",
            {"keep"}};
  }
  const std::optional<ExportChoice>& exported = sweep.exported;
  const bool other_keep = exported && std::ranges::count(sweep.keep, exported->num_experts) == 0;
  if (other_keep || (exported && std::ranges::count(sweep.criteria, exported->criterion) == 0)) {
    return {fmt::format("export is keep {} by '{}', which is not part of the sweep; choose {}, or "
                        "export=null for none",
                        exported->num_experts, exported->criterion,
                        other_keep ? fmt::format("export.num_experts={}", sweep.keep.front())
                                   : "export.criterion=" + sweep.criteria.front()),
            {"export.num_experts", "export.keep", "export.criterion", "keep", "criteria"}};
  }
  return phases_problem(sweep, whole_run(config));
}

std::vector<std::string> sweep_rows(const RunsConfig& config) {
  std::vector<std::string> sizes, rows;
  for (const int64_t keep : config.sweep.keep) sizes.push_back(sweep_size_name(keep));
  for (const LayerChoice& choice : config.sweep.per_layer) sizes.push_back(choice.name);
  for (const PhaseConfig& phase : whole_run(config).phases) rows.push_back(phase.name);
  for (const std::string& size : sizes) {
    for (const std::string& criterion : config.sweep.criteria) {
      rows.push_back(sweep_row_name(size, criterion));
    }
  }
  return rows;
}

bool is_possible_sweep_row(const RunsConfig& config, const std::string& row) {
  const size_t slash = std::min(row.find('/'), row.size());
  const std::string size = row.substr(0, slash);
  const std::vector<std::string> names = sweep_criterion_names();
  return slash < row.size() && std::ranges::count(names, row.substr(slash + 1)) > 0 &&
         (is_count(size) || is_argument(config.source, "per_layer") ||
          std::ranges::count(config.sweep.per_layer, size, &LayerChoice::name) > 0);
}

const std::vector<Metric>& sweep_metrics(bool is_of_network) {
  // Those that are optional are of the first run alone, or follow from all rows, or came later.
  const auto optional = [](const char* name, const char* label, double least = 0.0,
                           double most = Metric().max) {
    return Metric{.name = name, .label = label, .is_optional = true, .min = least, .max = most};
  };
  const auto percentage = [&](const char* name, const char* label, double least = 0.0) {
    return optional(name, label, least, 100.0);
  };
  static const std::vector<Metric> of_networks = {
      amount_metric("accuracy", "test accuracy, %", 2, 100.0),
      percentage("accuracy_lost", "test accuracy lost, points", -100.0),
      percentage("agreement", "test images predicted as by the unpruned network, %"),
      amount_metric("accuracy_recovered", "test accuracy after recovery, %", 2, 100.0),
      percentage("accuracy_lost_recovered", "test accuracy lost after recovery, points", -100.0),
      percentage("agreement_recovered",
                 "test images predicted after recovery as by the unpruned network, %"),
      {"class_accuracy", "test accuracy by class, %", 2, /*is_table=*/true, /*optional=*/true},
      optional("parameters", "parameters"),
      amount_metric("flops", "FLOPs an image"),
      optional("capacity_flops", "FLOPs an image by capacity"),
      optional("images_per_second", "images a second"),
      optional("bytes", "bytes of weights"),
      percentage("parameters_pruned", "parameters pruned, %"),
      percentage("flops_saved", "FLOPs saved, %", Metric().min),
      percentage("capacity_flops_saved", "FLOPs saved by capacity, %", Metric().min),
      percentage("time_saved", "forward time saved, %", Metric().min)};
  static const std::vector<Metric> of_phases = {
      amount_metric("test_accuracy", "test accuracy, %", 2, 100.0)};
  return is_of_network ? of_networks : of_phases;
}

void add_savings(const SweepPlan& plan, std::vector<MeasuredRow>& rows) {
  const auto mean_flops = [](const MeasuredRow& row) {
    std::vector<double> flops;
    for (const RunRecord& run : row.runs) flops.push_back(run.final.numbers.at("flops"));
    return moments(flops).mean;
  };
  const MeasuredRow& finetuned = row_of(rows, plan.phases.back().name);
  for (const std::string& criterion : plan.criteria) {
    std::vector<MeasuredRow*> networks;
    for (const SweepSize& size : plan.sizes) {
      networks.push_back(&row_of(rows, sweep_row_name(size.name, criterion)));
    }
    MeasuredRow& whole = **std::ranges::max_element(
        networks, {}, [](MeasuredRow* row) { return first_numbers(*row).at("parameters"); });
    for (MeasuredRow* row : networks) {
      for (size_t i = 0; i < row->runs.size(); ++i) {
        auto& own = row->runs[i].final.numbers;
        const double before = finetuned.runs[i].final.numbers.at("test_accuracy");
        own["accuracy_lost"] = before - own.at("accuracy");
        own["accuracy_lost_recovered"] = before - own.at("accuracy_recovered");
      }
      auto &own = first_numbers(*row), &most = first_numbers(whole);
      own["parameters_pruned"] = percent_saved(own.at("parameters"), most.at("parameters"));
      own["flops_saved"] = percent_saved(mean_flops(*row), mean_flops(whole));
      own["capacity_flops_saved"] =
          percent_saved(own.at("capacity_flops"), most.at("capacity_flops"));
      // Time is the inverse of speed.
      own["time_saved"] = percent_saved(most.at("images_per_second"), own.at("images_per_second"));
    }
  }
}

SweepPlan sweep_plan(const RunsConfig& config, const std::vector<MeasuredRow>& rows) {
  SweepPlan plan{.train = train_of(config)};
  plan.shape = trained_shape(config, plan.train);
  plan.criteria = config.sweep.criteria;
  plan.plotted = plotted_of(config.sweep);
  plan.exported = config.sweep.exported;
  plan.num_experts = experts_of_group(*plan.shape);
  plan.sizes = sizes_of(config.sweep, config.source, *plan.shape, plan.num_experts);
  for (const std::string& text : plan.criteria) {
    const std::string problem =
        replacement_problem(*plan.shape, replacement(config.sweep, plan, text));
    if (problem.empty()) continue;
    const bool of_all = config.sweep.replace && !CriterionChoice::parse(text).replace;
    fail_usage("{}: criterion '{}': {}",
               location_of(config.source, {of_all ? "replace" : "criteria"}), text, problem);
  }
  for (const PhaseConfig& phase : plan.train.phases) {
    plan.phases.push_back({phase.name, phase.data});
    for (const MeasuredRow& row : rows) {
      if (row.name != phase.name) continue;
      plan.phases.back().num_images = test_images_of(row);
    }
  }
  return plan;
}

std::string plan_of_sweep(const RunsConfig& config) {
  const SweepConfig& sweep = config.sweep;
  std::string text = dry_run(first_run(sweep, train_of(config)));
  const SweepPlan plan = sweep_plan(config);
  std::vector<int64_t> counts;
  for (const SweepSize& size : plan.sizes) {
    if (size.count > 0) counts.push_back(size.count);
  }
  if (!sweep.finetuned.empty()) {
    const std::string& before = plan.train.init;
    text += fmt::format(
        "\nfine-tuned    {}; nothing is trained before pruning, criteria compare it with {}{}\n",
        sweep.finetuned, before, path_exists(before) ? "" : " (not found)");
  }
  // Networks that keep all experts are the same for every criterion.
  text += fmt::format(
      "\nseeds         {}\nnetworks      {} of each seed, recovered and measured: {} of {} experts "
      "a layer by {}\n",
      config.num_runs, 1 + (plan.sizes.size() - 1) * plan.criteria.size(), fmt::join(counts, ", "),
      plan.num_experts, fmt::join(plan.criteria, ", "));
  if (!sweep.exclude_blocks.empty()) {
    text += fmt::format("unpruned      blocks {}\n", fmt::join(sweep.exclude_blocks, ", "));
  }
  for (const SweepSize& size : plan.sizes) {
    if (size.count == 0) text += fmt::format("by layer      {}\n", size.text);
  }
  std::set<std::string> replacements;
  for (const std::string& criterion : plan.criteria) {
    const bool is_new = replacements.insert(replacement(sweep, plan, criterion)).second;
    if (is_new) text += savings_text(config, plan, criterion);
  }
  return text +
         "FLOPs are of rows that spread evenly, and by capacity of the buffers of the experts that "
         "are left.\n";
}

}  // namespace moesaic
