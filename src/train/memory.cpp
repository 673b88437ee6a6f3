// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/memory.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <map>
#include <utility>

#include "moesaic/base/memory.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/train/optimizer.h"

namespace moesaic {
namespace {

/// Storages that operators of this thread returned while it lived; held, so that no address comes
/// back.
class MadeStorages {
 public:
  MadeStorages() {
    current() = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(nullptr, &MadeStorages::see)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~MadeStorages() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  MadeStorages(const MadeStorages&) = delete;
  MadeStorages& operator=(const MadeStorages&) = delete;

  /// Without those of `known`.
  double bytes(const std::vector<at::Tensor>& known) const {
    std::map<const void*, c10::Storage> made = storages_;
    for (const at::Tensor& tensor : known) made.erase(tensor.storage().unsafeGetStorageImpl());
    double sum = 0.0;
    for (const auto& [unused, storage] : made) sum += static_cast<double>(storage.nbytes());
    return sum;
  }

 private:
  static MadeStorages*& current() {
    static thread_local MadeStorages* object = nullptr;
    return object;
  }
  static void see(const at::RecordFunction& function, at::ObserverContext*) {
    for (const c10::IValue& value : function.outputs()) {
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      const c10::Storage& storage = value.toTensor().storage();
      current()->storages_.emplace(storage.unsafeGetStorageImpl(), storage);
    }
  }

  at::CallbackHandle handle_ = 0;
  std::map<const void*, c10::Storage> storages_;
};

/// How many tensors like a parameter the optimizer keeps that moves it: as Optimizer shares them
/// out, the first part whose patterns find it, else the phase's own.
class OptimizerSlots {
 public:
  explicit OptimizerSlots(const PhaseConfig& phase) : of_others_(count(phase.optimizer)) {
    for (const PartOptimizerConfig& part : phase.optimizers) {
      parts_.emplace_back(Patterns(part.parameters), count(part.optimizer));
    }
  }

  double of(const std::string& parameter) const {
    for (const auto& [patterns, slots] : parts_) {
      if (patterns.any_found_in(parameter)) return slots;
    }
    return of_others_;
  }

 private:
  static double count(const OptimizerConfig& config) {
    return static_cast<double>(make_update_rule(config)->slot_names().size());
  }

  std::vector<std::pair<Patterns, double>> parts_;
  double of_others_;
};

}  // namespace

std::optional<double> activation_bytes(Model& model, int64_t images) {
  std::vector<int64_t> shape = model.input_shape();
  shape.insert(shape.begin(), images);
  std::vector<at::Tensor> known = model.parameters();
  known.push_back(at::empty(shape, at::device(at::kMeta).dtype(at::kFloat)));
  const MetaKernels kernels;
  const MadeStorages made;
  try {
    model.forward(known.back());
  } catch (const c10::NotImplementedError&) {
    return std::nullopt;
  }
  return made.bytes(known);
}

double optimizer_bytes(const Model& model, const PhaseConfig& phase) {
  const OptimizerSlots slots(phase);
  const Patterns trains(phase.trains), frozen(phase.frozen);
  double sum = 0.0;
  for (const auto& item : model.named_parameters()) {
    if (!trains.any_found_in(item.key()) || frozen.any_found_in(item.key())) continue;
    sum += slots.of(item.key()) * static_cast<double>(item.value().numel()) * sizeof(float);
  }
  return sum;
}

TrainingMemory training_memory(Model& model, const PhasePlan& phase) {
  const PhaseConfig& config = phase.config;
  TrainingMemory memory;
  memory.weights = static_cast<double>(model.parameter_count()) * sizeof(float);
  if (phase.steps == 0) return memory;
  const Patterns trains(config.trains);
  for (const auto& item : model.named_parameters()) {
    if (!trains.any_found_in(item.key())) continue;
    memory.gradients += static_cast<double>(item.value().numel()) * sizeof(float);
  }
  memory.optimizer = optimizer_bytes(model, config);
  memory.activations =
      activation_bytes(model, std::min(config.batch_size, phase.images) / config.accumulate);
  return memory;
}

std::string describe_memory(Model& model, const std::vector<PhasePlan>& phases) {
  std::string text;
  const double limit = memory_limit();
  for (const PhasePlan& phase : phases) {
    if (phase.steps == 0) continue;
    const TrainingMemory memory = training_memory(model, phase);
    const std::string activations =
        memory.activations
            ? bytes_text(*memory.activations) + " (every tensor of a forward pass, none freed)"
            : "not known (LibTorch cannot tell an operator's shapes)";
    text += fmt::format(
        "memory        {}: {} {}, of which weights {}, gradients {}, optimizer {}, activations "
        "{}{}\n",
        phase.config.name, memory.activations ? "up to" : "more than", bytes_text(memory.sum()),
        bytes_text(memory.weights), bytes_text(memory.gradients), bytes_text(memory.optimizer),
        activations, memory.sum() > limit ? "; this machine has " + bytes_text(limit) : "");
  }
  return text;
}

}  // namespace moesaic
