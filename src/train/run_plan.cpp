// SPDX-License-Identifier: Apache-2.0
// Plan and start of a run: everything before the first step. The network that it starts with comes
// first, then the plan of its phases, then what the Trainer does with both.
#include "moesaic/train/run_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "check_phase.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"
#include "moesaic/base/memory.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/checkpoint/input.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/data/class_names.h"
#include "moesaic/data/outside_images.h"
#include "moesaic/models/registry.h"
#include "moesaic/ops/backend_scope.h"
#include "moesaic/ops/device.h"
#include "moesaic/parallel/processes.h"
#include "moesaic/prune/plan.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/expert_shares.h"
#include "moesaic/train/memory.h"
#include "moesaic/train/places.h"
#include "moesaic/train/same_start.h"
#include "moesaic/train/scaling.h"
#include "moesaic/train/task.h"
#include "moesaic/train/trainer.h"
#include "planned_model.h"

namespace moesaic {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
namespace {

constexpr LoadOptions kConfigOnly = {.verify = false, .model = false, .optimizer = false};

bool gives_new_head(const RunConfig& config) {
  return config.phases.front().on_entry.new_head;
}

Checkpoint load_init(const RunConfig& config, const LoadOptions& options) {
  const std::string place = place_of(config.source, {"init"});
  if (!path_exists(config.init)) {
    fail_usage("{}: init '{}' is not there{}; make it first, or give init=RUN_OR_CHECKPOINT", place,
               config.init, nearest_sibling(config.init));
  }
  return at_place(place, [&] { return load_newest_checkpoint(config.init, options); });
}

double bytes_of(const TensorMap& tensors) {
  double sum = 0.0;
  for (const auto& [unused, tensor] : tensors) sum += static_cast<double>(tensor.nbytes());
  return sum;
}

/// Returns what RunStart::classes() does, unverified; none where `init` cannot be read, which
/// whoever needs its weights finds out.
std::vector<std::string> initial_classes(const RunConfig& config) try {
  if (config.init.empty()) return {};
  return class_names_of(load_init(config, kConfigOnly));
} catch (const Error&) {
  return {};
}

}  // namespace

RunStart::RunStart(const RunConfig& config) : config_(config) {
  if (!config.init.empty()) init_ = load_init(config, {.optimizer = false});
  if (config.model.is_null()) config_.model = model_config(*init_);
  shape_ = build_model_shape(config_.model);
}

std::shared_ptr<Model> RunStart::model() const {
  check_training_memory(config_, *shape_);
  const auto numbers = static_cast<double>(shape_->parameter_count());
  const auto seed = static_cast<uint64_t>(config_.seed);
  if (!init_) return build_model(config_.model, seed, numbers);
  check_memory(numbers * sizeof(float) + bytes_of(init_->model),
               fmt::format("a model of {:.4g} parameters beside the weights of init", numbers),
               config_.model.where());
  const std::shared_ptr<Model> source = shape_of(*init_);
  const std::shared_ptr<Model> model = build_model(config_.model, seed, numbers);
  model->initialise_from(*source, init_->model, gives_new_head(config_), config_.init);
  return model;
}

std::string RunStart::mark() const {
  if (!init_) return "";
  return fmt::format("{} of {}", hash_of(init_->model).substr(0, 16), fmt::join(classes(), ", "));
}

std::vector<std::string> RunStart::classes() const {
  return init_ ? class_names_of(*init_) : std::vector<std::string>();
}

std::shared_ptr<Model> build_initial_shape(const RunConfig& config) {
  // A network that is described needs no checkpoint, which in a plan may not even be there.
  if (!config.model.is_null()) return build_model_shape(config.model);
  return build_model_shape(model_config(load_init(config, kConfigOnly)));
}

std::shared_ptr<Model> build_initial_model(const RunConfig& config) {
  return RunStart(config).model();
}

void check_initial_weights(const RunConfig& config, Model& shape) {
  if (config.init.empty()) return;
  const std::shared_ptr<Model> source =
      build_model_shape(model_config(load_init(config, {.model = false, .optimizer = false})));
  shape.initialise_from(*source, state_of(*source), gives_new_head(config), config.init);
}

namespace {

PhasePlan plan_phase(const RunConfig& config, size_t index, PlannedModel& network,
                     Datasets& datasets, MissingFiles missing) {
  const PhaseConfig& phase = config.phases[index];
  const PhasePlaces places(config.model, phase);
  PhasePlan plan;
  plan.config = phase;
  const std::shared_ptr<const Dataset> data =
      open_data(places, datasets, network.model(), plan.config.preprocess);
  const Task& task = task_of(data->info());
  if (!phase.on_entry.restore.empty()) {
    check_restored(config, index, places);
    network.restore(phase.on_entry.restore);
  }
  check_images(places, network.model(), *data);
  check_outputs(places, index, network.model(), data->info());
  if (!data->info().classes.empty()) {
    const bool named = !network.classes().empty() || phase.on_entry.new_head;
    const bool begun = index > 0 || (!config.init.empty() && path_exists(config.init));
    if (!named && begun && data->info().classes_named) {
      log_warning(
          "{}: phase '{}': its network comes without the names of its classes: its outputs are "
          "taken to be those of '{}', in their order",
          places.of({"data"}), phase.name, phase.data);
    }
    if (!named || phase.on_entry.new_head) network.set_classes(data->info());
    check_class_names(places, network.classes(), datasets);
  }
  if (phase.on_entry.prune) {
    check_pretrained(config, index, network.model(), missing);
    const PrunePhaseConfig& prune = *phase.on_entry.prune;
    const bool means = prune.replace == kReplaceByMean;
    const std::string problem = replacement_problem(network.model(), prune.replace);
    if (!problem.empty()) {
      fail_usage("{}: phase '{}': {}", place_of(prune.source, {"replace", "keep"}), phase.name,
                 problem);
    }
    network.prune(KeepSpec::from_value(prune.keep), means);
  }
  plan.precision = config.precision;
  plan.recompute = config.recompute;
  plan.outputs = task.outputs(data->info());
  plan.classes = network.classes();
  if (phase.on_entry.new_head) network.reset_head(plan.outputs);
  plan.images = data->size();
  plan.trained = trained_numbers(network.model(), places);
  // What is planned on paper has its own check.
  if (missing == MissingFiles::refused) check_shares(config, places, network.model());
  phase_kinds().at(phase.kind.name()).plan(plan, places, network.model(), *data);
  network.end(phase.name);
  if (!phase.evaluate) return plan;
  for (const std::string& split : datasets.evaluation_splits(phase.data)) {
    check_evaluation(config, places, network.model(), datasets.get(phase.data, split)->size());
  }
  at_place(place_of(config.source, {"best"}), [&] {
    if (index + 1 == config.phases.size()) metric_of(data->info(), config.best);
  });
  return plan;
}

}  // namespace

std::vector<PhasePlan> plan_phases(const RunConfig& config, const Model& model, Datasets& datasets,
                                   MissingFiles missing) {
  std::vector<PhasePlan> plans;
  PlannedModel network(config, model, initial_classes(config));
  for (size_t i = 0; i < config.phases.size(); ++i) {
    plans.push_back(plan_phase(config, i, network, datasets, missing));
  }
  return plans;
}

std::string describe_run(const RunConfig& config, const Model& model,
                         const std::vector<PhasePlan>& phases) {
  std::string text =
      fmt::format("run           {}\nmodel         {}\nparameters    {}\n", config.name,
                  model.config().at("name").get<std::string>(), model.parameter_count());
  if (model.moe_blocks().empty()) {
    text += "experts       none that tokens are routed to: nothing can be pruned\n";
  }
  text += fmt::format("FLOPs/image   {:.4g}\n", model.flops_per_image(even_rows_per_token(model)));
  const auto every = [](const Interval& interval) {
    return interval.count == 0 ? "never" : "every " + to_text(interval);
  };
  text += fmt::format("intervals     log {}, save {}, evaluate {}\n\n", every(config.log_every),
                      every(config.checkpoint_every), every(config.evaluate_every));
  text += fmt::format("{:<16} {:<24} {:>8} {:>7} {:>6} {:>9} {:>11}  {}\n", "phase", "data",
                      "images", "outputs", "batch", "steps", "trained", "on entry");
  for (const PhasePlan& phase : phases) {
    const EntryConfig& entry = phase.config.on_entry;
    std::string actions = entry.prune
                              ? fmt::format("keep {} by {}", entry.prune->keep.to_json().dump(),
                                            entry.prune->criterion)
                              : "";
    if (!entry.restore.empty()) {
      actions = "restore " + entry.restore + (actions.empty() ? "" : ", " + actions);
    }
    if (entry.new_head) actions += actions.empty() ? "new head" : ", new head";
    text += fmt::format("{:<16} {:<24} {:>8} {:>7} {:>6} {:>9} {:>11}  {}\n", phase.config.name,
                        phase.config.data, phase.images, phase.outputs, phase.batch, phase.steps,
                        phase.trained, actions.empty() ? "-" : actions);
  }
  return text;
}

std::string dry_run(const RunConfig& given, const ScalingOptions* scaling) {
  RunConfig config = given;
  Datasets datasets{DatasetOpener(PlannedDatasets(), dataset_splits)};
  const std::shared_ptr<Model> model = build_initial_shape(config);
  const std::vector<PhasePlan> phases =
      plan_phases(config, *model, datasets, MissingFiles::planned);
  config.model = Value::from_json(model->config(), "model");
  const std::string text =
      describe_run(config, *model, phases) +
      (scaling ? describe_scaling(*model, config, phases, *scaling)  // Memory of a process too.
               : describe_memory(*model, config, phases));
  if (config.init.empty() || path_exists(config.init)) {
    check_initial_weights(config, *model);
    return text;
  }
  log_warning("init: '{}' is not there; shapes are checked from the recipe alone", config.init);
  return text;
}

namespace {

TrainState read_state(const Json& json, const fs::path& checkpoint) {
  try {
    return parse<TrainState>(Value::from_json(json, (checkpoint / "state.json").string()));
  } catch (const Error& error) {
    fail("{}", error.what());  // The file is generated, so it is damaged or foreign.
  }
}

/// Throws Error where this process writes parts of checkpoints and process 0 made another folder.
void check_shared_folder(const Processes& processes, const fs::path& out) {
  if (processes.experts().size() == 1 && !processes.config().shard_optimizer) return;
  constexpr int kTries = 20;  // Folders of other machines show new files late.
  for (int i = 0; i < kTries; ++i) {
    if (fs::exists(out / ".lock")) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
  }
  fail("{}: process 0 has made this folder elsewhere; give --out on a file system that all share",
       out.string());
}

/// Where the recipe leaves the orientation to the data, a run goes on as it began: by its record,
/// or if a version without the setting began it, as stored unless the data's description tells.
void keep_orientation(const Json& started, Datasets& datasets, RunConfig& config) {
  for (size_t i = 0; i < config.phases.size(); ++i) {
    PhaseConfig& phase = config.phases[i];
    const Json::json_pointer place(fmt::format("/phases/{}/preprocess", i));
    if (phase.data.empty() || phase.preprocess.orientation != "data") continue;
    if (!started.contains(place) || !started.at(place).is_object()) continue;
    const auto then = started.at(place).find("orientation");
    if (then != started.at(place).end()) {
      if (*then == "upright" || *then == "stored") phase.preprocess.orientation = *then;
      continue;
    }
    const std::shared_ptr<const Dataset> data = datasets.get(phase.data, "train");
    if (data->has_images() && !data->info().upright) phase.preprocess.orientation = "stored";
  }
}

/// Returns whether a checkpoint says, unverified, that it ends a phase.
bool ends_phase(const fs::path& checkpoint) {
  try {
    return parse<TrainState>(read_stored(checkpoint / "state.json")).phase_complete;
  } catch (const Error&) {
    return false;  // Whoever loads the checkpoint says what is wrong with it.
  }
}

/// Reads the newest whole checkpoint of a run. Where it ends a phase, the optimizer's tensors are
/// left out, since no later phase takes them.
Checkpoint load_newest(const RunFolder& folder) {
  return load_newest_step(folder.root() / "checkpoints", [](const fs::path& step) {
    return LoadOptions{.optimizer = !ends_phase(step)};
  });
}

}  // namespace

// Nothing is written before all of it is known to fit together, and nothing but shapes is built.
Trainer::Trainer(RunConfig config, TrainerOptions options)
    : config_(std::move(config)), options_(std::move(options)), datasets_(options_.open) {
  check_device(options_.device);
  check_backend(at::Device(options_.device), config_.deterministic);
  if (!in_memory()) RunFolder::check(options_.out, options_.resume);
  const Json started = options_.resume ? RunFolder::started_config(options_.out) : Json();
  const bool resuming = !started.is_null() && RunFolder::has_checkpoint(options_.out);
  if (!started.is_null() && config_.model.is_null()) {
    config_.model = Value::from_json(started.at("model"), (options_.out / "config.json").string());
  }
  keep_lasting_names(config_);
  std::optional<RunStart> start;
  if (!resuming) start.emplace(config_);
  const std::shared_ptr<Model> shape = start ? start->shape() : build_initial_shape(config_);
  RunConfig given = config_;
  config_.model = Value::from_json(shape->config(), "model");
  if (!started.is_null()) {
    for (const PhaseConfig& phase : config_.phases) {
      if (!phase.data.empty()) options_.open.splits(phase.data);  // Throws where there are none.
    }
    keep_orientation(started, datasets_, given);
    keep_orientation(started, datasets_, config_);
    const std::string& out = options_.out.string();
    check_same_run(with_lasting_names(started), to_json(config_), out,
                   fmt::format("; init={} with another --out trains its network on", out));
  }
  if (resuming) check_data(RunFolder::started_data(options_.out));
  plan_ = plan_phases(given, *shape, datasets_);
  for (const PhaseConfig& phase : config_.phases) {
    if (!in_memory()) check_outside_images(options_.out, phase.data);
  }
  release_freed_memory();  // Data that is read has buffers, which training cannot use as they lie.
  if (start) {
    model_ = start->model();
    classes_ = start->classes();
  } else {
    check_training_memory(config_, *shape);
  }

  if (!in_memory() && !resuming) data_ = record_data(config_, datasets_);
  check_processes(*shape);
  if (start && options_.processes) {
    options_.processes->wait_for_all();
    options_.processes->check_same("init", start->mark());
  }
  if (!in_memory() && leads()) folder_.emplace(options_.out, options_.resume);
  if (options_.processes) options_.processes->wait_for_all();
  if (!in_memory() && !leads()) {
    check_shared_folder(*options_.processes, options_.out);
    folder_.emplace(RunFolder::of_leader(options_.out));
  }
  if (resuming) {
    restore();
  } else if (options_.resume) {
    log_warning("{}: no checkpoint to go on from, the run begins", options_.out.string());
  }
  if (options_.processes) agree_on_network(*options_.processes, result_.checkpoint, *model_);
  // By now no process reads a damaged one any more.
  if (resuming && leads()) folder_->set_damaged_aside(result_.checkpoint);
  model_->to(at::Device(options_.device));
  if (in_memory() || !leads()) return;
  write_atomic(folder_->data(), to_json(data_).dump(1) + "\n");
  write_atomic(folder_->config(), to_json(config_).dump(2) + "\n");
}

void Trainer::check_data(const std::optional<RunData>& started) {
  if (!started) {
    log_info("{}: an older version began it, so that nothing tells whether its data have changed",
             options_.out.string());
  }
  const auto changed = [&](const std::string& name, const std::string& split,
                           const std::string& change) {
    const std::string what =
        fmt::format("{}: since the run began, the {} split of '{}' has changed: it {}",
                    options_.out.string(), split, name, change);
    if (config_.data_changed != "accept") {
      fail_usage("{}; put the data back, give another --out, or go on with data_changed=accept",
                 what);
    }
    if (split == "train") changed_.insert(name);
    if (leads()) {
      log_warning("{}; accepted{}", what,
                  split == "train" ? ", and no image counts as damaged before it is read" : "");
    }
  };
  data_ = record_data(config_, datasets_, started.value_or(RunData()), changed);
}

void Trainer::check_processes(const Model& shape) {
  const auto& processes = options_.processes;
  if (!processes) return;
  std::string data;
  for (const auto& [name, split] : used_splits(config_, datasets_)) {
    const std::shared_ptr<const Dataset> read = datasets_.get(name, split);
    const DataRecord* const record = data_.find(name, split);
    const std::string mark = record == nullptr ? data_mark(*read) : data_mark(*read, *record);
    data += fmt::format("{} {} {}, ", name, split, mark);
  }
  bool evaluates = false;
  for (const PhasePlan& plan : plan_) {
    evaluates = evaluates || plan.config.evaluate;
    const PhaseKind& kind = phase_kinds().at(plan.config.kind.name());
    if (!kind.share) continue;
    const PhasePlaces places(config_.model, plan.config);
    kind.share(plan, places, processes->size());
    const bool shared = processes->experts().size() > 1;
    if (shared && !trains_experts_alike(shape, Patterns(plan.config.trains))) {
      fail_usage(
          "{}: phase '{}' trains some experts and not others, which processes that share them "
          "cannot; choose parallel.experts=1, or patterns of all experts",
          places.of({"trains"}), plan.config.name);
    }
  }
  if (evaluates) warn_unless_shared(config_.evaluate_batch_size, *processes);
  check_same_build(*processes);
  processes->check_same("start", options_.resume ? "--resume" : "no --resume");
  check_same_settings(*processes, "recipe", to_json(config_));
  processes->check_same("folder", options_.out.string());
  processes->check_same("data", data);
}

void Trainer::restore() {
  Checkpoint loaded = load_newest(*folder_);
  const std::string from = loaded.folder.string();
  state_ = read_state(loaded.state, loaded.folder);
  const auto index = static_cast<size_t>(state_.phase_index);
  if (index >= plan_.size() || plan_[index].config.name != state_.phase) {
    fail("{}: is in phase {} '{}', which this run does not have", from, state_.phase_index,
         state_.phase);
  }
  int64_t most = 0;
  for (size_t i = 0; i <= index; ++i) most += plan_[i].steps;
  // Data that have changed may have shorter epochs.
  const bool too_many = state_.phase_step > plan_[index].steps || state_.step > most;
  if (changed_.empty() && too_many) {
    fail("{}/state.json: says that step {} was made, and {} of phase '{}', which has {}", from,
         state_.step, state_.phase_step, state_.phase, plan_[index].steps);
  }
  model_ = model_of(Value::from_json(loaded.config.at("model"), from + "/config.json"),
                    loaded.model, from);
  result_.checkpoint = loaded.folder;
  classes_ = class_names_of(loaded);
  if (!state_.phase_complete && loaded.config.contains(kInputKey)) {
    input_ = input_spec_of(loaded, *model_);
    const auto data = datasets_.get(plan().config.data, "train");
    // Throws where the phase has other classes.
    with_classes_of(data, input_->classes, "begin another run with init and on_entry.new_head");
    warn_of_overruled(*input_, data->info(), from);
  }
  if (state_.phase_complete) {
    state_ = state_.next_phase();
  } else {
    resumed_tensors_ = std::move(loaded.optimizer);
  }
  if (complete()) {
    log_info("{}: the run is finished, all of its {}; there is nothing to go on with", from,
             count_text(state_.phase_index, "phase"));
  } else {
    log_info("going on from {}", from);
  }
}

void Trainer::restore(Phase& phase) {
  Json values = state_.phase_state.to_json();
  if (changed_.contains(plan().config.data)) values.erase("replaced");  // They are other images.
  try {
    phase.load({std::move(values), ExpertShares(*model_).own(std::move(resumed_tensors_))});
  } catch (const Error& error) {
    fail("{}: {}", result_.checkpoint.string(), error.what());
  }
  resumed_tensors_.clear();
}

void Trainer::open_recorder() {
  if (recorder_ || complete() || in_memory() || !leads()) return;
  recorder_.emplace(folder_->root(), state_.metrics_lines);
}

}  // namespace moesaic
