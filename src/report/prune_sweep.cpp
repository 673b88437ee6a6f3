// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/prune_sweep.h"

#include <fmt/format.h>
#include <torch/script.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "experiment_folder.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/export/info.h"
#include "moesaic/export/torchscript.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/evaluate.h"
#include "moesaic/train/run_folder.h"
#include "moesaic/train/trainer.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kModelFile = "model.ts.pt";

/// Signals an interruption; run_prune_sweep() catches it.
struct Stopped {};

/// A network of the sweep, pruned or not, and its checkpoints.
struct Network {
  int64_t keep = 0;
  std::string criterion = {};  ///< Empty where nothing is pruned.
  fs::path start = {};         ///< Checkpoint before recovery.
  fs::path recovered = {};     ///< Checkpoint after recovery.
  std::shared_ptr<Model> model = {};
  SweepPoint measured = {};

  std::string name() const {
    return criterion.empty() ? fmt::format("keep{}", keep)
                             : fmt::format("keep{}-{}", keep, criterion);
  }
};

Json sections_of(const PruneSweepConfig& config) {
  return {{"experiment", config.name},
          {"train", to_json(config.train)},
          {"recover", to_json(config.recover)}};
}

/// Throws Error (usage) for other training settings; numbers to keep and criteria may change.
void check_same_experiment(const Json& started, const Json& now, const fs::path& out) {
  for (const char* key : {"experiment", "train", "recover"}) {
    if (!started.contains(key)) {
      fail_usage("{}: holds a config.json of something else; give another --out", out.string());
    }
  }
  check_same_run(started.at("train"), now.at("train"), (out / "train").string());
  check_same_run({{"recover", started.at("recover")}}, {{"recover", now.at("recover")}},
                 out.string());
}

class PruneSweep {
 public:
  PruneSweep(const PruneSweepConfig& config, const ReproduceOptions& options)
      : config_(config),
        options_(options),
        folder_(options.out),
        out_(folder_.path()),
        datasets_(std::make_shared<Datasets>(options.open)),
        device_(options.device) {
    const Json started = RunFolder::started_config(out_);
    const Json now = sections_of(config_);
    if (!started.is_null()) check_same_experiment(started, now, out_);
    remove_leftovers(out_);
    write_atomic(out_ / "config.json", now.dump(2) + "\n");
  }

  void run(SweepOutcome& outcome) {
    outcome.keep = config_.keep;
    outcome.criteria = config_.criteria;
    outcome.exported = config_.exported;
    outcome.phases = train();
    std::vector<Network> networks = list_networks(outcome.experts);
    for (size_t i = 0; i < networks.size(); ++i) {
      log_info("network {} of {}: {}", i + 1, networks.size(), networks[i].name());
      prune_and_recover(networks[i]);
    }
    const Network& chosen = find(networks, config_.exported.keep, config_.exported.criterion);
    const Checkpoint exported = load_checkpoint(chosen.recovered, {.optimizer = false});
    const auto network = model_of(exported);
    export_torchscript(*network, out_ / kModelFile, export_info(exported, *network));
    outcome.model = kModelFile;
    const double exported_rate = time(networks);
    outcome.export_time = chosen.measured.images_per_second / exported_rate;
    outcome.points = list_points(networks, outcome.experts);
  }

 private:
  void go_on() const {
    if (options_.stop != nullptr && options_.stop->requested()) throw Stopped{};
  }

  fs::path phase_checkpoint(const PhaseConfig& phase) const {
    return out_ / "train" / "checkpoints" / phase.name;
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

  Evaluation measure(Model& model, const std::string& data) const {
    EvaluateOptions options;
    options.batch_size = config_.train.evaluate_batch_size;
    options.loader_threads = config_.train.loader_threads;
    options.proceed = [this](int64_t, int64_t) {
      go_on();
      return true;
    };
    return evaluate(model, datasets_->get(data, "test"), options);
  }

  std::vector<SweepPhase> train() {
    complete_run(config_.train, out_ / "train", options_.progress);
    std::vector<SweepPhase> phases;
    for (const PhaseConfig& phase : config_.train.phases) {
      finetuned_ = load(phase_checkpoint(phase));
      const Evaluation evaluation = measure(*finetuned_, phase.data);
      log_info("{}: test accuracy {:.2f} % on {}", phase.name, evaluation.metric("accuracy"),
               phase.data);
      phases.push_back({phase.name, phase.data, evaluation.images, evaluation.metric("accuracy")});
    }
    return phases;
  }

  /// Lists every network once: unpruned networks are the same for every criterion.
  std::vector<Network> list_networks(int64_t& experts) const {
    for (const MoEBlock& block : finetuned_->moe_blocks()) {
      const nn::RouterOptions& router = block.layer->options();
      experts = std::max(experts, router.experts / router.members);
    }
    std::vector<Network> networks;
    for (const int64_t keep : config_.keep) {
      if (keep > experts) fail_usage("keep: {} of {} experts", keep, experts);
      if (keep == experts) {
        networks.push_back({.keep = keep, .start = phase_checkpoint(config_.train.phases.back())});
        continue;
      }
      for (const std::string& criterion : config_.criteria) {
        Network network{.keep = keep, .criterion = criterion};
        network.start = out_ / "pruned" / network.name();
        networks.push_back(std::move(network));
      }
    }
    for (Network& network : networks) {
      network.recovered = out_ / network.name() / "checkpoints" / config_.recover.name;
    }
    return networks;
  }

  void prune(const Network& network) const {
    if (network.criterion.empty() || fs::exists(network.start)) return;
    PruneCheckpointOptions options;
    options.finetuned = phase_checkpoint(config_.train.phases.back());
    options.pretrained = phase_checkpoint(config_.train.phases.front());
    options.out = network.start;
    options.prune.criterion = network.criterion;
    options.prune.keep = KeepSpec::count(network.keep);
    options.prune.seed = static_cast<uint64_t>(config_.train.seed);
    options.device = options_.device;
    prune_checkpoint(options);
  }

  RunConfig recovery_of(const Network& network) const {
    RunConfig run = config_.train;
    run.name = network.name();
    run.init = network.start.string();
    run.model = Value();
    run.checkpoint_every = 0;  // The run is too short for checkpoints.
    run.phases = {config_.recover};
    run.phases.front().evaluate = false;  // The network is measured below, with its routing.
    return run;
  }

  void prune_and_recover(Network& network) const {
    go_on();
    prune(network);
    SweepPoint& point = network.measured;
    point.keep = network.keep;
    point.accuracy = measure(*load(network.start), config_.recover.data).metric("accuracy");
    complete_run(recovery_of(network), out_ / network.name(), false);
    network.model = load(network.recovered);
    const Evaluation after = measure(*network.model, config_.recover.data);
    point.accuracy_recovered = after.metric("accuracy");
    point.parameters = network.model->parameter_count();
    point.flops = network.model->flops_per_image(after.rows_per_token());
    point.bytes = static_cast<int64_t>(fs::file_size(network.recovered / "model.safetensors"));
    log_info("{}: accuracy {:.2f} %, after recovery {:.2f} %", network.name(), point.accuracy,
             point.accuracy_recovered);
  }

  /// Measures all networks and the exported one in turn. Returns images per second of the latter.
  double time(std::vector<Network>& networks) const {
    log_info("timing {} networks and the exported one in turn", networks.size());
    std::vector<ForwardPass> passes;
    for (const Network& network : networks) passes.push_back(forward_pass(network.model));
    auto script = std::make_shared<torch::jit::Module>(
        torch::jit::load((out_ / kModelFile).string(), device_));
    passes.emplace_back([script](const at::Tensor& images) { script->forward({images}); });
    const std::vector<double> rates = measure_passes(
        passes, datasets_->get(config_.recover.data, "test"), config_.throughput,
        [this] { return go_on(), true; }, device_);
    for (size_t i = 0; i < networks.size(); ++i) networks[i].measured.images_per_second = rates[i];
    return rates.back();
  }

  static const Network& find(const std::vector<Network>& networks, int64_t keep,
                             const std::string& criterion) {
    const auto fits = [&](const Network& network) {
      return network.keep == keep && (network.criterion.empty() || network.criterion == criterion);
    };
    return *std::find_if(networks.begin(), networks.end(), fits);  // The list has all pairs.
  }

  std::vector<SweepPoint> list_points(const std::vector<Network>& networks, int64_t experts) const {
    std::vector<SweepPoint> points;
    for (const int64_t keep : config_.keep) {
      for (const std::string& criterion : config_.criteria) {
        points.push_back(find(networks, keep, criterion).measured);
        points.back().criterion = criterion;
      }
    }
    return points;
  }

  const PruneSweepConfig& config_;
  const ReproduceOptions& options_;
  ExperimentFolder folder_;
  fs::path out_;
  std::shared_ptr<Datasets> datasets_;
  at::Device device_;
  std::shared_ptr<Model> finetuned_;
};

template <class T>
bool contains(const std::vector<T>& list, const T& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

}  // namespace

ConfigProblem config_problem(const PruneSweepConfig& config) {
  const std::vector<PhaseConfig>& phases = config.train.phases;
  if (phases.size() < 2) {
    return {"train.phases must pre-train and fine-tune, found one phase", {"train.phases"}};
  }
  if (config.recover.data != phases.back().data) {
    return {fmt::format("recover.data is '{}', but the last phase of train was on '{}'",
                        config.recover.data, phases.back().data),
            {"recover.data", fmt::format("train.phases.{}.data", phases.size() - 1)}};
  }
  const std::vector<std::string> known = criterion_names();
  for (size_t i = 0; i < config.criteria.size(); ++i) {
    const std::string& criterion = config.criteria[i];
    if (!contains(known, criterion)) {
      return {fmt::format("criteria has no '{}'; {}", criterion, did_you_mean(criterion, known)),
              {fmt::format("criteria.{}", i)}};
    }
  }
  if (std::set(config.keep.begin(), config.keep.end()).size() != config.keep.size()) {
    return {"keep names a number twice", {"keep"}};
  }
  if (std::set(config.criteria.begin(), config.criteria.end()).size() != config.criteria.size()) {
    return {"criteria names one twice", {"criteria"}};
  }
  if (!contains(config.keep, config.exported.keep) ||
      !contains(config.criteria, config.exported.criterion)) {
    return {fmt::format("export is keep {} by '{}', which is not part of the sweep",
                        config.exported.keep, config.exported.criterion),
            {"export.keep", "export.criterion", "keep", "criteria"}};
  }
  return {};
}

const SweepPoint& SweepOutcome::at(int64_t keep, const std::string& criterion) const {
  for (const SweepPoint& point : points) {
    if (point.keep == keep && point.criterion == criterion) return point;
  }
  fail_usage("the sweep has no keep {} by '{}'", keep, criterion);
}

bool run_prune_sweep(const PruneSweepConfig& config, const ReproduceOptions& options,
                     SweepOutcome& outcome) {
  try {
    PruneSweep(config, options).run(outcome);
    return true;
  } catch (const Stopped&) {
    return false;
  }
}

}  // namespace moesaic
