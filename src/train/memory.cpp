// SPDX-License-Identifier: Apache-2.0
// Memory of a run, and the tables of a dry run.
#include "moesaic/train/run_plan.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/process.h"
#include "moesaic/base/text.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/gradient_phase.h"

namespace moesaic {

at::Tensor meta_inputs(const Model& model, int64_t images) {
  std::vector<int64_t> shape = model.input_shape();
  shape.insert(shape.begin(), images);
  return at::empty(shape, at::device(at::kMeta).dtype(at::kFloat));
}

namespace {

/// Follows the storages that operators of this thread return, as long as each is held by anyone,
/// and how much they are at once at most.
class LiveStorages {
 public:
  /// Leaves out the storages of `known`.
  explicit LiveStorages(const std::vector<at::Tensor>& known) {
    for (const at::Tensor& tensor : known) known_.insert(tensor.storage().unsafeGetStorageImpl());
    current() = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(nullptr, &LiveStorages::see)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~LiveStorages() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  LiveStorages(const LiveStorages&) = delete;
  LiveStorages& operator=(const LiveStorages&) = delete;

  /// Returns the peak in bytes.
  double peak() const { return peak_; }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

  static LiveStorages*& current() {
    static thread_local LiveStorages* object = nullptr;
    return object;
  }
  static void see(const at::RecordFunction& function, at::ObserverContext*) {
    for (const c10::IValue& value : function.outputs()) {
      if (value.isTensor() && value.toTensor().defined())
        current()->add(value.toTensor().storage());
    }
    current()->sum_up();
  }
  void add(const c10::Storage& storage) {
    const c10::StorageImpl* const made = storage.unsafeGetStorageImpl();
    const bool seen = std::any_of(live_.begin(), live_.end(), [&](const auto& item) {
      return item.first._unsafe_get_target() == made;  // Expired ones are gone since sum_up().
    });
    if (seen || known_.contains(made)) return;
    live_.emplace_back(storage.getWeakStorageImpl(), static_cast<double>(storage.nbytes()));
  }
  void sum_up() {
    std::erase_if(live_, [](const auto& item) { return item.first.expired(); });
    double sum = 0.0;
    for (const auto& [unused, bytes] : live_) sum += bytes;
    peak_ = std::max(peak_, sum);
  }

  at::CallbackHandle handle_ = 0;
  std::set<const void*> known_;
  std::vector<std::pair<Weak, double>> live_;
  double peak_ = 0.0;
};

/// Returns what a step on the meta device holds at once at most beside the gradients of parameters,
/// of `passes` times so many images one after the other.
double peak_of_step(Model& model, const PhasePlan& phase, int64_t images, int64_t passes) {
  choose_parameters(model, phase.config);
  std::vector<at::Tensor> known = model.buffers();
  for (const at::Tensor& parameter : model.parameters()) known.push_back(parameter);
  known.push_back(meta_inputs(model, images));
  model.train();
  model.set_activation_checkpointing(phase.activation_checkpointing);
  const LiveStorages live(known);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const at::Tensor logits = model.forward(known.back()).logits;
    if (logits.requires_grad()) logits.sum().backward();
  }
  double gradients = 0.0;
  for (at::Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad()) gradients += static_cast<double>(parameter.nbytes());
    parameter.mutable_grad().reset();
  }
  return std::max(0.0, live.peak() - gradients);
}

double peak_of_evaluation(Model& model, int64_t images) {
  std::vector<at::Tensor> known = model.parameters();
  known.push_back(meta_inputs(model, images));
  const torch::NoGradGuard no_grad;
  model.eval();
  const LiveStorages live(known);
  model.forward(known.back());
  return live.peak() + static_cast<double>(known.back().nbytes());
}

/// Returns what `peak` measures on the meta device; nothing where an operator has no shape
/// function.
std::optional<double> known_shapes(const auto& peak) try {
  const MetaKernels kernels;
  return peak();
} catch (const c10::Error&) {
  return std::nullopt;
}

/// Visits each phase that trains, with what it holds where evaluations have so many images.
void for_each_memory(Model& model, const std::vector<PhasePlan>& phases, int64_t evaluate_batch,
                     const auto& visit) {
  std::shared_ptr<Model> mixture;  // Of the phases since one that made it.
  for (const PhasePlan& phase : phases) {
    if (const auto& upcycle = phase.config.on_entry.upcycle) mixture = model.upcycled(*upcycle, 0);
    if (phase.steps == 0) continue;
    visit(phase, training_memory(mixture ? *mixture : model, phase,
                                 phase.config.evaluate ? evaluate_batch : 0));
  }
}

}  // namespace

TrainingMemory training_memory(Model& model, const PhasePlan& phase, int64_t evaluate_batch) {
  TrainingMemory memory{.weights = static_cast<double>(model.num_parameters()) * sizeof(float)};
  const PhaseKind& kind = phase_kinds().at(phase.config.kind.name());
  if (phase.steps == 0 || !kind.memory) return memory;
  const StepMemory step = kind.memory(phase.config, model);
  memory.gradients = step.gradients;
  memory.optimizer = step.optimizer;
  memory.teacher = static_cast<double>(phase.num_teacher_parameters) * sizeof(float);
  // One is used; the number of threads, which share a batch, matters to small batches only.
  const int64_t held = 1 + batches_ahead({.batch_size = phase.batch_size, .num_threads = 1}, true);
  memory.batches = static_cast<double>(held) *
                   static_cast<double>(meta_inputs(model, phase.batch_size).nbytes());
  memory.activations = known_shapes([&] {
    const int64_t passes =
        std::min<int64_t>(step.num_micro_batches, 2);  // From the second on gradients stay.
    const double peak =
        peak_of_step(model, phase, phase.batch_size / step.num_micro_batches, passes);
    return std::max(peak, evaluate_batch > 0 ? peak_of_evaluation(model, evaluate_batch) : 0.0);
  });
  return memory;
}

std::optional<double> activation_memory(Model& model, const PhasePlan& phase, int64_t images) try {
  return known_shapes([&] { return peak_of_step(model, phase, images, 2); });
} catch (const Error&) {
  return std::nullopt;  // So few images are not routed alone.
}

void check_training_memory(const RunConfig& config, const Model& shape) {
  const auto numbers = static_cast<double>(shape.num_parameters());
  for (const PhaseConfig& phase : config.phases) {
    const PhaseKind& kind = phase_kinds().at(phase.kind.name());
    if (phase.steps.value_or(1) == 0 || !kind.memory) continue;
    const StepMemory step = kind.memory(phase, shape);
    check_memory(
        numbers * sizeof(float) + step.gradients + step.optimizer,
        fmt::format("training a model of {:.4g} parameters by {}", numbers, step.update_rules),
        config.model.where());
  }
}

void check_step_memory(Model& model, const std::vector<PhasePlan>& phases) {
  const double limit = memory_limit();
  for_each_memory(model, phases, 0, [&](const PhasePlan& phase, const TrainingMemory& memory) {
    if (memory.sum() <= limit) return;
    fail_usage(
        "phases.{}.batch_size: a step of {} needs about {} of memory, this machine has {}; choose "
        "a smaller batch, or set gradient_accumulation_steps",
        phase.config.name, count_text(phase.batch_size, "image"), bytes_text(memory.sum()),
        bytes_text(limit));
  });
}

std::string describe_memory(Model& model, const RunConfig& config,
                            const std::vector<PhasePlan>& phases) {
  // Parts of LibTorch that only training touches, and its threads: 40 to 50 MB on two processors.
  constexpr double kOfTraining = 45e6;
  // Of the activations: buffers within LibTorch's operators, and memory that was freed between what
  // is held, which a heap keeps. 0.05 to 0.57 measured, of twelve networks and batches.
  constexpr double kGaps = 0.35;
  release_freed_memory();
  const double process = resident_memory() + kOfTraining, limit = memory_limit();
  std::string text;
  const auto describe = [&](const PhasePlan& phase, const TrainingMemory& memory) {
    const double gaps = kGaps * memory.activations.value_or(0.0);
    const double copy = memory.weights + memory.optimizer;  // See AsyncSave.
    const double sum = memory.sum() + copy + gaps + process;
    text += fmt::format(
        "memory        {}: {} {}: weights {}, gradients {}, optimizer {}, {}activations {}, "
        "allocator overhead {}, batches {}, copy for checkpoints {}, process and resident data "
        "{}{}\n",
        phase.config.name, memory.activations ? "about" : "more than", bytes_text(sum),
        bytes_text(memory.weights), bytes_text(memory.gradients), bytes_text(memory.optimizer),
        memory.teacher > 0.0 ? fmt::format("teacher {}, ", bytes_text(memory.teacher)) : "",
        memory.activations ? bytes_text(*memory.activations)
                           : "not known (LibTorch cannot tell an operator's shapes)",
        bytes_text(gaps), bytes_text(memory.batches), bytes_text(copy), bytes_text(process),
        sum > limit ? "; this machine has " + bytes_text(limit) : "");
  };
  for_each_memory(model, phases, config.evaluate_batch_size, describe);
  return text;
}

std::string describe_run(const RunConfig& config, const Model& model,
                         const std::vector<PhasePlan>& phases) {
  std::string text =
      fmt::format("run           {}\nmodel         {}\nparameters    {}\n", config.name,
                  model.config().at("name").get<std::string>(), model.num_parameters());
  const bool upcycles = std::ranges::any_of(
      phases, [](const PhasePlan& phase) { return phase.config.on_entry.upcycle.has_value(); });
  if (model.moe_blocks().empty() && !upcycles) {
    text += "experts       none are routed: nothing can be pruned\n";
  }
  text += fmt::format("FLOPs/image   {:.4g}\n", model.flops_per_image(even_rows_per_token(model)));
  const auto every = [](const Interval& interval) {
    return interval.count == 0 ? "never" : "every " + to_text(interval);
  };
  text += fmt::format("intervals     log {}, save {}, evaluate {}\n\n", every(config.log_every),
                      every(config.checkpoint_every), every(config.evaluate_every));
  text += fmt::format("{:<16} {:<24} {:>8} {:>7} {:>6} {:>9} {:>18}  {}\n", "phase", "data",
                      "examples", "outputs", "batch", "steps", "trained parameters", "on entry");
  for (const PhasePlan& phase : phases) {
    const EntryConfig& entry = phase.config.on_entry;
    std::vector<std::string> actions;
    if (!entry.restore.empty()) actions.push_back("restore " + entry.restore);
    if (entry.upcycle) {
      actions.push_back(fmt::format("upcycle to {} experts", entry.upcycle->num_experts));
    }
    if (entry.prune) {
      actions.push_back(
          fmt::format("keep {} by {}", entry.prune->keep.to_json().dump(), entry.prune->criterion));
    }
    if (entry.new_head) actions.emplace_back("new head");
    text += fmt::format("{:<16} {:<24} {:>8} {:>7} {:>6} {:>9} {:>18}  {}\n", phase.config.name,
                        phase.config.data, phase.num_images, phase.num_outputs, phase.batch_size,
                        phase.steps, phase.num_trained_parameters,
                        actions.empty() ? "-" : fmt::format("{}", fmt::join(actions, ", ")));
  }
  return text;
}

}  // namespace moesaic
