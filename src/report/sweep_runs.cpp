// SPDX-License-Identifier: Apache-2.0
#include "experiment_run.h"

#include <fmt/format.h>
#include <torch/script.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/data/views.h"
#include "moesaic/export/formats.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/distill.h"
#include "moesaic/train/trainer.h"

namespace moesaic {
namespace {

/// A network that is recovered, of each seed.
struct Network {
  SweepSize size;
  std::string criterion = {};          ///< Empty where nothing is pruned.
  std::vector<std::string> rows = {};  ///< It is the same for all criteria where nothing is pruned.

  std::string folder() const {
    // A '-' may be part of the choice's name and of the criterion's: a '.' parts them.
    const char* between = size.count > 0 ? "-" : ".";
    return criterion.empty() ? size.name : size.name + between + criterion;
  }
};

std::vector<Network> networks_of(const SweepPlan& plan) {
  std::vector<Network> networks;
  for (const SweepSize& size : plan.sizes) {
    for (const std::string& criterion : plan.criteria) {
      const bool whole = size.count == plan.num_experts;
      if (!whole || criterion == plan.criteria.front()) {
        networks.push_back({size, whole ? "" : criterion});
      }
      networks.back().rows.push_back(sweep_row_name(size.name, criterion));
    }
  }
  return networks;
}

/// Returns the settings of the folder: numbers to keep and criteria may join what is there, and
/// choices by layer of other names.
Json folder_settings(const RunsConfig& config, const RunConfig& train) {
  const SweepConfig& sweep = config.sweep;
  Json runs = {{"finetuned", sweep.finetuned},
               {"train", settings_of_results(to_json(train))},
               {"prune",
                {{"exclude_blocks", sweep.exclude_blocks},
                 {"replace", sweep.replace.value_or(kReplaceByNothing)},
                 {"num_calibration_images", sweep.num_calibration_images}}},
               {"recover", to_json(*sweep.recover)}};
  for (const LayerChoice& choice : sweep.per_layer) {
    runs["per_layer." + choice.name] = choice.keep.to_json();
  }
  return {{"experiment", config.name}, {"runs", std::move(runs)}};
}

/// Returns the accuracies of each class in %.
MeasuredTable accuracy_by_class(const std::vector<std::string>& classes, const Evaluation& pruned,
                                const Evaluation& recovered) {
  MeasuredTable table{{"pruned", "recovered"}, classes, {}};
  for (const ConfusionMatrix* counts : {&pruned.confusion, &recovered.confusion}) {
    std::vector<double>& row = table.values.emplace_back();
    for (int64_t c = 0; c < std::ssize(classes); ++c) {
      row.push_back(100.0 * static_cast<double>(counts->count(c, c)) /
                    static_cast<double>(std::max<int64_t>(1, counts->num_images(c))));
    }
  }
  return table;
}

/// Trains a network with each seed, prunes it, recovers what is left and measures all of them.
class Sweep {
 public:
  Sweep(const RunsConfig& config, const ReproduceOptions& options, DatasetCache& datasets)
      : config_(config.sweep),
        plan_(sweep_plan(config)),
        networks_(networks_of(plan_)),
        options_(options),
        datasets_(datasets),
        device_(options.device) {}

  const SweepPlan& plan() const { return plan_; }
  const std::vector<Network>& networks() const { return networks_; }

  /// Trains the network unless it is given, and measures what its phases came to.
  RunResult train(int64_t index) const {
    if (!is_given()) complete(seeded(index), folder(index) / "train", options_.show_progress);
    RunResult made;
    for (const PhaseConfig& phase : train_.phases) {
      const fs::path checkpoint = phase_checkpoint(phase, index);
      const Evaluation found = evaluated(*load(checkpoint), checkpoint, phase);
      log_info("{}: test accuracy {:.2f} % on {}", phase.name, found.metric("accuracy"),
               phase.data);
      made[phase.name].final.numbers = {{"test_accuracy", found.metric("accuracy")},
                                        {kTestImages, static_cast<double>(found.num_images)}};
    }
    return made;
  }

  /// Prunes the trained network, trains what is left, and measures it before and after.
  RunResult recover(const Network& network, int64_t index) {
    log_info("run {}: {}", index + 1, network.folder());
    const fs::path start = start_of(network, index), recovered = recovered_of(network, index);
    prune(network, index);
    complete(recovery_of(network, index), folder(index) / network.folder(), false);
    const Evaluation before = evaluated(*load(start), start, *config_.recover);
    const std::shared_ptr<Model> model = load(recovered);
    const Evaluation after = evaluated(*model, recovered, *config_.recover);
    const auto agreement = [whole = predicted_whole(index)](const Evaluation& found) {
      return 100.0 * found.predictions.predicted_N.eq(whole).to(at::kDouble).mean().item<double>();
    };
    RunRecord record;
    std::map<std::string, double>& numbers = record.final.numbers;
    numbers = {{"accuracy", before.metric("accuracy")},
               {"agreement", agreement(before)},
               {"accuracy_recovered", after.metric("accuracy")},
               {"agreement_recovered", agreement(after)},
               {"flops", model->flops_per_image(after.rows_per_token())}};
    record.final.tables["class_accuracy"] = accuracy_by_class(
        test_data(*model, recovered, *config_.recover)->info().classes, before, after);
    if (index == 0) {  // Others have as many, but where scores say how many experts a layer keeps.
      numbers["bytes"] = static_cast<double>(weights_bytes(recovered));
      numbers["parameters"] = static_cast<double>(model->num_parameters());
    }
    log_info("{}: accuracy {:.2f} %, after recovery {:.2f} %", network.folder(),
             numbers.at("accuracy"), numbers.at("accuracy_recovered"));
    RunResult made;
    for (const std::string& row : network.rows) made[row] = record;
    return made;
  }

  /// Times the first run's networks, and the exported files, in turn.
  void finish(std::vector<MeasuredRow>& rows) const {
    const auto set = [&](const Network& network, const char* metric, double value) {
      for (const std::string& name : network.rows) {
        std::ranges::find(rows, name, &MeasuredRow::name)->runs[0].final.numbers[metric] = value;
      }
    };
    std::vector<ForwardPass> passes;
    std::vector<int64_t> input_shape;
    for (const Network& network : networks_) {
      auto model = load(recovered_of(network, 0));
      input_shape = model->input_shape();
      set(network, "capacity_flops", footprint(*model).capacity_flops);
      passes.push_back(forward_pass(std::move(model)));
    }
    const size_t exported = exported_network(), before = rows.size();
    if (config_.exported) export_network(networks_[exported], passes, rows);
    log_info("timing {} networks in turn", passes.size());
    const PhaseConfig& phase = *config_.recover;
    const std::vector<double> rates = measure_throughput(
        passes, datasets_.get(phase.data, "test", phase.preprocess, input_shape),
        config_.throughput, [this] { return go_on(); }, device_);
    for (size_t i = 0; i < networks_.size(); ++i) set(networks_[i], "images_per_second", rates[i]);
    for (size_t i = before; i < rows.size(); ++i) {
      rows[i].runs[0].final.numbers["forward_time_ratio"] =
          rates[exported] / rates[networks_.size() + i - before];
    }
    add_savings(plan_, rows);
  }

 private:
  /// Returns true. Throws Stopped where a signal stops the sweep.
  bool go_on() const {
    if (options_.stop != nullptr) options_.stop->check();
    return true;
  }

  bool is_given() const { return !config_.finetuned.empty(); }

  RunConfig seeded(int64_t index) const {
    RunConfig run = train_;
    run.seed += index;
    return run;
  }

  fs::path folder(int64_t index) const {
    return fs::canonical(options_.out) / fmt::format("seed{}", train_.seed + index);
  }

  fs::path phase_checkpoint(const PhaseConfig& phase, int64_t index) const {
    return is_given() ? fs::path(config_.finetuned)
                      : folder(index) / "train" / "checkpoints" / phase.name;
  }

  /// The network that fine-tuning, the last phase, begins with: criteria compare with it.
  fs::path pretrained(int64_t index) const {
    const std::vector<PhaseConfig>& phases = train_.phases;
    if (phases.size() < 2) return train_.init;
    const auto restored =
        std::ranges::find(phases, phases.back().on_entry.restore, &PhaseConfig::name);
    return phase_checkpoint(restored == phases.end() ? phases[phases.size() - 2] : *restored,
                            index);
  }

  fs::path start_of(const Network& network, int64_t index) const {
    return network.criterion.empty() ? phase_checkpoint(train_.phases.back(), index)
                                     : folder(index) / "pruned" / network.folder();
  }

  fs::path recovered_of(const Network& network, int64_t index) const {
    return folder(index) / network.folder() / "checkpoints" / config_.recover->name;
  }

  /// Returns the index of the exported network, the number of all without one.
  size_t exported_network() const {
    if (!config_.exported) return networks_.size();
    const std::string row =
        sweep_row_name(sweep_size_name(config_.exported->num_experts), config_.exported->criterion);
    const auto has_row = [&](const Network& network) {
      return std::ranges::count(network.rows, row) > 0;
    };
    return static_cast<size_t>(std::ranges::find_if(networks_, has_row) - networks_.begin());
  }

  /// Trains, resumes training, or returns if the run is complete.
  void complete(const RunConfig& run, const fs::path& folder, bool progress) const {
    go_on();
    if (fs::exists(folder / "checkpoints" / run.phases.back().name)) return;
    const TrainerOptions options{.out = folder,
                                 .resume = fs::exists(folder) && !fs::is_empty(folder),
                                 .device = options_.device,
                                 .stop = options_.stop,
                                 .show_progress = progress,
                                 .open = opener_of(datasets_)};
    if (Trainer(run, options).run().signal != 0) throw Stopped{};
  }

  std::shared_ptr<Model> load(const fs::path& checkpoint) const {
    std::shared_ptr<Model> model = load_model(checkpoint);
    model->to(device_);
    return model;
  }

  /// Returns the test images as the network of a checkpoint takes them, whose outputs tell by their
  /// names what labels mean.
  std::shared_ptr<const Dataset> test_data(const Model& model, const fs::path& checkpoint,
                                           const PhaseConfig& phase) const {
    const auto data = datasets_.get(phase.data, "test", phase.preprocess, model.input_shape());
    const std::vector<std::string> outputs = class_names_of(checkpoint);
    return at_location(checkpoint.string(), [&] { return with_classes_of(data, outputs); });
  }

  /// Evaluates the network of a checkpoint, as `moesaic eval` does.
  Evaluation evaluated(Model& model, const fs::path& checkpoint, const PhaseConfig& phase) const {
    return evaluate(model, test_data(model, checkpoint, phase),
                    {.batch_size = train_.evaluate_batch_size,
                     .num_loader_threads = train_.num_loader_threads,
                     .on_progress = [this](int64_t, int64_t) { return go_on(); },
                     .loss = objective_name(phase)});
  }

  /// Returns what the fine-tuned network predicts.
  at::Tensor predicted_whole(int64_t index) {
    at::Tensor& predicted = predicted_whole_[index];
    if (!predicted.defined()) {
      const fs::path checkpoint = phase_checkpoint(train_.phases.back(), index);
      predicted =
          evaluated(*load(checkpoint), checkpoint, *config_.recover).predictions.predicted_N;
    }
    return predicted;
  }

  /// The same network and images rank the experts of all sizes and criteria: one look is enough.
  const ExpertStatistics& use_of_experts(Model& model, int64_t index) {
    const auto [found, is_new] = uses_.try_emplace(index);
    if (!is_new) return found->second;
    const PhaseConfig& phase = train_.phases.back();
    const std::string split = calibration_split(datasets_.evaluation_splits(phase.data));
    found->second =
        calibrate(model, datasets_.get(phase.data, split, phase.preprocess, model.input_shape()),
                  {.num_images = config_.num_calibration_images,
                   .batch_size = train_.evaluate_batch_size,
                   .num_loader_threads = train_.num_loader_threads,
                   .seed = static_cast<uint64_t>(train_.seed + index),
                   .progress = [this](int64_t, int64_t) { go_on(); }});
    return found->second;
  }

  void prune(const Network& network, int64_t index) {
    go_on();
    const fs::path out = start_of(network, index);
    if (network.criterion.empty() || fs::exists(out)) return;
    const CriterionChoice choice = config_.choice(network.criterion);
    const bool compares = criterion_of(choice.criterion).needs_pretrained;
    prune_checkpoint(
        {.finetuned = phase_checkpoint(train_.phases.back(), index),
         .pretrained = compares ? pretrained(index) : fs::path(),
         .out = out,
         .prune = {.criterion = choice.criterion,
                   .keep = network.size.keep,
                   .replace = choice.replace,
                   .seed = static_cast<uint64_t>(train_.seed + index)},
         .calibrate = [&](const Checkpoint&, Model& model) { return use_of_experts(model, index); },
         .device = options_.device});
  }

  RunConfig recovery_of(const Network& network, int64_t index) const {
    RunConfig run = seeded(index);
    run.name = network.folder();
    run.init = start_of(network, index).string();
    run.model = Value();
    run.checkpoint_every.count = 0;  // The run is too short for checkpoints.
    run.phases = {*config_.recover};
    if (std::string* const teacher = find_teacher(run.phases.front())) {
      const auto phase = std::ranges::find(train_.phases, *teacher, &PhaseConfig::name);
      if (phase != train_.phases.end()) *teacher = phase_checkpoint(*phase, index).string();
    }
    run.phases.front().evaluate = false;  // The network is measured afterwards, with its routing.
    return run;
  }

  MeasuredRow export_row(const char* name, const char* format) const {
    const std::string label = std::string(format) + "'s forward time over ours";
    return {.name = name,
            .metrics = {amount_metric("forward_time_ratio", label)},
            .runs = {RunRecord()},
            .first_seed = train_.seed};
  }

  /// Exports the network, and adds the forward passes of the files and their rows.
  void export_network(const Network& exported, std::vector<ForwardPass>& passes,
                      std::vector<MeasuredRow>& rows) const {
    const fs::path recovered = recovered_of(exported, 0);
    const Checkpoint checkpoint = load_checkpoint(recovered, {.load_optimizer = false});
    const auto network = model_of(checkpoint);
    const ExportInfo info = export_info(checkpoint, *network);
    const fs::path file = options_.out / kSweepModel;
    export_torchscript(*network, file, info);
    auto script = std::make_shared<torch::jit::Module>(torch::jit::load(file.string(), device_));
    passes.push_back([script](const at::Tensor& images) { script->forward({images}); });
    rows.push_back(export_row("export", "TorchScript"));
    if (!config_.exported->evaluate_pt2 || !can_run_pt2()) return;
    const fs::path program = options_.out / kSweepProgram;
    export_pt2(*network, program, info);
    const auto model = model_of(load_newest_checkpoint(program, {.accept_program = true}));
    rows.push_back(export_row(kSweepProgramRow, ".pt2"));
    rows.back().metrics.push_back(amount_metric("accuracy", "test accuracy of the .pt2, %"));
    rows.back().runs[0].final.numbers["accuracy"] =
        evaluated(*model, recovered, *config_.recover).metric("accuracy");
    passes.push_back(forward_pass(model));
  }

  /// Warns where there is no Python to write a .pt2, or the sweep is not on the CPU, which alone
  /// runs one.
  bool can_run_pt2() const try {
    if (!device_.is_cpu()) fail_usage("export: a .pt2 runs on the CPU");
    export_python();
    return true;
  } catch (const Error& error) {
    log_warning("{}; the results have no .pt2", error.what());
    return false;
  }

  const SweepConfig& config_;
  SweepPlan plan_;
  const RunConfig& train_ = plan_.train;
  std::vector<Network> networks_;
  const ReproduceOptions& options_;
  DatasetCache& datasets_;
  at::Device device_;
  std::map<int64_t, ExpertStatistics> uses_;
  std::map<int64_t, at::Tensor> predicted_whole_;
};

}  // namespace

PreparedRuns prepare_sweep(const RunsConfig& config, const ReproduceOptions& options,
                           DatasetCache& datasets) {
  const std::string& finetuned = config.sweep.finetuned;
  if (!finetuned.empty() && !path_exists(finetuned)) {
    fail_usage(
        "{}: finetuned '{}' is not there{}; make it first, or leave it empty, 'finetuned=', to "
        "train it here",
        location_of(config.source, {"finetuned"}), finetuned, nearest_network(finetuned));
  }
  const auto sweep = std::make_shared<Sweep>(config, options, datasets);
  PreparedRuns ready{.settings = folder_settings(config, sweep->plan().train),
                     .has_run_folders = true,
                     .finish = [sweep](std::vector<MeasuredRow>& rows) { sweep->finish(rows); }};
  const auto add = [&](std::string name, const std::vector<std::string>& rows, size_t stage,
                       auto make) {
    PreparedRow& row = ready.rows.emplace_back(
        PreparedRow{.name = std::move(name),
                    .num_runs = config.num_runs,
                    .make = [make](int64_t index, const ImageCallback&) { return make(index); },
                    .stage = stage});
    for (const std::string& filled : rows) {
      row.result_rows.push_back({.name = filled,
                                 .metrics = sweep_metrics(/*is_of_network=*/stage > 0),
                                 .first_seed = sweep->plan().train.seed});
    }
  };
  std::vector<std::string> phases;
  for (const SweepPhase& phase : sweep->plan().phases) phases.push_back(phase.name);
  add("train", phases, 0, [sweep](int64_t index) { return sweep->train(index); });
  for (const Network& network : sweep->networks()) {
    add(network.folder(), network.rows, 1,
        [sweep, &network](int64_t index) { return sweep->recover(network, index); });
  }
  return ready;
}

}  // namespace moesaic
