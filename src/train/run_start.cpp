// SPDX-License-Identifier: Apache-2.0
// Start of a run: the network that it starts with, a dry run, then what the Trainer does before the
// first step.

#include "moesaic/train/run_plan.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/process.h"
#include "moesaic/base/text.h"
#include "moesaic/data/views.h"
#include "moesaic/models/registry.h"
#include "moesaic/ops/device.h"
#include "moesaic/parallel/process_mesh.h"
#include "moesaic/train/distributed_run.h"
#include "moesaic/train/trainer.h"

namespace moesaic {
namespace {

constexpr LoadOptions kConfigOnly = {.verify = false, .load_model = false, .load_optimizer = false};

Checkpoint load_init(const RunConfig& config, LoadOptions options) {
  options.trust = config.trust;
  const std::string place = location_of(config.source, {"init"});
  if (!path_exists(config.init)) {
    fail_usage("{}: init '{}' is not there{}; make it first, or give init=RUN_OR_CHECKPOINT", place,
               config.init, nearest_network(config.init));
  }
  return at_location(place, [&] { return load_newest_checkpoint(config.init, options); });
}

/// Throws Error where this process writes shards of checkpoints and process 0 made another folder.
void check_shared_folder(const ProcessMesh& processes, const fs::path& out) {
  if (processes.expert_group().size() == 1 && !processes.config().shard_optimizer) return;
  constexpr int kTries = 20;  // Folders of other machines show new files late.
  for (int i = 0; i < kTries; ++i) {
    if (fs::exists(out / ".lock")) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
  }
  fail(
      "{}: this folder is not the one that process 0 made; give --out on a file system that all "
      "processes share",
      out.string());
}

/// Where the recipe leaves the orientation to the data, a run goes on as it began: by its record,
/// or if a version without the setting began it, as stored unless the data's description tells.
void keep_orientation(const Json& started, DatasetCache& datasets, RunConfig& config) {
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
    if (data->has_images() && !data->info().applies_exif) phase.preprocess.orientation = "stored";
  }
}

/// Returns whether a checkpoint says, unverified, that it ends a phase.
bool ends_phase(const fs::path& checkpoint) try {
  return parse<TrainState>(read_stored(checkpoint / "state.json")).is_phase_complete;
} catch (const Error&) {
  return false;  // Whoever loads the checkpoint says what is wrong with it.
}

/// Returns what a resumed run has to share with the one that was stopped to have its bits.
std::string arithmetic_of(const std::string& device) {
  if (device != "cpu") return device;
  return fmt::format("{}, {}", count_text(at::get_num_threads(), "thread"),
                     at::get_cpu_capability());
}

}  // namespace

RunStart::RunStart(const RunConfig& config) : config_(config) {
  if (!config.init.empty()) init_ = load_init(config, {.load_optimizer = false});
  if (config.model.is_null()) config_.model = model_config(*init_);
  shape_ = build_meta_model(config_.model);
}

std::shared_ptr<Model> RunStart::model() const {
  check_training_memory(config_, *shape_);
  const auto numbers = static_cast<double>(shape_->num_parameters());
  const auto seed = static_cast<uint64_t>(config_.seed);
  if (!init_) return build_model(config_.model, seed, numbers);
  check_memory(numbers * sizeof(float) + bytes_of(init_->model),
               fmt::format("a model of {:.4g} parameters beside the weights of init", numbers),
               config_.model.where());
  const std::shared_ptr<Model> source = meta_model_of(*init_);
  const std::shared_ptr<Model> model = build_model(config_.model, seed, numbers);
  const bool has_new_head = config_.phases.front().on_entry.new_head;
  model->initialise_from(*source, init_->model, has_new_head, config_.init);
  return model;
}

std::string RunStart::fingerprint() const {
  if (!init_) return "";
  return fmt::format("{} of {}", hash_of(init_->model).substr(0, 16), fmt::join(classes(), ", "));
}

std::vector<std::string> RunStart::classes() const {
  return init_ ? class_names_of(*init_) : std::vector<std::string>();
}

std::shared_ptr<Model> build_initial_meta_model(const RunConfig& config) {
  // A network that is described needs no checkpoint, which in a plan may not even be there.
  if (!config.model.is_null()) return build_meta_model(config.model);
  return build_meta_model(model_config(load_init(config, kConfigOnly)));
}

void check_initial_weights(const RunConfig& config, Model& shape) {
  if (config.init.empty()) return;
  const std::shared_ptr<Model> source = build_meta_model(
      model_config(load_init(config, {.load_model = false, .load_optimizer = false})));
  const bool has_new_head = config.phases.front().on_entry.new_head;
  shape.initialise_from(*source, state_of(*source), has_new_head, config.init);
}

std::string dry_run(const RunConfig& given, const std::vector<int64_t>& processes,
                    const std::string& gpu) {
  RunConfig config = given;
  DatasetCache datasets{DatasetOpener(PlannedDatasets(), dataset_splits)};
  const std::shared_ptr<Model> model = build_initial_meta_model(config);
  const bool is_init_absent = !config.init.empty() && !path_exists(config.init);
  // What follows would take one that cannot be read for one without names of its classes.
  if (!config.init.empty() && !is_init_absent) load_init(config, kConfigOnly);
  const std::vector<PhasePlan> phases = plan_phases(config, *model, datasets, MissingFiles::warn);
  config.model = Value::from_json(model->config(), "model");
  std::string text = describe_run(config, *model, phases) +
                     (processes.empty() ? describe_memory(*model, config, phases)
                                        : describe_scaling(*model, config, phases, processes, gpu));
  const bool is_absent = std::ranges::any_of(phases, [](const PhasePlan& phase) {
    return phase.steps > 0 && !DatasetSource(phase.config.data).missing_files("train").empty();
  });
  if (processes.empty() && is_absent) {
    text += "memory        not counted: data whose files are missing\n";
  }
  if (is_init_absent) {
    log_warning("init: '{}' is not there; shapes are checked from the recipe alone", config.init);
  } else {
    check_initial_weights(config, *model);
  }
  return text;
}

// Nothing is written before all of it is known to fit together, and nothing but shapes is built.
Trainer::Trainer(RunConfig config, TrainerOptions options)
    : config_(std::move(config)), options_(std::move(options)), datasets_(options_.open) {
  check_device(options_.device);
  check_backend(at::Device(options_.device), config_.deterministic);
  if (!is_in_memory()) RunFolder::check(options_.out, options_.resume);
  const Json started = options_.resume ? RunFolder::started_config(options_.out) : Json();
  const bool resuming = !started.is_null() && RunFolder::has_checkpoint(options_.out);
  if (started.contains("model") && config_.model.is_null()) {
    config_.model = Value::from_json(started.at("model"), (options_.out / "config.json").string());
  }
  make_names_absolute(config_);
  std::optional<RunStart> start;
  if (!resuming) start.emplace(config_);
  const std::shared_ptr<Model> shape = start ? start->shape() : build_initial_meta_model(config_);
  RunConfig given = config_;
  config_.model = Value::from_json(shape->config(), "model");
  if (!started.is_null()) {
    for (const PhaseConfig& phase : config_.phases) {
      if (!phase.data.empty()) options_.open.splits(phase.data);  // Throws where there are none.
    }
    keep_orientation(started, datasets_, given);
    keep_orientation(started, datasets_, config_);
    const std::string& out = options_.out.string();
    Json then = with_absolute_names(started);
    std::optional<RunData> recorded = RunFolder::started_data(options_.out);
    if (resuming && recorded) moved_ = follow_moved_data(config_, then, *recorded);
    check_same_run(then, to_json(config_), out, RunFolder::other_folder_hint(options_.out));
    if (resuming) check_data(recorded);
  }
  plan_ = plan_phases(given, *shape, datasets_);
  for (const PhaseConfig& phase : config_.phases) {
    if (!is_in_memory()) check_outside_images(options_.out, phase.data);
  }
  release_freed_memory();  // Data that is read has buffers, which training cannot use as they lie.
  if (start) {
    model_ = start->model();
    classes_ = start->classes();
  } else {
    check_training_memory(config_, *shape);
  }
  if (!is_in_memory() && options_.device == "cpu" && !options_.processes)
    check_step_memory(*shape, plan_);

  if (!is_in_memory() && !resuming) data_ = record_data(config_, datasets_, is_rank_zero());
  check_processes(*shape);
  if (start && options_.processes) {
    options_.processes->barrier();
    options_.processes->check_same("init", start->fingerprint());
  }
  if (!is_in_memory() && is_rank_zero()) folder_.emplace(options_.out, options_.resume);
  if (options_.processes) options_.processes->barrier();
  if (!is_in_memory() && !is_rank_zero()) {
    check_shared_folder(*options_.processes, options_.out);
    folder_.emplace(RunFolder::from_rank_zero(options_.out));
  }
  if (resuming) {
    restore();
  } else if (options_.resume) {
    log_warning("{}: no checkpoint to resume from; the run starts from its beginning",
                options_.out.string());
  }
  state_.computed_with = arithmetic_of(options_.device);
  if (options_.processes) sync_network(*options_.processes, result_.checkpoint, *model_);
  // By now no process reads a corrupt one any more.
  if (resuming && is_rank_zero()) folder_->set_damaged_aside(result_.checkpoint);
  model_->to(at::Device(options_.device));
  if (is_in_memory() || !is_rank_zero()) return;
  write_atomic(folder_->root() / "data.json", to_json(data_).dump(1) + "\n");
  write_atomic(folder_->root() / "config.json", to_json(config_).dump(2) + "\n");
}

void Trainer::check_data(const std::optional<RunData>& started) {
  if (!started) {
    log_info("{}: data.json is missing, so changes of the data cannot be detected",
             options_.out.string());
  }
  const auto changed = [&](const std::string& name, const std::string& split,
                           const std::string& change) {
    const std::string what =
        fmt::format("{}: since the run began, the {} split of '{}'{} has changed: it {}",
                    options_.out.string(), split, name,
                    moved_.contains(name) ? fmt::format(" (then '{}')", moved_[name]) : "", change);
    const DataRecord* const before = started ? started->find(name, split) : nullptr;
    const auto used = used_splits(config_, datasets_);
    const bool new_classes =
        before != nullptr && std::ranges::count(used, std::pair(name, split)) > 0 &&
        !lacking_in(before->classes, datasets_.get(name, split)->info().classes).empty();
    if (config_.data_changed != "accept") {
      fail_usage("{}; put the data back, give another --out, or {}", what,
                 !new_classes ? "resume with data_changed=accept"
                 : split != "train"
                     ? std::string(kRenameClass)
                     : fmt::format("begin another run with init={} and on_entry.new_head",
                                   options_.out.string()));
    }
    if (split == "train") changed_.insert(name);
    if (is_rank_zero()) {
      log_warning("{}; accepted{}", what,
                  split == "train" ? ", and no image counts as corrupt before it is read" : "");
    }
  };
  data_ = record_data(config_, datasets_, is_rank_zero(), started.value_or(RunData()), changed);
}

void Trainer::check_processes(const Model& shape) {
  const auto& processes = options_.processes;
  if (!processes) return;
  std::string data;
  for (const auto& [name, split] : used_splits(config_, datasets_)) {
    data += fmt::format("{} {} {}, ", name, split,
                        data_fingerprint(*datasets_.get(name, split), data_.find(name, split)));
  }
  bool evaluates = false;
  for (const PhasePlan& plan : plan_) {
    evaluates = evaluates || plan.config.evaluate;
    const PhaseKind& kind = phase_kinds().at(plan.config.kind.name());
    if (!kind.check_processes) continue;
    const SettingLocations locations(config_.model, plan.config);
    kind.check_processes(plan, locations, processes->size());
    const bool shared = processes->expert_group().size() > 1;
    if (shared && !trains_experts_uniformly(shape, Patterns(plan.config.trainable))) {
      fail_usage(
          "{}: phase '{}' trains only some experts, which expert parallelism does not support; "
          "choose parallel.expert_parallel_size=1, or patterns of all experts",
          locations.find({"trainable"}), plan.config.name);
    }
  }
  if (evaluates) warn_unless_sharded(config_.evaluate_batch_size, *processes);
  check_same_build(*processes);
  processes->check_same("start", options_.resume ? "--resume" : "no --resume");
  check_same_settings(*processes, "recipe", to_json(config_));
  processes->check_same("folder", options_.out.string());
  processes->check_same("data", data);
}

void Trainer::restore() {
  // Of one that ends a phase the optimizer's tensors are left out, since no later phase takes them.
  Checkpoint loaded = load_newest_step(folder_->root() / "checkpoints", [](const fs::path& step) {
    return LoadOptions{.load_optimizer = !ends_phase(step)};
  });
  const std::string from = loaded.folder.string();
  state_ = with_errors_as_failures(  // The file is generated, so it is corrupt or foreign.
      [&] { return parse<TrainState>(Value::from_json(loaded.state, from + "/state.json")); });
  const auto index = static_cast<size_t>(state_.phase_index);
  if (index >= plan_.size() || plan_[index].config.name != state_.phase) {
    fail("{}: is in phase {} '{}', which this run does not have", from, state_.phase_index,
         state_.phase);
  }
  const std::string then = state_.computed_with, now = arithmetic_of(options_.device);
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
  if (!state_.is_phase_complete && loaded.config.contains(kInputKey)) {
    input_ = input_spec_of(loaded, *model_);
    const auto data = datasets_.get(plan().config.data, "train");
    // Throws where the phase has other classes.
    with_classes_of(data, input_->classes, "begin another run with init and on_entry.new_head");
    warn_overridden(*input_, data->info(), from);
  }
  if (state_.is_phase_complete) {
    state_ = state_.next_phase();
  } else {
    resumed_tensors_ = std::move(loaded.optimizer);
  }
  if (is_complete()) {
    log_info("{}: the run finished after {}; nothing is left to train", from,
             count_text(state_.phase_index, "phase"));
  } else {
    log_info("resuming from {}", from);
    if (!then.empty() && then != now) {
      log_warning(
          "{}: computed with {}, resumed with {}, which rounds sums differently: the run will not "
          "be bit-identical to an uninterrupted one",
          from, then, now);
    }
  }
}

void Trainer::restore(Phase& phase) {
  Json values = state_.phase_state.to_json();
  if (changed_.contains(plan().config.data)) values.erase("replaced");  // They are other images.
  try {
    phase.load(
        {std::move(values), ExpertShards(*model_).local_tensors(std::move(resumed_tensors_))});
  } catch (const Error& error) {
    fail("{}: {}", result_.checkpoint.string(), error.what());
  }
  resumed_tensors_.clear();
  for (const std::string& split : state_.evaluations_due) {
    const std::vector<std::string> splits = evaluation_splits();
    if (std::ranges::count(splits, split) > 0) continue;
    fail("{}: state.json: evaluations_due: '{}' has no split {}; it has {}",
         result_.checkpoint.string(), plan().config.data, printable(split),
         fmt::join(splits, ", "));
  }
}

void Trainer::open_recorder() {
  if (recorder_ || is_complete() || is_in_memory() || !is_rank_zero()) return;
  recorder_.emplace(folder_->root(), state_.metrics_lines);
}

}  // namespace moesaic
