// SPDX-License-Identifier: Apache-2.0
// How a run begins or goes on: everything that happens before the first step.
#include <torch/cuda.h>

#include <array>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/models/registry.h"
#include "moesaic/ops/device.h"
#include "moesaic/train/trainer.h"

namespace moesaic {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
namespace {

TrainState read_state(const Json& json, const fs::path& checkpoint) {
  try {
    return parse<TrainState>(Value::from_json(json, (checkpoint / "state.json").string()));
  } catch (const Error& error) {
    fail("{}", error.what());  // nobody wrote it by hand: it is damaged or foreign
  }
}

}  // namespace

void check_device(const std::string& device) {
  static const std::array<std::string, 2> kDevices = {"cpu", "cuda"};
  if (device == "cpu") return;
  if (device != "cuda")
    fail_usage("unknown device '{}'; {}", device, did_you_mean(device, kDevices));
  if (!has_cuda_operators()) {
    fail_usage(
        "device cuda: this build's operators run on the CPU only; use cpu, or build with "
        "MOESAIC_CUDA=ON");
  }
  if (!torch::cuda::is_available())
    fail_usage("device cuda: no GPU that LibTorch can use; use cpu");
}

// Nothing is written before all of it is known to fit together.
Trainer::Trainer(RunConfig config, TrainerOptions options)
    : config_(std::move(config)), options_(std::move(options)), datasets_(options_.open) {
  check_device(options_.device);
  RunFolder::check(options_.out, options_.resume);
  const Json started = options_.resume ? RunFolder::started_config(options_.out) : Json();
  const bool resuming = !started.is_null() && RunFolder::has_checkpoint(options_.out);
  if (!started.is_null() && config_.model.is_null()) {
    config_.model = Value::from_json(started.at("model"), (options_.out / "config.json").string());
  }
  if (!resuming) check_init(config_);
  model_ = build_initial_model(config_);
  const RunConfig given = config_;
  config_.model = Value::from_json(model_->config(), "model");
  if (!started.is_null()) check_same_run(started, to_json(config_), options_.out.string());
  plan_ = plan_phases(given, *model_, datasets_);
  if (!resuming) load_initial_weights(config_, *model_);

  folder_.emplace(options_.out, options_.resume);
  if (resuming) {
    restore(folder_->newest_checkpoint());
  } else if (options_.resume) {
    log_warning("{}: no checkpoint to go on from, the run begins", options_.out.string());
  }
  model_->to(at::Device(options_.device));
  write_atomic(folder_->config(), to_json(config_).dump(2) + "\n");
}

void Trainer::restore(const fs::path& checkpoint) {
  Checkpoint loaded = load_checkpoint(checkpoint);
  state_ = read_state(loaded.state, checkpoint);
  const auto index = static_cast<size_t>(state_.phase_index);
  if (index >= plan_.size() || plan_[index].config.name != state_.phase) {
    fail("{}: is in phase {} '{}', which this run does not have", checkpoint.string(),
         state_.phase_index, state_.phase);
  }
  const std::string from = (checkpoint / "config.json").string();
  model_ = model_of(Value::from_json(loaded.config.at("model"), from), loaded.model,
                    checkpoint.string());
  resumed_optimizer_ = std::move(loaded.optimizer);
  result_.checkpoint = checkpoint;
  log_info("going on from {}", checkpoint.string());
  if (state_.phase_complete) state_ = state_.next_phase();
}

}  // namespace moesaic
