// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/prune_sweep.h"

#include <fmt/format.h>
#include <torch/script.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "experiment_folder.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"
#include "moesaic/checkpoint/input.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/data/class_names.h"
#include "moesaic/export/info.h"
#include "moesaic/export/torchscript.h"
#include "moesaic/parallel/processes.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/report/sweep_report.h"
#include "moesaic/train/calibrate.h"
#include "moesaic/train/evaluate.h"
#include "moesaic/train/places.h"
#include "moesaic/train/run_folder.h"
#include "moesaic/train/run_plan.h"
#include "moesaic/train/trainer.h"
#include "sweep_plan.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kModelFile = "model.ts.pt";

/// Signals an interruption; run_prune_sweep() catches it.
struct Stopped {};

/// A network of the sweep, pruned or not, and its checkpoints.
struct Network {
  SweepSize size = {};
  std::string criterion = {};  ///< Empty where nothing is pruned.
  fs::path start = {};         ///< Checkpoint before recovery.
  fs::path recovered = {};     ///< Checkpoint after recovery.
  std::shared_ptr<Model> model = {};
  SweepPoint measured = {};

  std::string name() const {
    // A '-' may be part of the choice's name and of the criterion's: a '.' parts them.
    const char* between = size.count > 0 ? "-" : ".";
    return criterion.empty() ? size.name : size.name + between + criterion;
  }
};

Json sections_of(const PruneSweepConfig& config) {
  Json sections = {
      {"experiment", config.name},
      {"train", to_json(config.train)},
      {"prune", {{"whole", config.whole}, {"replace", config.replace}, {"images", config.images}}},
      {"recover", to_json(config.recover)}};
  if (!config.finetuned.empty()) sections["finetuned"] = config.finetuned;
  return sections;
}

/// Returns what the choices by layer keep, by their names, with those that `started` knows.
Json choices_of(const PruneSweepConfig& config, const Json& started) {
  Json choices = started.is_object() ? started.value("by_layer", Json::object()) : Json::object();
  for (const LayerChoice& choice : config.by_layer) choices[choice.name] = choice.keep.to_json();
  return choices;
}

/// Throws Error (usage) for other training settings; numbers to keep and criteria may change, and
/// choices by layer may be others if their names are.
void check_same_experiment(const Json& started, const Json& now, const fs::path& out) {
  for (const char* key : {"experiment", "train", "prune", "recover"}) {
    if (!started.contains(key)) {
      fail_usage("{}: holds a config.json of something else; give another --out", out.string());
    }
  }
  check_same_run(started.at("train"), now.at("train"), out.string());
  for (const char* key : {"prune", "recover", "finetuned"}) {
    check_same_run({{key, started.value(key, Json())}}, {{key, now.value(key, Json())}},
                   out.string());
  }
  const Json choices = started.value("by_layer", Json::object());
  for (const auto& [name, keep] : choices.items()) {
    const std::string key = "by_layer." + name;
    check_same_run({{key, keep}}, {{key, now.at("by_layer").at(name)}}, out.string());
  }
}

/// Adds a run's values to those of the runs before.
void append(std::vector<double>& values, const std::vector<double>& more) {
  values.insert(values.end(), more.begin(), more.end());
}

/// One seed's run: trains a network, prunes it and recovers what is left.
class SweepRun {
 public:
  SweepRun(const PruneSweepConfig& config, const ReproduceOptions& options,
           std::shared_ptr<Datasets> datasets, fs::path folder, int64_t seed)
      : config_(config),
        options_(options),
        datasets_(std::move(datasets)),
        folder_(std::move(folder)),
        train_(config.train),
        device_(options.device) {
    train_.seed = seed;
    // The phases before the last were those of whoever made the checkpoint.
    if (is_given()) train_.phases.erase(train_.phases.begin(), train_.phases.end() - 1);
  }

  /// Trains the network unless it is given.
  void make_network() const {
    if (!is_given()) complete_run(train_, folder_ / "train", options_.progress);
  }

  /// Reads the network, whose phases are ended.
  void open() { finetuned_ = load(phase_checkpoint(train_.phases.back())); }

  /// Trains the network unless it is given, and returns what its phases came to.
  std::vector<SweepPhase> train() {
    make_network();
    std::vector<SweepPhase> phases;
    for (const PhaseConfig& phase : train_.phases) {
      finetuned_ = load(phase_checkpoint(phase));
      const Evaluation evaluation = measure(*finetuned_, phase_checkpoint(phase), phase);
      const double accuracy = evaluation.metric("accuracy");
      log_info("{}: test accuracy {:.2f} % on {}", phase.name, accuracy, phase.data);
      phases.push_back({phase.name, phase.data, evaluation.images, {accuracy}});
    }
    return phases;
  }

  int64_t experts() const { return experts_of_group(*finetuned_); }
  std::vector<SweepSize> sizes() const { return sizes_of(config_, *finetuned_); }

  /// Lists every network once: unpruned networks are the same for every criterion.
  std::vector<Network> list_networks() const {
    std::vector<Network> networks;
    for (const SweepSize& size : sizes()) {
      if (size.count == experts()) {
        networks.push_back({.size = size, .start = phase_checkpoint(train_.phases.back())});
        continue;
      }
      for (const std::string& criterion : config_.criteria) {
        Network network{.size = size, .criterion = criterion};
        network.start = folder_ / "pruned" / network.name();
        networks.push_back(std::move(network));
      }
    }
    for (Network& network : networks) {
      network.recovered = folder_ / network.name() / "checkpoints" / config_.recover.name;
    }
    return networks;
  }

  /// Prunes and trains on, unless the files are there.
  void make(const Network& network) {
    go_on();
    prune(network);
    complete_run(recovery_of(network), folder_ / network.name(), false);
  }

  void prune_and_recover(Network& network) {
    make(network);
    SweepPoint& point = network.measured;
    point.size = network.size.name;
    const auto start = load(network.start);
    point.accuracy = {measure(*start, network.start, config_.recover).metric("accuracy")};
    network.model = load(network.recovered);
    const Evaluation after = measure(*network.model, network.recovered, config_.recover);
    point.accuracy_recovered = {after.metric("accuracy")};
    point.parameters = network.model->parameter_count();
    point.flops = {network.model->flops_per_image(after.rows_per_token())};
    point.bytes = static_cast<int64_t>(weights_bytes(network.recovered));
    log_info("{}: accuracy {:.2f} %, after recovery {:.2f} %", network.name(), point.accuracy[0],
             point.accuracy_recovered[0]);
  }

 private:
  void go_on() const {
    if (options_.stop != nullptr && options_.stop->requested()) throw Stopped{};
  }

  bool is_given() const { return !config_.finetuned.empty(); }

  fs::path phase_checkpoint(const PhaseConfig& phase) const {
    return is_given() ? fs::path(config_.finetuned)
                      : folder_ / "train" / "checkpoints" / phase.name;
  }

  fs::path pretrained() const {
    return train_.phases.size() > 1 ? phase_checkpoint(train_.phases.front())
                                    : fs::path(train_.init);
  }

  /// Trains, resumes training, or returns if the run is complete.
  void complete_run(const RunConfig& run, const fs::path& folder, bool progress) const {
    if (fs::exists(folder / "checkpoints" / run.phases.back().name)) return;
    TrainerOptions options;
    options.out = folder;
    options.resume = fs::exists(folder) && !fs::is_empty(folder);
    options.stop = options_.stop;
    options.progress = progress;
    options.device = options_.device;
    options.open = [datasets = datasets_](std::string_view name, std::string_view split) {
      return datasets->get(std::string(name), std::string(split));
    };
    if (Trainer(run, options).run().signal != 0) throw Stopped{};
  }

  std::shared_ptr<Model> load(const fs::path& checkpoint) const {
    const std::shared_ptr<Model> model = load_model(checkpoint);
    model->to(device_);
    return model;
  }

  /// Measures the network of a checkpoint, whose outputs tell by their names what labels mean.
  Evaluation measure(Model& model, const fs::path& checkpoint, const PhaseConfig& phase) const {
    EvaluateOptions options;
    options.batch_size = train_.evaluate_batch_size;
    options.loader_threads = train_.loader_threads;
    options.proceed = [this](int64_t, int64_t) {
      go_on();
      return true;
    };
    auto data = datasets_->get(phase.data, "test", phase.preprocess, model.input_shape());
    const std::vector<std::string> outputs = class_names_of(checkpoint);
    data = at_place(checkpoint.string(), [&] { return with_classes_of(data, outputs); });
    return evaluate(model, data, options);
  }

  /// The same network and images rank the experts of all sizes and criteria: one look is enough.
  const ExpertUse& use_of_experts(Model& model) {
    if (use_) return *use_;
    const PhaseConfig& phase = train_.phases.back();
    const std::string split = calibration_split(datasets_->evaluation_splits(phase.data));
    use_ =
        calibrate(model, datasets_->get(phase.data, split, phase.preprocess, model.input_shape()),
                  {.images = config_.images,
                   .batch_size = train_.evaluate_batch_size,
                   .loader_threads = train_.loader_threads,
                   .seed = static_cast<uint64_t>(train_.seed),
                   .progress = [this](int64_t, int64_t) { go_on(); }});
    return *use_;
  }

  void prune(const Network& network) {
    if (network.criterion.empty() || fs::exists(network.start)) return;
    PruneCheckpointOptions options;
    options.finetuned = phase_checkpoint(train_.phases.back());
    if (criterion_needs_pretrained(network.criterion)) options.pretrained = pretrained();
    options.out = network.start;
    options.prune.criterion = network.criterion;
    options.prune.keep = keep_of(config_, network.size);
    options.prune.replace = config_.replace;
    options.prune.seed = static_cast<uint64_t>(train_.seed);
    options.calibrate = [this](const Checkpoint&, Model& model) { return use_of_experts(model); };
    options.device = options_.device;
    prune_checkpoint(options);
  }

  RunConfig recovery_of(const Network& network) const {
    RunConfig run = train_;
    run.name = network.name();
    run.init = network.start.string();
    run.model = Value();
    run.checkpoint_every.count = 0;  // The run is too short for checkpoints.
    run.phases = {config_.recover};
    run.phases.front().evaluate = false;  // The network is measured afterwards, with its routing.
    return run;
  }

  const PruneSweepConfig& config_;
  const ReproduceOptions& options_;
  std::shared_ptr<Datasets> datasets_;
  fs::path folder_;
  RunConfig train_;
  at::Device device_;
  std::shared_ptr<Model> finetuned_;
  std::optional<ExpertUse> use_;
};

/// All runs, and the first one's speed.
class PruneSweep {
 public:
  PruneSweep(const PruneSweepConfig& config, const ReproduceOptions& options)
      : config_(config),
        options_(options),
        datasets_(std::make_shared<Datasets>(options.open)),
        device_(options.device) {
    if (follows()) {  // Process 0 claims the folder.
      wait_for_others();
      out_ = fs::canonical(options_.out);
      return;
    }
    folder_.emplace(options.out);
    out_ = folder_->path();
    const Json started = RunFolder::started_config(out_);
    Json now = sections_of(config_);
    if (const Json choices = choices_of(config_, started); !choices.empty()) {
      now["by_layer"] = choices;
    }
    if (!started.is_null()) check_same_experiment(started, now, out_);
    remove_leftovers(out_);
    write_atomic(out_ / "config.json", now.dump(2) + "\n");
    wait_for_others();
  }

  /// Where processes share the networks, each makes its own; process 0 measures all of them.
  void run(SweepOutcome& outcome) {
    if (options_.processes) make_own_part();
    if (follows()) return;
    outcome.criteria = config_.criteria;
    std::vector<Network> networks;
    for (int64_t i = 0; i < config_.runs; ++i) {
      SweepRun run = run_of(i);
      add_phases(outcome, run.train());
      outcome.experts = run.experts();
      outcome.sizes = run.sizes();
      add_networks(networks, run, i);
    }
    if (config_.exported) outcome.exported = export_network(networks);
    time(networks, outcome);
    outcome.points = list_points(networks, outcome.sizes);
  }

 private:
  bool follows() const { return options_.processes && !options_.processes->leads(); }

  /// Waits as long as it takes. Throws Stopped where a signal stopped one of the processes.
  void wait_for_others(bool stopped = false) const {
    if (!options_.processes) return;
    options_.processes->wait_for_all();
    if (options_.processes->max(stopped ? 1 : 0) != 0) throw Stopped{};
  }

  SweepRun run_of(int64_t i) const {
    const int64_t seed = config_.train.seed + i;
    return {config_, options_, datasets_, out_ / fmt::format("seed{}", seed), seed};
  }

  /// Trains every W-th network, then, once all are trained, makes every W-th of what is measured.
  void make_own_part() const {
    int64_t number = 0;
    const auto is_own = [&] {
      return number++ % options_.processes->size() == options_.processes->rank();
    };
    const auto together = [&](const std::function<void(SweepRun&)>& make) {
      try {
        for (int64_t i = 0; i < config_.runs; ++i) {
          options_.processes->set_activity(fmt::format("run {} of the sweep", i + 1));
          SweepRun run = run_of(i);
          make(run);
        }
      } catch (const Stopped&) {
        return wait_for_others(/*stopped=*/true);
      }
      wait_for_others();
    };
    together([&](SweepRun& run) {
      if (is_own()) run.make_network();
    });
    number = 0;
    together([&](SweepRun& run) {
      run.open();
      for (const Network& network : run.list_networks()) {
        if (is_own()) run.make(network);
      }
    });
  }

  static void add_phases(SweepOutcome& outcome, std::vector<SweepPhase> phases) {
    if (outcome.phases.empty()) {
      outcome.phases = std::move(phases);
      return;
    }
    for (size_t i = 0; i < phases.size(); ++i) {
      append(outcome.phases[i].accuracy, phases[i].accuracy);
    }
  }

  /// Makes the networks of run i, of which `networks` keeps the numbers, and the first run's
  /// models.
  void add_networks(std::vector<Network>& networks, SweepRun& run, int64_t i) const {
    std::vector<Network> made = run.list_networks();
    for (size_t n = 0; n < made.size(); ++n) {
      log_info("run {} of {}, network {} of {}: {}", i + 1, config_.runs, n + 1, made.size(),
               made[n].name());
      run.prune_and_recover(made[n]);
      if (i == 0) continue;
      SweepPoint& point = networks[n].measured;
      append(point.accuracy, made[n].measured.accuracy);
      append(point.accuracy_recovered, made[n].measured.accuracy_recovered);
      append(point.flops, made[n].measured.flops);
      made[n].model = nullptr;
    }
    if (i == 0) networks = std::move(made);
  }

  SweepExport export_network(const std::vector<Network>& networks) const {
    const Network& chosen = find_exported(networks);
    const Checkpoint exported = load_checkpoint(chosen.recovered, {.optimizer = false});
    const auto network = model_of(exported);
    export_torchscript(*network, out_ / kModelFile, export_info(exported, *network));
    return {.choice = *config_.exported, .file = kModelFile};
  }

  /// Measures all networks of the first run and the exported one in turn.
  void time(std::vector<Network>& networks, SweepOutcome& outcome) const {
    log_info("timing {} networks in turn", networks.size() + (outcome.exported ? 1 : 0));
    std::vector<ForwardPass> passes;
    for (const Network& network : networks) passes.push_back(forward_pass(network.model));
    if (outcome.exported) {
      auto script = std::make_shared<torch::jit::Module>(
          torch::jit::load((out_ / outcome.exported->file).string(), device_));
      passes.emplace_back([script](const at::Tensor& images) { script->forward({images}); });
    }
    const PhaseConfig& phase = config_.recover;
    const auto proceed = [this] {
      if (options_.stop != nullptr && options_.stop->requested()) throw Stopped{};
      return true;
    };
    const std::vector<double> rates = measure_passes(
        passes,
        datasets_->get(phase.data, "test", phase.preprocess, networks.front().model->input_shape()),
        config_.throughput, proceed, device_);
    for (size_t i = 0; i < networks.size(); ++i) networks[i].measured.images_per_second = rates[i];
    if (!outcome.exported) return;
    const Network& same = find_exported(networks);
    outcome.exported->time = same.measured.images_per_second / rates.back();
  }

  static const Network& find(const std::vector<Network>& networks, const std::string& size,
                             const std::string& criterion) {
    const auto fits = [&](const Network& network) {
      return network.size.name == size &&
             (network.criterion.empty() || network.criterion == criterion);
    };
    return *std::find_if(networks.begin(), networks.end(), fits);  // The list has all pairs.
  }

  const Network& find_exported(const std::vector<Network>& networks) const {
    return find(networks, sweep_size(config_.exported->keep), config_.exported->criterion);
  }

  std::vector<SweepPoint> list_points(const std::vector<Network>& networks,
                                      const std::vector<SweepSize>& sizes) const {
    std::vector<SweepPoint> points;
    for (const SweepSize& size : sizes) {
      for (const std::string& criterion : config_.criteria) {
        points.push_back(find(networks, size.name, criterion).measured);
        points.back().criterion = criterion;
      }
    }
    return points;
  }

  const PruneSweepConfig& config_;
  const ReproduceOptions& options_;
  std::optional<ExperimentFolder> folder_;
  fs::path out_;
  std::shared_ptr<Datasets> datasets_;
  at::Device device_;
};

}  // namespace

const SweepPoint& SweepOutcome::at(const std::string& size, const std::string& criterion) const {
  for (const SweepPoint& point : points) {
    if (point.size == size && point.criterion == criterion) return point;
  }
  fail_usage("the sweep has no {} by '{}'", size, criterion);
}

bool run_prune_sweep(const PruneSweepConfig& config, const ReproduceOptions& options,
                     SweepOutcome& outcome) {
  check_finetuned(config);
  // Before anything is written or trained.
  sizes_of(config, *build_initial_shape(first_run(config)));
  try {
    PruneSweep(config, options).run(outcome);
    return true;
  } catch (const Stopped&) {
    return false;
  }
}

}  // namespace moesaic
