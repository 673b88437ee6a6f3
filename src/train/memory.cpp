// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/memory.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <map>

#include "moesaic/base/memory.h"
#include "moesaic/base/text.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/models/registry.h"
#include "moesaic/train/phase_kind.h"

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

  /// Returns the bytes of all storages except those of `known`.
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

TrainingMemory training_memory(Model& model, const PhasePlan& phase) {
  TrainingMemory memory;
  memory.weights = static_cast<double>(model.parameter_count()) * sizeof(float);
  const PhaseKind& kind = phase_kinds().at(phase.config.kind.name());
  if (phase.steps == 0 || !kind.memory) return memory;
  const StepMemory step = kind.memory(phase.config, model);
  memory.gradients = step.gradients;
  memory.optimizer = step.optimizer;
  memory.activations = activation_bytes(model, phase.batch / step.parts);
  return memory;
}

void check_training_memory(const RunConfig& config, const Model& shape) {
  const auto numbers = static_cast<double>(shape.parameter_count());
  for (const PhaseConfig& phase : config.phases) {
    const PhaseKind& kind = phase_kinds().at(phase.kind.name());
    if (phase.steps.value_or(1) == 0 || !kind.memory) continue;
    const StepMemory step = kind.memory(phase, shape);
    check_memory(numbers * sizeof(float) + step.gradients + step.optimizer,
                 fmt::format("training a model of {:.4g} parameters by {}", numbers, step.by),
                 config.model.where());
  }
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
